"""One client's round: drive its run, answer its asks, tell what happened. Pure: it may be started again."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.engine.answers import Context, answer
from coterie.engine.evaluate import evaluate_client
from coterie.message import Message
from coterie.method import Exchange, Method, Site, Trained, as_run
from coterie.metrics.metric import Metric
from coterie.states import ClientId
from coterie.tensors import Groups


@dataclass(frozen=True, eq=False)
class Failure:
    """Why a client is left out of a round."""

    reason: str
    traceback: str = ""
    error: BaseException | None = None


@dataclass(frozen=True, eq=False)
class Finished:
    """What a client's run gave: its new row, its Message before any guard, and numbers for the log."""

    client: ClientId
    row: Groups
    message: Message
    metrics: Mapping[str, float] = field(default_factory=dict)
    local: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # split -> metrics of its own model now
    seconds: float = 0.0
    unusable: Failure | None = None  # its own model could not be evaluated: the border says why, or this does


def drive(
    method: Method, row: Groups, down: Message, site: Site, metric: Metric | None
) -> Generator[Exchange, Message, Finished | Failure]:
    """Answer every Train and Sweep here; hand each Exchange out and go on with the server's answer."""
    started = time.perf_counter()
    context = Context(site.net, site.round, site.key)
    asked: Counter[str] = Counter()
    metrics: dict[str, float] = {}
    try:
        run: Generator[Any, Any, tuple[Groups, Message]] = as_run(method.client(row, down, site))
        reply: Any = None
        error: Exception | None = None
        while True:
            try:
                ask = run.throw(error) if error is not None else run.send(reply)
            except StopIteration as stop:
                new_row, message = stop.value
                break
            error = None
            if isinstance(ask, Exchange):
                reply = yield ask
                continue
            try:
                reply = answer(ask, context, asked[ask.name])
            except Exception as raised:
                error = raised
                continue
            asked[ask.name] += 1
            if isinstance(reply, Trained):
                metrics |= {f"{ask.name}/{name}": value for name, value in reply.metrics.items()}
    except Exception as error:
        return failure(error)
    local: Mapping[str, Mapping[str, float]] = {}
    unusable = None
    if metric is not None:
        own = down.with_(**{name: group for name, group in message.groups.items() if name in down.groups})
        try:
            local = evaluate_client(method, new_row, own, site, metric)
        except Exception as error:
            unusable = failure(error)
    return Finished(site.client, new_row, message, metrics, local, time.perf_counter() - started, unusable)


def failure(error: Exception) -> Failure:
    return Failure(f"raised {type(error).__name__}: {error}", traceback.format_exc(), error)
