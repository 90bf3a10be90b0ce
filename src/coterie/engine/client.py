"""One client's round: drive its run, answer its asks, tell what happened. Pure: it may be started again."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from coterie.engine.answers import Asking, Context, conduct
from coterie.engine.evaluate import evaluate_client
from coterie.message import Kind, Message
from coterie.method import Exchange, Method, Site, Sweep, Train, as_run
from coterie.metrics.metric import Metric
from coterie.states import ClientId
from coterie.tensors import Groups, gmap, refuse_others


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
    unusable: Failure | None = None  # its own model could not be evaluated: the border says why, or this does


def drive(
    method: Method, row: Groups, down: Message, site: Site, metric: Metric | None, kinds: Mapping[str, Kind]
) -> Asking:
    """One client's round, which hands out what it asks and returns Finished or Failure.

    With a metric the client's own model is scored too; `kinds` says which sent groups are values and which changes.
    """
    told: list[tuple[str, Mapping[str, float]]] = []
    try:
        context = Context(site.net, site.round, site.key)
        result = yield from conduct(as_run(method.client(row, down, site)), context, (Train, Sweep, Exchange), told)
        new_row, message = checked(result, type(method).__name__)
    except Exception as error:
        return failure(error)
    metrics = {f"{ask}/{name}": value for ask, numbers in told for name, value in numbers.items()}
    local: Mapping[str, Mapping[str, float]] = {}
    unusable = None
    if metric is not None:
        try:
            local = yield from evaluate_client(method, new_row, as_trained(down, message, kinds), site, metric)
        except Exception as error:
            unusable = failure(error)
    return Finished(site.client, new_row, message, metrics, local, unusable)


def checked(result: Any, method: str) -> tuple[Groups, Message]:
    """What a client run must give, before anybody relies on it."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], dict) and isinstance(result[1], Message)):
        found = [type(part).__name__ for part in result] if isinstance(result, tuple) else type(result).__name__
        raise ValueError(f"{method}.client must return (row, Message), found {found}. Return a dict of groups and a Message.")
    row, message = result
    refuse_others(row, "A client's row")
    # detached, as over a wire: a graph that is kept would grow from round to round
    return gmap(Tensor.detach, row), message.with_(**gmap(Tensor.detach, message.groups))


def as_trained(down: Message, up: Message, kinds: Mapping[str, Kind]) -> Message:
    """The download with what this client has just trained in place of what it received."""
    groups = {name: group for name, group in up.groups.items() if name in down.groups}
    for name, group in groups.items():
        if kinds.get(name) == "change":
            groups[name] = {n: down[name][n] + change for n, change in group.items() if n in down[name]}
    return down.with_(**groups)


def failure(error: Exception) -> Failure:
    return Failure(f"raised {type(error).__name__}: {error}", traceback.format_exc(), error)
