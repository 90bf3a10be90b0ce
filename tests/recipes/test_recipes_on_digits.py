"""What the recipes on handwritten digits promise: folders, identical conditions, and that personal models win where labels are skewed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import methods
from coterie.engine.settings import Settings
from coterie.recipes.compare_digits import compare_digits
from coterie.recipes.quickstart import quickstart
from coterie.recipes.session import Session
from coterie.recipes.walk_fable import walk_fable
from coterie.report.read import read_runs


def ran(recipe: Any, out: Path, seed: int = 0, **values: Any) -> dict[str, dict[str, Any]]:
    """Each method's summary, after its recipe."""
    session = Session.open(recipe.__name__, values, Settings(backend="loop", quiet=True, seed=seed, eval_every=100), out)
    session.perform(recipe)
    names = json.loads((out / "summary.json").read_text())["runs"]
    return {name: json.loads((out / name / "summary.json").read_text()) for name in names}


def accuracy(summary: dict[str, Any], model: str = "personal") -> float:
    found: float = summary["results"][model]["accuracy"]["last"]
    return found


def test_quickstart_leaves_three_runs_that_learned(tmp_path: Path) -> None:
    """Digits are easy, so one model for all does well too; what beats what is tested in tests/methods/test_learning.py."""
    found = ran(quickstart, tmp_path / "run", rounds=10)
    assert list(found) == ["local", "fedavg", "fable"]
    assert all(accuracy(summary) > 0.7 for summary in found.values())
    assert found["local"]["bytes"]["up"] == 0 and "global" not in found["fable"]["results"]
    assert sorted(run.path.name for run in read_runs(tmp_path / "run")) == ["fable", "fedavg", "local"]


def test_walk_fable_has_both_forms_of_the_method_and_its_comparisons(tmp_path: Path) -> None:
    found = ran(walk_fable, tmp_path / "run", rounds=2)
    assert list(found) == ["local", "fedavg", "fedper", "fable", "fable_linear"]
    assert found["fable"]["bytes"]["up"] == found["fable_linear"]["bytes"]["up"]  # W never travels (spec/wire.md 2.3)
    assert found["fable"]["bytes"]["up"] == found["fedper"]["bytes"]["up"] < found["fedavg"]["bytes"]["up"]
    records = {name: json.loads((tmp_path / "run" / name / "run.json").read_text()) for name in found}
    assert [records[name]["methods"][0]["knobs"]["linear"] for name in ("fable", "fable_linear")] == [False, True]


def test_any_methods_run_under_identical_conditions(tmp_path: Path) -> None:
    names = tuple(name for name in methods.__all__ if name not in {"fedbn", "fedxds", "fl_gap", "privfedtalk"})
    found = ran(compare_digits, tmp_path / "run", methods=names, rounds=2, clients=4, cohort=3, beta=1.0)
    assert tuple(found) == names
    records = {name: json.loads((tmp_path / "run" / name / "run.json").read_text()) for name in names}
    for same in ("population", "model", "seed", "precision"):
        assert len({json.dumps(record[same]) for record in records.values()}) == 1, same
    cohorts = {name: record["methods"][-1]["cohort"] for name, record in records.items() if name != "centralized"}  # of its training
    assert set(cohorts.values()) == {"Fixed(size=3)"}
    assert all(np.isfinite(accuracy(found[name], "global" if name == "centralized" else "personal")) for name in names)


def test_methods_that_need_pictures_give_all_the_net_that_they_need(tmp_path: Path) -> None:
    names = ("fedavg", "fedbn", "fl_gap", "fedxds")
    found = ran(compare_digits, tmp_path / "run", methods=names, rounds=1, epochs=1, clients=3, lr=0.1, knobs=("fedxds.warmup_rounds=1",))
    assert tuple(found) == names and found["fedbn"]["bytes"]["up"] < found["fedavg"]["bytes"]["up"]
    models = {json.dumps(json.loads((tmp_path / "run" / name / "run.json").read_text())["model"]) for name in names}
    assert len(models) == 1 and '"parameters": 77' in models.pop()  # resnet8 for grey pictures


@pytest.mark.parametrize(("name", "reason"), [("fedbn", "batch norm"), ("fedxds", "convolution"), ("privfedtalk", "found none called")])
def test_a_method_that_does_not_fit_is_refused_before_anything_runs(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=reason):
        ran(compare_digits, tmp_path / "run", methods=("fedavg", name), rounds=2, net="mlp")
    assert not (tmp_path / "run").exists()
