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
from coterie.methods.scaffold import Scaffold
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


OFF = {
    "fedprox": {"mu": 0.0}, "moon": {"mu": 0.0}, "ditto": {"lam": 0.0}, "fedala": {"eta": 0.0}, "fedas": {"align_lr": 0.0},
    "feddbe": {"kappa": 0.0}, "gpfl": {"lam": 0.0},
}  # fmt: skip


@pytest.mark.parametrize("name", OFF)
def test_a_method_whose_own_term_is_off_says_so(name: str) -> None:
    make, (knob,) = getattr(methods, name), OFF[name]
    assert make(rounds=1)[-1].method.switched_off() == ""
    assert make(rounds=1, **OFF[name])[-1].method.switched_off().startswith(f"with {knob} = 0 ")
    scaffolded = Scaffold(make(rounds=1, **OFF[name])[-1].method)
    assert scaffolded.switched_off().startswith(f"with {knob} = 0 ")


def test_every_run_prints_its_knobs_and_what_they_switch_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = Session.open("mine", {}, Settings(backend="loop"), tmp_path / "run")
    plans = {"fedprox": methods.fedprox(rounds=1, mu=0.0), "moon": methods.moon(rounds=1, mu=0.25, dim=4)}
    session.run_all(plans, clients_of(10), net=seeded(0, mlp, 2, 2), metric=Classification(2))
    said = capsys.readouterr().out
    assert "fedprox: train: Proximal(inner=FedAvg(training=Training(optim=SGD(lr=0.05, momentum=0" in said and "mu=0)" in said
    assert "moon: train: Moon(" in said and "mu=0.25, tau=0.5, dim=4)" in said
    assert said.count("Mind: with mu = 0 nothing is pulled") == 1
    methods_of = {name: json.loads((tmp_path / "run" / name / "run.json").read_text())["methods"][0] for name in plans}
    assert methods_of["fedprox"]["switched_off"].startswith("with mu = 0") and "switched_off" not in methods_of["moon"]
    assert methods_of["moon"]["knobs"]["mu"] == 0.25
