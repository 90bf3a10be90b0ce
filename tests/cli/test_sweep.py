"""`coterie sweep`: a grid of full runs, and a choice that only validation data make."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from commands import call, numbers, refused, succeed

from coterie.method import SGD
from coterie.methods import fedavg
from coterie.methods.fedavg import Training
from coterie.metrics.classification import Classification
from coterie.options import options_of, parse_grid
from coterie.recipes.quickstart import digits
from coterie.recipes.session import Session
from coterie.recipes.sweep import Combination, Outcome, Score, choose, folder_name, read_seeds
from coterie.report.progress import Progress

SWEEP = ("compare_digits", "--clients", "3", "--rounds", "2", "--epochs", "1", "--methods", "fedavg,fedper", "--lr", "0.01,0.3",
         "--seeds", "0-1", "--backend", "loop", "--quiet")  # fmt: skip
PARTS = ["lr-0.01/seed-0", "lr-0.01/seed-1", "lr-0.3/seed-0", "lr-0.3/seed-1"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def last(run: Path, model: str, split: str) -> float:
    """The accuracy after the last round, straight from the log."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return float([line for line in lines if (line.get("model"), line.get("split")) == (model, split)][-1]["accuracy"])


def test_every_combination_and_seed_is_a_run_and_validation_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    told = succeed(capsys, "sweep", *SWEEP, "--out", "s")
    found = json.loads(Path("s/sweep.json").read_text())
    assert sorted(path.relative_to("s").as_posix() for path in Path("s").glob("*/*")) == PARTS == found["done"]
    runs = [f"{part}/{method}" for part in PARTS for method in ("fedavg", "fedper")]
    assert json.loads(Path("s/summary.json").read_text())["runs"] == runs
    for run in runs:
        assert json.loads(Path("s", run, "run.json").read_text())["seed"] == int(run.split("/")[1][-1])
        assert {"metrics.jsonl", "clients.csv", "wire.jsonl", "summary.json", "report.html"} <= {p.name for p in Path("s", run).iterdir()}
    for method in ("fedavg", "fedper"):
        means = {
            rate: statistics.mean(last(Path("s", f"lr-{rate}", f"seed-{seed}", method), "personal", "validation") for seed in (0, 1))
            for rate in ("0.01", "0.3")
        }
        best = max(means, key=means.__getitem__)
        chosen = found["chosen"][method]
        assert chosen["combination"] == f"lr-{best}" and chosen["validation"]["mean"] == pytest.approx(means[best])
        tests = [last(Path("s", f"lr-{best}", f"seed-{seed}", method), "personal", "test") for seed in (0, 1)]
        assert list(chosen["test"]["seeds"].values()) == pytest.approx(tests)
        assert f"{100 * statistics.mean(tests):.1f} ± {100 * statistics.stdev(tests):.1f}" in told
    assert all("test" not in score for score in found["scores"])
    assert found["budget"] == {"combinations": 2, "seeds": 2}
    assert Path("s/report.html").exists() and "± over 2 seeds. Chosen on validation parts by the personal model:" in told
    assert "(lr=0.01)" in succeed(capsys, "compare", "s")


def test_a_stopped_sweep_goes_on_and_finished_parts_are_not_run_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    succeed(capsys, "sweep", *SWEEP, "--out", "whole")
    rounds: list[int] = []

    def stop(self: Progress, *_: Any) -> None:
        rounds.append(len(rounds))
        if len(rounds) == 7:  # the third part's second method has one round
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "round", stop)
        code, printed, _ = call(capsys, "sweep", *SWEEP[:-1], "--out", "shot")
        assert code == 130 and "go on with: coterie sweep --resume shot\n" in printed
        assert "Part 2 of 4: lr=0.01, seed 1" in printed and "Part 4" not in printed
    done = {path: path.stat().st_mtime_ns for part in PARTS[:1] for path in Path("shot", part).glob("*/*.json*")}
    assert json.loads(Path("shot/sweep.json").read_text())["done"] == PARTS[:1]
    told = succeed(capsys, "sweep", "--resume", "shot")
    assert "Part 1 of 4" not in told and "Part 2 of 4: lr=0.01, seed 1" in told and "fedavg: finished already" in told
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert numbers(Path("shot")) == numbers(Path("whole"))
    for key in ("scores", "chosen", "done"):
        assert json.loads(Path("shot/sweep.json").read_text())[key] == json.loads(Path("whole/sweep.json").read_text())[key]
    assert "'shot' is no run folder" in refused(capsys, "run", "--resume", "shot")
    assert "is a part of a sweep, whose parts must stay alike" in refused(capsys, "run", "--resume", f"shot/{PARTS[0]}", "--rounds", "9")
    assert "holds a sweep of 'compare_digits', not 'quickstart'" in refused(capsys, "sweep", "quickstart", "--resume", "shot")
    assert "Unknown option '--lr'" in refused(capsys, "sweep", "--resume", "shot", "--lr", "0.5")


def test_a_rate_that_diverges_costs_its_combination_not_the_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare_digits", "--clients", "3", "--rounds", "1", "--methods", "fedavg", "--quiet")
    told = succeed(capsys, "sweep", *words, "--lr", "1e30,0.1", "--out", "s")
    assert "Left out: lr-1e+30/seed-0: Round 1 got 0 of 3 clients back" in told and "1 part not finished" in told
    found = json.loads(Path("s/sweep.json").read_text())
    assert list(found["failed"]) == ["lr-1e+30/seed-0"] and found["chosen"]["fedavg"]["values"] == {"lr": 0.1}
    assert "No combination of this sweep has a result" in refused(capsys, "sweep", *words, "--lr", "1e30,1e31", "--out", "all")


def single(session: Session, *, lr: float = 0.1, rounds: int = 1) -> None:
    """One run in the session's own folder."""
    population, net = digits(3, 0.1, session.settings.seed)
    plan = fedavg(rounds=rounds, training=Training(optim=SGD(lr=lr)))
    session.run(plan, population, net=net, metric=Classification(10), method="fedavg")


def test_a_recipe_of_a_single_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from coterie import recipes

    monkeypatch.setattr(recipes, "single", single, raising=False)
    monkeypatch.setattr(recipes, "__all__", [*recipes.__all__, "single"])
    succeed(capsys, "sweep", "single", "--lr", "0.1", "--seeds", "3,5", "--quiet", "--out", "s")
    assert json.loads(Path("s/summary.json").read_text())["runs"] == ["seed-3", "seed-5"]  # nothing varies: no level for it
    assert Path("s/seed-3/run.json").exists() and json.loads(Path("s/sweep.json").read_text())["chosen"]["fedavg"]["values"] == {}


# --- the choice itself


def score(name: str, validation: list[float], test: float, direction: str = "max", method: str = "m") -> Score:
    outcomes = tuple(Outcome(method, s, name, "personal", "loss", direction, v, test) for s, v in enumerate(validation))  # type: ignore[arg-type]
    return Score(method, Combination(name, {}), outcomes)


def test_the_choice_never_looks_at_test_numbers() -> None:
    scores = [score("a", [0.5, 0.7], test=0.99), score("b", [0.8, 0.6], test=0.0), score("c", [0.9, 0.4], test=1.0)]
    assert choose(scores)["m"].combination.name == "b"
    assert choose([score("a", [0.5], 0, "min"), score("b", [0.4], 9, "min")])["m"].combination.name == "b"
    assert choose([score("a", [0.5], 0), score("b", [0.5], 9)])["m"].combination.name == "a"  # the first of equals
    nan = float("nan")
    assert choose([score("a", [nan, 0.9], 0), score("b", [0.1, 0.1], 0)])["m"].combination.name == "b"
    by_method = choose([score("a", [0.1], 0, method="x"), score("b", [0.2], 0, method="x"), score("a", [0.3], 0, method="y")])
    assert {method: best.combination.name for method, best in by_method.items()} == {"x": "b", "y": "a"}


def test_values_seeds_and_names() -> None:
    def recipe(session: Session, *, lr: float = 0.1, methods: tuple[str, ...] = (), hidden: tuple[int, ...] | None = None) -> None:
        """A recipe."""

    options = options_of(recipe)
    words = ["--lr", "0.1,0.3", "--methods", "a,b", "--methods", "c", "--hidden", "64,32", "--lr=1"]
    assert parse_grid(words, options, "sweep") == {"lr": (0.1, 0.3, 1.0), "methods": (("a", "b"), ("c",)), "hidden": ((64, 32),)}
    assert read_seeds("0-2") == (0, 1, 2) and read_seeds("7, 3-4") == (7, 3, 4)
    assert folder_name({"lr": 0.1, "methods": ("a", "b"), "data_dir": "../x y"}) == "lr-0.1_methods-a+b_data_dir-..-x-y"
    long = [folder_name({"methods": ("m" * 200, end)}) for end in "ab"]
    assert len(set(long)) == 2 and all(len(name) <= 120 for name in long)
