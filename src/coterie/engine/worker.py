"""A worker process of the pool: drives client runs from the bytes it is sent, and sends back bytes.

It owns nothing that has to survive a round; only runs that wait for the server's answer are kept meanwhile.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from coterie.data.examples import ClientParts, Population, View
from coterie.engine.allocator import keep_freed_memory
from coterie.engine.answers import conclude
from coterie.engine.backend import EvaluateJob, TrainJob, World
from coterie.engine.client import Failure, Finished
from coterie.engine.loop import advance, evaluation, start
from coterie.message import Message, pack_groups, unpack, unpack_groups
from coterie.method import Exchange, Predictor, Round
from coterie.states import ClientId, Content


@dataclass(frozen=True)
class Asked:
    """A worker's reply when a client's run asks the server."""

    name: str
    message: bytes


@dataclass(frozen=True)
class AnswerJob:
    """Go on with a run that waits: the server's answer as bytes, or why there is none."""

    client: ClientId
    answer: bytes | Failure


def work(connection: Connection, world: World) -> None:
    """A worker's life: until the parent says stop or goes away."""
    torch.set_num_threads(1)
    keep_freed_memory()
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
                    reply = _go_on(known, *rest) if kind == "answer" else _do(known, kind, *rest)
                except Exception as error:
                    reply = Failure(f"raised {type(error).__name__}: {error}", traceback.format_exc())
                connection.send(reply)
    except (EOFError, KeyboardInterrupt, ConnectionError):  # a parent that died may leave a reply unread, which resets the pipe
        pass
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # there is nothing to save, and taking torch down properly would cost every run a second


@dataclass(eq=False)
class _Known:
    """What a worker was told once and need not be told again."""

    world: World
    public: dict[str, Content] = field(default_factory=dict)
    round: Round | None = None
    predictor: Predictor | None = None
    waiting: dict[ClientId, Generator[Exchange, Message, Finished | Failure]] = field(default_factory=dict)


def _do(known: _Known, kind: str, head: Any, packed_row: bytes, packed_down: bytes) -> Any:
    world, round = known.world, known.round
    assert round is not None
    client, names, *rest = head
    public = {name: known.public[digest] for name, digest in names.items()}
    row, down = unpack_groups(packed_row), Message.from_bytes(packed_down)
    if kind == "evaluate":
        (given,) = rest
        return conclude(evaluation(world, EvaluateJob(client, round, public, row, down, known.predictor if given else None)))
    attempt, local, kinds = rest
    known.waiting[client] = start(world, TrainJob(client, round, row, down, public, attempt, local, kinds))
    return _advance(known, client, None)


def _go_on(known: _Known, client: ClientId, answer: bytes | Failure) -> Any:
    if isinstance(answer, Failure):
        known.waiting.pop(client).close()
        return answer
    return _advance(known, client, Message.from_bytes(answer))


def _advance(known: _Known, client: ClientId, reply: Message | None) -> Any:
    """Drive a run to its next question, or to its end."""
    found = advance(known.waiting[client], reply)
    if isinstance(found, Exchange):
        return Asked(found.name, found.message.to_bytes())
    del known.waiting[client]
    if isinstance(found, Failure):
        return replace(found, error=None)  # the exception itself may not travel
    assert isinstance(found, Finished)
    unusable = None if found.unusable is None else replace(found.unusable, error=None)
    numbers = (found.metrics, found.local, unusable)
    return (client, pack_groups(found.row), found.message.to_bytes(), *numbers)


def unpack_finished(reply: Any) -> Finished:
    client, row, message, *numbers = reply
    return Finished(client, unpack_groups(row), Message.from_bytes(message), *numbers)


def pack_predictor(predictor: Predictor) -> tuple[Any, ...]:
    parts = (pack_groups(predictor.params), pack_groups(predictor.buffers), pack_groups(predictor.refs))
    return predictor.fn, *parts, dict(predictor.noise)


def _unpack_predictor(fn: Any, params: bytes, buffers: bytes, refs: bytes, noise: Any) -> Predictor:
    groups = {"params": unpack_groups(params), "buffers": unpack_groups(buffers), "refs": unpack_groups(refs)}
    return Predictor(fn=fn, noise=noise, **groups)


@dataclass(frozen=True, eq=False)
class PackedPopulation:
    """A population for a pipe: shared columns, and indices as arrays (a file descriptor each would be too many)."""

    head: Population
    tables: list[dict[str, torch.Tensor]]
    views: list[dict[str, tuple[int, np.ndarray, Any]]]

    @classmethod
    def of(cls, population: Population) -> PackedPopulation:
        shared = population.moved(lambda column: column.cpu().share_memory_())  # type: ignore[no-untyped-call]
        tables = shared.tables()
        place = {id(table): i for i, table in enumerate(tables)}
        views = [
            {name: (place[id(v.columns)], v.index.numpy(), v.decode) for name, v in vars(parts).items() if v is not None}
            for parts in shared.parts
        ]
        return cls(replace(population, parts=[], names=(), public={}, central_test=None), tables, views)

    def unpacked(self) -> Population:
        parts = [
            ClientParts(**{name: View(self.tables[table], torch.from_numpy(index), decode) for name, (table, index, decode) in client.items()})
            for client in self.views
        ]
        return replace(self.head, parts=parts, names=tuple(str(i) for i in range(len(parts))))
