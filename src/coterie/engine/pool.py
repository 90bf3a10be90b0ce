"""Many one-thread processes: each drives whole client runs, so only rows, downloads and Messages travel.

Tensors of the data are in shared memory; everything else crosses a pipe as bytes, so a worker owns nothing
that has to survive a round. A worker that dies costs its client the round, not the run.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
import torch.multiprocessing

from coterie.data.examples import ClientParts, Population, View
from coterie.engine.backend import AnswerExchange, EvaluateJob, Outcome, Scores, TrainJob, World
from coterie.engine.client import Failure, Finished
from coterie.engine.loop import advance, evaluate, start
from coterie.message import Message, pack, pack_groups, unpack, unpack_groups
from coterie.method import Predictor
from coterie.states import ClientId, Content
from coterie.tensors import Groups


class Pool:
    """The `loop` backend on several processes, with the same results for any number of them."""

    name = "pool"

    def __init__(self, world: World, workers: int) -> None:
        for phase in world.plan:
            if type(phase.method).__module__ == "__main__":
                raise ValueError(
                    f"{type(phase.method).__name__} is defined in __main__, where worker processes can't import it. "
                    "Put it into a module, or use --backend loop."
                )
        self._context = torch.multiprocessing.get_context("spawn")
        self._world = replace(world, population=_Packed.of(world.population))  # type: ignore[arg-type]
        self._workers = [_Worker.start(self._context, self._world) for _ in range(workers)]

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
        busy: dict[Connection, tuple[_Worker, ClientId]] = {}
        idle = list(self._workers)
        while True:
            while idle and (job := next(pending, None)) is not None:
                worker = idle.pop()
                worker.send(job)
                busy[worker.connection] = worker, job.client
            if not busy:
                return
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                worker, client = busy.pop(ready)
                try:
                    reply = ready.recv()
                except (EOFError, ConnectionResetError):
                    worker, reply = self._replace(worker)
                idle.append(worker)
                yield client, reply

    def _replace(self, dead: _Worker) -> tuple[_Worker, Failure]:
        dead.process.join()
        fresh = _Worker.start(self._context, self._world)
        self._workers[self._workers.index(dead)] = fresh
        return fresh, Failure(f"lost its worker process, which died with exit code {dead.process.exitcode}.")


@dataclass(eq=False)
class _Worker:
    """The parent's end of one process, and what that process already knows."""

    process: BaseProcess
    connection: Connection
    known: set[str] = field(default_factory=set)
    predictor: Predictor | None = None

    @classmethod
    def start(cls, context: Any, world: World) -> _Worker:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, world), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)

    def send(self, job: TrainJob | EvaluateJob) -> None:
        try:
            for content in job.public.values():
                if content.digest not in self.known:
                    self.connection.send(("public", content.digest, pack(content.tensors)))
                    self.known.add(content.digest)
            names = {name: content.digest for name, content in job.public.items()}
            if isinstance(job, TrainJob):
                head = (job.client, job.round, names, job.attempt, job.evaluate)
                self.connection.send(("train", head, _pack_row(job.row), job.down.to_bytes()))
                return
            if job.predictor is not None and job.predictor is not self.predictor:
                self.connection.send(("predictor", *_pack_predictor(job.predictor)))
            self.predictor = job.predictor or self.predictor
            head_ = (job.client, job.round, names, job.predictor is not None)
            row, down = (job.row, job.down) if job.predictor is None else ({}, Message())
            self.connection.send(("evaluate", head_, _pack_row(row), down.to_bytes()))
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
    world = replace(world, population=world.population.unpacked())  # type: ignore[attr-defined]
    public: dict[str, Content] = {}
    predictor: Predictor | None = None
    try:
        while (order := connection.recv()) is not None:
            kind, *rest = order
            if kind == "public":
                digest, data = rest
                public[digest] = Content(unpack(data), digest)
                continue
            if kind == "predictor":
                predictor = _unpack_predictor(*rest)
                continue
            head, row, down = rest
            contents = {name: public[digest] for name, digest in head[2].items()}
            try:
                connection.send(_do(world, kind, head, _unpack_row(row), Message.from_bytes(down), contents, predictor))
            except Exception as error:
                connection.send(Failure(f"raised {type(error).__name__}: {error}", traceback.format_exc()))
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        pass


def _do(
    world: World, kind: str, head: Any, row: Groups, down: Message, public: Mapping[str, Content], predictor: Predictor | None
) -> Any:
    if kind == "evaluate":
        client, round, _, given = head
        return evaluate(world, EvaluateJob(client, round, public, row, down, predictor if given else None))
    client, round, _, attempt, local = head
    asked, outcome = advance(start(world, TrainJob(client, round, row, down, public, attempt, local)), None)
    assert asked is None, "methods with exchanges are refused when the run is built"
    if isinstance(outcome, Failure):
        return replace(outcome, error=None)  # the exception itself may not travel
    assert isinstance(outcome, Finished)
    unusable = None if outcome.unusable is None else replace(outcome.unusable, error=None)
    numbers = (outcome.metrics, outcome.local, outcome.seconds, unusable)
    return (client, _pack_row(outcome.row), outcome.message.to_bytes(), *numbers)


def _unpack_finished(reply: Any) -> Finished:
    client, row, message, *numbers = reply
    return Finished(client, _unpack_row(row), Message.from_bytes(message), *numbers)


def _pack_row(row: Groups) -> tuple[list[str], bytes]:
    """Empty groups leave no tensors behind, so their names travel beside them."""
    return list(row), pack_groups(row)


def _unpack_row(packed: tuple[list[str], bytes]) -> Groups:
    names, data = packed
    groups = unpack_groups(data)
    return {name: groups.get(name, {}) for name in names}


def _pack_predictor(predictor: Predictor) -> tuple[Any, ...]:
    parts = (_pack_row(predictor.params), _pack_row(predictor.buffers), _pack_row(predictor.refs))
    return predictor.fn, *parts, dict(predictor.noise)


def _unpack_predictor(fn: Any, params: Any, buffers: Any, refs: Any, noise: Any) -> Predictor:
    return Predictor(
        fn=fn, params=_unpack_row(params), buffers=_unpack_row(buffers), refs=_unpack_row(refs), noise=noise
    )


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
