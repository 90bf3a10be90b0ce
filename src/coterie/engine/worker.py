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
from coterie.engine.devices import set_precision
from coterie.engine.graph import Graph
from coterie.engine.loop import Loop, advance, evaluation, start
from coterie.message import Message, pack_groups, unpack, unpack_groups
from coterie.method import Exchange, Predictor, Round
from coterie.states import ClientId, Content
from coterie.tensors import Groups, Tensors


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


@dataclass(frozen=True)
class Place:
    """Where a worker computes, and in which precision."""

    device: str
    precision: str


def work(connection: Connection, world: World, place: Place) -> None:
    """A worker's life: until the parent says stop or goes away."""
    torch.set_num_threads(1)
    keep_freed_memory()
    known = _Known.at(place, world)
    try:
        connection.send("ready")
        while (order := connection.recv()) is not None:
            kind, *rest = order
            if kind == "public":
                digest, data = rest
                known.public[digest] = Content(known.here(unpack(data)), digest)
            elif kind == "round":
                (known.round,) = rest
            elif kind == "predictor":
                known.predictor = _unpack_predictor(known, *rest)
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
    device: torch.device
    loop: Loop
    public: dict[str, Content] = field(default_factory=dict)
    round: Round | None = None
    predictor: Predictor | None = None
    waiting: dict[ClientId, Generator[Exchange, Message, Finished | Failure]] = field(default_factory=dict)

    @classmethod
    def at(cls, place: Place, world: World) -> _Known:
        """The world with its data and its net on the worker's own device."""
        device = torch.device(place.device)
        set_precision(place.precision)
        population = world.population.unpacked()  # type: ignore[attr-defined]
        if device.type != "cpu":
            population = population.moved(lambda column: column.to(device))
        own = replace(world, population=population, net=world.net.to(device))  # type: ignore[attr-defined]
        return cls(own, device, Loop(own) if device.type == "cpu" else Graph(own))

    def here(self, tensors: Tensors) -> Tensors:
        return {name: value.to(self.device) for name, value in tensors.items()}

    def groups(self, packed: bytes) -> Groups:
        return {group: self.here(values) for group, values in unpack_groups(packed).items()}

    def message(self, packed: bytes) -> Message:
        arrived = Message.from_bytes(packed)
        return arrived.with_(**{group: self.here(values) for group, values in arrived.groups.items()})


def _do(known: _Known, kind: str, head: Any, packed_row: bytes, packed_down: bytes) -> Any:
    world, round = known.world, known.round
    assert round is not None
    client, names, *rest = head
    public = {name: known.public[digest] for name, digest in names.items()}
    row, down = known.groups(packed_row), known.message(packed_down)
    if kind == "evaluate":
        (given,) = rest
        asking = evaluation(world, EvaluateJob(client, round, public, row, down, known.predictor if given else None))
        return conclude(asking, known.loop.reply_to)
    attempt, local, kinds = rest
    known.waiting[client] = start(world, TrainJob(client, round, row, down, public, attempt, local, kinds), known.loop.reply_to)
    return _advance(known, client, None)


def _go_on(known: _Known, client: ClientId, answer: bytes | Failure) -> Any:
    if isinstance(answer, Failure):
        known.waiting.pop(client).close()
        return answer
    return _advance(known, client, known.message(answer))


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


def _unpack_predictor(known: _Known, fn: Any, params: bytes, buffers: bytes, refs: bytes, noise: Any) -> Predictor:
    groups = {"params": known.groups(params), "buffers": known.groups(buffers), "refs": known.groups(refs)}
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
