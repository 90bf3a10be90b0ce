"""Many one-thread processes: each drives whole client runs, so only rows, downloads and Messages travel.

Tensors of the data are in shared memory; everything else crosses a pipe as bytes, so a worker owns nothing
that has to survive a round. A worker that dies costs its client the round, not the run.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
import torch.multiprocessing

from coterie.data.examples import ClientParts, Population, View
from coterie.engine.backend import AnswerExchange, EvaluateJob, Outcome, Scores, TrainJob, World
from coterie.engine.choose import defined_in_main
from coterie.engine.client import Failure, Finished
from coterie.engine.loop import advance, evaluate, start
from coterie.message import Message, pack, pack_groups, unpack, unpack_groups
from coterie.method import Plan, Predictor, Round
from coterie.states import ClientId, Content


class Pool:
    """The `loop` backend on several processes, with the same results for any number of them."""

    name = "pool"

    def __init__(self, world: World, workers: int) -> None:
        refuse_main(world.plan)
        self._context = torch.multiprocessing.get_context("spawn")
        self._world = replace(world, population=_Packed.of(world.population))  # type: ignore[arg-type]
        self._workers: list[_Worker] = []
        try:
            for _ in range(workers):
                self._workers.append(_Worker.start(self._context, self._world))
            for worker in self._workers:  # they start side by side
                worker.await_ready()
        except BaseException:
            self.close()
            raise

    def train(self, jobs: Iterable[TrainJob], answer: AnswerExchange) -> Iterator[Outcome]:
        for client, reply in self._map(jobs):
            yield client, reply if isinstance(reply, Failure) else _unpack_finished(reply)

    def evaluate(self, jobs: Iterable[EvaluateJob]) -> Iterator[tuple[ClientId, Scores]]:
        for client, reply in self._map(jobs):
            if isinstance(reply, Failure):
                raise RuntimeError(f"Evaluating client {client} failed: {reply.reason}\n{reply.traceback}")
            yield client, reply

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()

    def _map(self, jobs: Iterable[TrainJob | EvaluateJob]) -> Iterator[tuple[ClientId, Any]]:
        """Keep every worker busy; a job is pulled (and its row loaded) only when one is free."""
        pending = iter(jobs)
        again: list[TrainJob | EvaluateJob] = []
        tried_twice: set[ClientId] = set()
        busy: dict[Connection, tuple[_Worker, TrainJob | EvaluateJob]] = {}
        idle = list(self._workers)
        while True:
            while idle and (job := again.pop() if again else next(pending, None)) is not None:
                worker = idle.pop()
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
                    worker, reply = self._replace(worker)
                    if isinstance(job, EvaluateJob) and job.client not in tried_twice:
                        tried_twice.add(job.client)  # a client may lose a round, but a run needs its evaluation
                        again.append(job)
                        idle.append(worker)
                        continue
                idle.append(worker)
                yield job.client, reply

    def _replace(self, dead: _Worker) -> tuple[_Worker, Failure]:
        dead.process.join()
        fresh = _Worker.start(self._context, self._world)
        self._workers[self._workers.index(dead)] = fresh
        fresh.await_ready()
        return fresh, Failure(f"lost its worker process, which died with exit code {dead.process.exitcode}.")


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
    def start(cls, context: Any, world: World) -> _Worker:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, world), daemon=True)
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

    def send(self, job: TrainJob | EvaluateJob) -> None:
        try:
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
                self.connection.send(("predictor", *_pack_predictor(job.predictor)))
            self.predictor = job.predictor or self.predictor
            head_ = (job.client, names, job.predictor is not None)
            self.connection.send(("evaluate", head_, pack_groups(job.row), job.down.to_bytes()))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the worker died: reading its answer says so

    def stop(self) -> None:
        with contextlib.suppress(BrokenPipeError, OSError):
            self.connection.send(None)
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.terminate()


def _work(connection: Connection, world: World) -> None:
    """A worker's life: until the parent says stop or goes away."""
    torch.set_num_threads(1)
    known = _Known(replace(world, population=world.population.unpacked()))  # type: ignore[attr-defined]
    try:
        connection.send("ready")
        while (order := connection.recv()) is not None:
            kind, *rest = order
            if kind == "public":
                digest, data = rest
                known.public[digest] = Content(unpack(data), digest)
            elif kind == "round":
                (known.round,) = rest
            elif kind == "predictor":
                known.predictor = _unpack_predictor(*rest)
            else:
                try:
                    reply = _do(known, kind, *rest)
                except Exception as error:
                    reply = Failure(f"raised {type(error).__name__}: {error}", traceback.format_exc())
                connection.send(reply)
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        pass


@dataclass(eq=False)
class _Known:
    """What a worker was told once and need not be told again."""

    world: World
    public: dict[str, Content] = field(default_factory=dict)
    round: Round | None = None
    predictor: Predictor | None = None


def _do(known: _Known, kind: str, head: Any, packed_row: bytes, packed_down: bytes) -> Any:
    world, round = known.world, known.round
    assert round is not None
    client, names, *rest = head
    public = {name: known.public[digest] for name, digest in names.items()}
    row, down = unpack_groups(packed_row), Message.from_bytes(packed_down)
    if kind == "evaluate":
        (given,) = rest
        return evaluate(world, EvaluateJob(client, round, public, row, down, known.predictor if given else None))
    attempt, local, kinds = rest
    asked, outcome = advance(start(world, TrainJob(client, round, row, down, public, attempt, local, kinds)), None)
    assert asked is None, "methods with exchanges are refused when the run is built"
    if isinstance(outcome, Failure):
        return replace(outcome, error=None)  # the exception itself may not travel
    assert isinstance(outcome, Finished)
    unusable = None if outcome.unusable is None else replace(outcome.unusable, error=None)
    numbers = (outcome.metrics, outcome.local, unusable)
    return (client, pack_groups(outcome.row), outcome.message.to_bytes(), *numbers)


def _unpack_finished(reply: Any) -> Finished:
    client, row, message, *numbers = reply
    return Finished(client, unpack_groups(row), Message.from_bytes(message), *numbers)


def _pack_predictor(predictor: Predictor) -> tuple[Any, ...]:
    parts = (pack_groups(predictor.params), pack_groups(predictor.buffers), pack_groups(predictor.refs))
    return predictor.fn, *parts, dict(predictor.noise)


def _unpack_predictor(fn: Any, params: bytes, buffers: bytes, refs: bytes, noise: Any) -> Predictor:
    groups = {"params": unpack_groups(params), "buffers": unpack_groups(buffers), "refs": unpack_groups(refs)}
    return Predictor(fn=fn, noise=noise, **groups)


@dataclass(frozen=True, eq=False)
class _Packed:
    """A population for a pipe: shared columns, and indices as arrays (a file descriptor each would be too many)."""

    head: Population
    tables: list[dict[str, torch.Tensor]]
    views: list[list[tuple[int, np.ndarray, Any]]]

    @classmethod
    def of(cls, population: Population) -> _Packed:
        shared = population.moved(lambda column: column.cpu().share_memory_())  # type: ignore[no-untyped-call]
        tables = shared.tables()
        place = {id(table): i for i, table in enumerate(tables)}
        views = [
            [(place[id(v.columns)], v.index.numpy(), v.decode) for v in (parts.train, parts.validation, parts.test)]
            for parts in shared.parts
        ]
        return cls(replace(population, parts=[], names=(), public={}, central_test=None), tables, views)

    def unpacked(self) -> Population:
        parts = [
            ClientParts(*(View(self.tables[table], torch.from_numpy(index), decode) for table, index, decode in client))
            for client in self.views
        ]
        return replace(self.head, parts=parts, names=tuple(str(i) for i in range(len(parts))))
