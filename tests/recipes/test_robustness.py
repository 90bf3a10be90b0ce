"""The recipe robustness on a few rounds: its table, its picture, and a second call that only goes on."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from coterie.engine.settings import Settings
from coterie.recipes.robustness import robustness
from coterie.recipes.session import Session
from coterie.report.damage import Cell, damage, damage_svg

VALUES = {"reductions": ("mean", "median"), "attacks": ("signflip10", "backdoor"), "betas": (1.0,), "seeds": (0,), "rounds": 2, "clients": 6, "epochs": 1}


def call(out: Path, resume: bool = False) -> dict[str, object]:
    session = Session.open("robustness", VALUES, Settings(backend="loop", quiet=True), out, resume)
    session.perform(robustness)
    found: dict[str, object] = json.loads((out / "robustness.json").read_text())
    return found


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("robustness") / "out"
    call(folder)
    return folder


def test_every_cell_is_the_accuracy_of_honest_clients(out: Path) -> None:
    told = json.loads((out / "robustness.json").read_text())
    assert {(c["reduction"], c["attack"]) for c in told["cells"]} == {(r, a) for r in ("mean", "median") for a in ("clean", "signflip10", "backdoor")}
    (attacker,) = told["attackers"]["0"]  # a fifth of six clients
    for cell in told["cells"]:
        with (out / f"beta-1/{cell['reduction']}/{cell['attack']}/seed-0/clients.csv").open(newline="") as file:
            rows = [r for r in csv.DictReader(file) if (r["round"], r["model"], r["split"]) == ("2", "global", "test")]
        honest = [float(row["accuracy"]) for row in rows if int(row["client"]) != attacker]
        assert len(rows) == 6 and len(honest) == 5 and cell["accuracy"] == pytest.approx(sum(honest) / 5)
        assert (cell["backdoor_success"] is not None) == (cell["attack"] == "backdoor")


def test_the_lie_gains_no_more_than_its_bound(out: Path) -> None:
    (told,) = json.loads((out / "robustness.json").read_text())["lying_score"]
    assert 1.0 <= told["weight_gain"] <= told["weight_gain_bound"] * (1 + 1e-9)
    record = json.loads((out / "isfa/lie_and_flip10_bounded/seed-0/run.json").read_text())
    assert record["attack"]["scale"] == -10 and record["reduce"]["is"] == "NormBound"


def test_going_on_with_what_is_finished_runs_nothing_again(out: Path) -> None:
    before = {path: path.read_text() for path in out.rglob("metrics.jsonl")}  # they hold seconds: a second run would differ
    told = (out / "robustness.json").read_text()
    call(out, resume=True)
    assert {path: path.read_text() for path in out.rglob("metrics.jsonl")} == before and len(before) == 12
    assert (out / "robustness.json").read_text() == told


def test_what_is_kept_is_a_share_of_the_same_seeds_clean_accuracy() -> None:
    cells = [Cell(1.0, 0, "mean", "clean", 0.8), Cell(1.0, 1, "mean", "clean", 0.5), Cell(1.0, 0, "mean", "x", 0.4), Cell(1.0, 1, "mean", "x", None)]
    found = damage(cells, 1.0)["mean", "x"]
    assert found.kept == (0.5, 0.0) and found.accuracies == (0.4, 0.0)  # a run that ended kept nothing
    assert damage(cells, 1.0)["mean", "clean"].kept == (1.0, 1.0)
    picture = damage_svg(cells, (1.0,))
    assert picture.startswith("<svg") and ">65.0<" in picture and ">20.0<" in picture and ">25 %<" in picture
