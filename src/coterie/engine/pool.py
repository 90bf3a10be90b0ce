"""Many processes, of one thread or one accelerator each: they drive whole client runs, so only rows, downloads and Messages travel.

Tensors of the data are in shared memory; everything else crosses a pipe as bytes, so a worker owns nothing
that has to survive a round. A worker that dies costs its client the round, not the run.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias

import torch.multiprocessing

from coterie.engine.answers import Question, reference
from coterie.engine.backend import AnswerExchange, EvaluateJob, Outcome, Scores, TrainJob, World
from coterie.engine.choose import defined_in_main
from coterie.engine.client import Failure
from coterie.engine.devices import choose_devices
from coterie.engine.worker import AnswerJob, Asked, PackedPopulation, Place, pack_predictor, unpack_finished, work
from coterie.message import Message, pack, pack_groups
from coterie.method import Exchange, Plan, Predictor, Round, Trained
from coterie.states import ClientId
from coterie.tensors import Tensors


class Pool:
    """The `loop` backend on several processes, with the same results for any number of them."""

    name = "pool"

    def __init__(self, world: World, workers: int, devices: str = "cpu", precision: str = "fp32") -> None:
        refuse_main(world.plan)
        found = choose_devices(devices)
        self._places = [Place(str(found[i % len(found)]), precision) for i in range(workers)]
        self._context = torch.multiprocessing.get_context("spawn")
        self._world = replace(world, population=PackedPopulation.of(world.population))  # type: ignore[arg-type]
        self._workers: list[_Worker] = []
        try:
            for place in self._places:
                self._workers.append(_Worker.start(self._context, self._world, place))
            for worker in self._workers:  # they start side by side
                worker.await_ready()
        except BaseException:
            self.close()
            raise

    def train(self, jobs: Iterable[TrainJob], answer: AnswerExchange) -> Iterator[Outcome]:
        """A run that asks the server waits in its worker, which goes on with other clients until everybody has asked."""
        replies = self._map(_taking_turns(jobs))
        while True:
            asked: dict[ClientId, tuple[_Worker, Exchange]] = {}
            for worker, client, reply in replies:
                if isinstance(reply, Asked):
                    asked[client] = worker, Exchange(reply.name, Message.from_bytes(reply.message))
                else:
                    yield client, reply if isinstance(reply, Failure) else unpack_finished(reply)
            for client in [client for client, (worker, _) in asked.items() if worker not in self._workers]:
                yield client, _lost(asked.pop(client)[0])
            if not asked:
                return
            answers = answer({client: exchange for client, (_, exchange) in sorted(asked.items())})
            theirs: dict[_Worker, list[_Job]] = {}
            for client, (worker, _) in sorted(asked.items()):
                found = answers[client]
                theirs.setdefault(worker, []).append(AnswerJob(client, found if isinstance(found, Failure) else found.to_bytes()))
            replies = self._map_own(theirs)

    def evaluate(self, jobs: Iterable[EvaluateJob]) -> Iterator[tuple[ClientId, Scores | Failure]]:
        for _, client, reply in self._map(_taking_turns(jobs)):
            yield client, reply

    def reply_to(self, asked: Question) -> Trained | Tensors:
        return reference(asked)

    def remarks(self) -> list[str]:
        return []

    def close(self) -> None:
        for worker in self._workers:
            worker.ask_to_stop()
        for worker in self._workers:
            worker.stop()

    def _map(self, take: Callable[[_Worker], _Job | None]) -> Iterator[tuple[_Worker, ClientId, Any]]:
        """Keep every worker busy; a job is pulled (and its row loaded) only when one is free."""
        again: list[_Job] = []
        tried_twice: set[ClientId] = set()
        busy: dict[Connection, tuple[_Worker, _Job]] = {}
        idle = list(self._workers)
        while True:
            for worker in list(idle):
                if (job := again.pop() if again else take(worker)) is not None:
                    idle.remove(worker)
                    worker.send(job)
                    busy[worker.connection] = worker, job
            if not busy:
                return
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                worker, job = busy.pop(ready)
                try:
                    reply = ready.recv()
                except (EOFError, ConnectionResetError):
                    dead, worker = worker, self._replace(worker)
                    idle.append(worker)
                    if isinstance(job, EvaluateJob) and job.client not in tried_twice:
                        tried_twice.add(job.client)  # a client may lose a round, but a run needs its evaluation
                        again.append(job)
                        continue
                    yield dead, job.client, _lost(dead)
                    continue
                idle.append(worker)
                yield worker, job.client, reply

    def _map_own(self, theirs: dict[_Worker, list[_Job]]) -> Iterator[tuple[_Worker, ClientId, Any]]:
        """Jobs that only one worker can do; what is left of a worker that died is lost with it."""

        def take(worker: _Worker) -> _Job | None:
            own = theirs.get(worker)
            return own.pop(0) if own else None

        yield from self._map(take)
        for worker, left in theirs.items():
            for job in left:
                yield worker, job.client, _lost(worker)

    def _replace(self, dead: _Worker) -> _Worker:
        dead.process.join()
        place = self._workers.index(dead)
        fresh = _Worker.start(self._context, self._world, self._places[place])
        self._workers[place] = fresh
        fresh.await_ready()
        return fresh


_Job: TypeAlias = TrainJob | EvaluateJob | AnswerJob


def _taking_turns(jobs: Iterable[TrainJob | EvaluateJob]) -> Callable[[_Worker], _Job | None]:
    """The next job for whoever is free."""
    pending = iter(jobs)
    return lambda worker: next(pending, None)


def _lost(dead: _Worker) -> Failure:
    return Failure(f"lost its worker process, which died with exit code {dead.process.exitcode}.")


def refuse_main(plan: Plan) -> None:
    for phase in plan:
        found = defined_in_main(phase.method)
        if found is not None:
            raise ValueError(
                f"{found} is defined in __main__, where worker processes can't import it. "
                "Put it into a module, or use --backend loop."
            )


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Hide the script that runs: a process that starts now would run it again from its first line, unless it is guarded."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@dataclass(eq=False)
class _Worker:
    """The parent's end of one process, and what that process already knows."""

    process: BaseProcess
    connection: Connection
    known: set[str] = field(default_factory=set)
    round: Round | None = None
    predictor: Predictor | None = None

    @classmethod
    def start(cls, context: Any, world: World, place: Place) -> _Worker:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, world, place), daemon=True)
        try:
            with without_main():
                process.start()
        except OSError:
            raise
        except Exception as error:
            raise ValueError(
                f"Something of this run can't travel to a worker process ({error}). "
                "Define methods, nets, losses and metrics at the top of a module, or use --backend loop."
            ) from error
        theirs.close()
        return cls(process, ours)

    def await_ready(self) -> None:
        """A worker that can't start would die again for every client, so it ends the run at once."""
        try:
            self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            raise ValueError(
                f"A worker process could not start (exit code {self.process.exitcode}); what it said stands above. "
                "Mend that, or use --backend loop."
            ) from None

    def send(self, job: _Job) -> None:
        try:
            if isinstance(job, AnswerJob):
                self.connection.send(("answer", job.client, job.answer))
                return
            for content in job.public.values():
                if content.digest not in self.known:
                    self.connection.send(("public", content.digest, pack(content.tensors)))
                    self.known.add(content.digest)
            if job.round != self.round:  # once, not with every job: it names the whole cohort
                self.connection.send(("round", job.round))
                self.round = job.round
            names = {name: content.digest for name, content in job.public.items()}
            if isinstance(job, TrainJob):
                head = (job.client, names, job.attempt, job.evaluate, dict(job.kinds))
                self.connection.send(("train", head, pack_groups(job.row), job.down.to_bytes()))
                return
            if job.predictor is not None and job.predictor is not self.predictor:
                self.connection.send(("predictor", *pack_predictor(job.predictor)))
            self.predictor = job.predictor or self.predictor
            head_ = (job.client, names, job.predictor is not None)
            self.connection.send(("evaluate", head_, pack_groups(job.row), job.down.to_bytes()))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the worker died: reading its answer says so

    def ask_to_stop(self) -> None:
        with contextlib.suppress(BrokenPipeError, OSError):
            self.connection.send(None)

    def stop(self) -> None:
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.terminate()
