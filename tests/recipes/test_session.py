"""What a call of a recipe tells about its data and its results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie import methods
from coterie.cli.show import finish
from coterie.data import Assignment, Population, Table, make_population
from coterie.engine.settings import Settings
from coterie.metrics.classification import Classification
from coterie.models.nets import mlp
from coterie.randomness import Key
from coterie.recipes.session import Session, seeded


def run_twice(population: Population, out: Path) -> None:
    """Two methods on these clients."""
    values: dict[str, Any] = {}
    session = Session.open("mine", values, Settings(backend="loop"), out)
    plans = {"local": methods.local(rounds=1), "fedavg": methods.fedavg(rounds=1)}
    session.run_all(plans, population, net=seeded(0, mlp, 2, 2), metric=Classification(2))
    session.close()
    finish(out)


def clients_of(rows: int) -> Population:
    """Two clients whose examples are all the same."""
    table = Table("twins", {"x": torch.ones(2 * rows, 2), "y": torch.arange(2 * rows) % 2})
    return make_population(table, Assignment((np.arange(rows), np.arange(rows, 2 * rows)), ("ann", "bob"), "by hand"), key=Key(0))


def test_what_the_leak_check_found_is_said_once_and_stands_in_every_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_twice(clients_of(10), tmp_path / "run")
    said = "4 of 4 examples in the clients' own test parts are also in a train part"
    assert capsys.readouterr().out.count(f"Leak check: {said}") == 1
    for name in ("local", "fedavg"):
        (found,) = json.loads((tmp_path / "run" / name / "run.json").read_text())["leak_check"]
        assert (found["level"], found["kind"], found["count"]) == ("warning", "exact", 4) and said in found["text"]
    for report in tmp_path.rglob("report.html"):
        assert "Leak check: 4 of 4 examples" in report.read_text()


def test_a_run_that_nothing_could_be_measured_on_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_twice(clients_of(1), tmp_path / "run")
    assert "No results: no client has test examples." in capsys.readouterr().out
    assert "Leak check: nothing found." in (tmp_path / "run" / "report.html").read_text()
