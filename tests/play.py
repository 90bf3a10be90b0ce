"""Runs of the toy population that remember everything that crossed, was trained and was kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import Case, case_of
from torch import Tensor

from coterie.engine import answers
from coterie.engine import run as engine_run
from coterie.engine.run import Finish, Silent
from coterie.engine.wire import Ledger
from coterie.message import Message
from coterie.method import Net, Plan, Round, Train
from coterie.randomness import Key
from coterie.tensors import Groups


@dataclass(frozen=True)
class Play:
    """One run of a method in float64: what it left behind, everything that crossed, everything that was trained."""

    finish: Finish
    plan: Plan
    crossed: list[tuple[str, Message]]  # direction, Message (exchanges too)
    trained: list[tuple[Train, Net, Round, Key]]
    rows: list[Groups]  # every row that any round left with a client


def record(case: Case, name: str, out: Path) -> Play:
    crossed: list[tuple[str, Message]] = []
    trained: list[tuple[Train, Net, Round, Key]] = []
    rows: list[Groups] = []
    count, train, commit = Ledger.count, answers.train, engine_run.commit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "count", lambda self, way, up, *a, **k: (crossed.append((way, up)), count(self, way, up, *a, **k))[1])
        patch.setattr(answers, "train", lambda *asked: (trained.append(asked), train(*asked))[1])
        patch.setattr(engine_run, "commit", lambda store, state, new, v: (rows.extend(new.values()), commit(store, state, new, v))[1])
        plan = case.plan(name)
        finish = case.toy.run(plan, out, precision="fp64")
    return Play(finish, plan, crossed, trained, rows)


def again(name: str, out: Path, plan: Plan | None = None, **settings: Any) -> Finish:
    case = case_of(name)
    return case.toy.run(plan or case.plan(name), out, precision="fp64", **settings)


def tensors_of(finish: Finish) -> dict[str, Tensor]:
    """The server's state and everything that it and the clients remember, by one name each."""
    groups = {f"server/{group}": values for group, values in finish.state.shared.items()}
    for table, rows in (("row", finish.clients), ("server row", finish.state.rows)):
        groups |= {f"{table} {client}/{group}": values for client in rows for group, values in rows[client].items()}
    return {f"{group}/{name}": value for group, values in groups.items() for name, value in values.items()}


def assert_same(one: Finish, two: Finish, *, models: tuple[str, ...] = ("global", "personal", "local")) -> None:
    """Bit for bit: state, rows and results."""
    first, second = tensors_of(one), tensors_of(two)
    assert first.keys() == second.keys()
    differ = [name for name, value in first.items() if not torch.equal(value, second[name])]
    assert not differ, f"{len(differ)} of {len(first)} tensors differ, the first is {differ[0]}"
    results = [{m: r for m, r in f.summary["results"].items() if m in models} for f in (one, two)]
    assert results[0] == results[1]


def replace_methods(plan: Plan, wrap: Callable[[Any], Any]) -> Plan:
    return tuple(replace(phase, method=wrap(phase.method)) for phase in plan)


class StopAfter(Silent):
    """Presses Ctrl-C when so many rounds are saved."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def round(self, index: int, *rest: object) -> None:
        if index == self.rounds:
            raise KeyboardInterrupt
