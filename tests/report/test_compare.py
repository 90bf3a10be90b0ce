"""Comparisons against SciPy and by hand, and what is said where there is too little to test."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from scipy import stats

from coterie.report.compare import compare

MakeRun = Callable[..., Path]


def last(folder: Path, model: str = "personal", number: str = "last") -> float:
    value: float = json.loads((folder / "summary.json").read_text())["results"][model]["accuracy"][number]
    return value


def clients(folder: Path, round: int = 12) -> list[float]:
    with (folder / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [
        float(row["accuracy"]) for row in rows if (row["model"], row["split"], row["round"]) == ("personal", "test", str(round))
    ]


def test_seeds_are_paired(tmp_path: Path, make_set: MakeRun) -> None:
    folder = make_set(tmp_path / "s", ["fedavg", "fable", "local"], [0, 1, 2])
    result = compare([folder])
    values = {method: [last(folder / method / f"seed-{seed}") for seed in range(3)] for method in ("fedavg", "fable", "local")}
    p = {method: stats.ttest_rel(values[method], values["fable"]).pvalue for method in ("fedavg", "local")}
    assert [row.method for row in result.rows] == ["fable", "local", "fedavg"] and result.baseline == "fable"
    by_name = {row.method: row for row in result.rows}
    low, high = sorted(p.values())
    corrected = {min(p, key=lambda name: p[name]): 2 * low, max(p, key=lambda name: p[name]): max(2 * low, high)}
    for method in ("fedavg", "local"):
        against = by_name[method].against
        assert against is not None and (against.num, against.over) == (3, "seeds")
        assert against.p == pytest.approx(p[method])
        assert against.corrected == pytest.approx(corrected[method])
        interval = stats.ttest_rel(values[method], values["fable"]).confidence_interval()
        assert (against.low, against.high) == pytest.approx((interval.low, interval.high))
    assert by_name["fable"].against is None
    mean = sum(values["fable"]) / 3
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values["fable"]) / 2)
    spread = by_name["fable"].last
    assert (spread.mean, spread.std, spread.over) == (pytest.approx(mean), pytest.approx(deviation), "seeds")
    assert result.method_text() == (
        "Paired t test against fable over 3 seeds, Holm's correction over 2 comparisons; 95 % interval."
    )


def test_one_seed_is_tested_over_its_clients(tmp_path: Path, make_set: MakeRun) -> None:
    folder = make_set(tmp_path / "s", ["fedavg", "fable"], [0])
    result = compare([folder], baseline="fedavg", correct="none")
    row = next(row for row in result.rows if row.method == "fable")
    a, b = clients(folder / "fable"), clients(folder / "fedavg")
    assert row.against is not None and (row.against.num, row.against.over) == (10, "clients")
    assert row.against.p == row.against.corrected == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert row.against.difference == pytest.approx(sum(a) / 10 - sum(b) / 10)
    assert "speaks about these clients, not about another seed" in result.method_text()
    assert "not corrected" in result.method_text()
    unpaired = compare([folder], baseline="fedavg", test="welch").rows[0].against
    assert unpaired is not None and unpaired.p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)


def test_the_chosen_round_can_be_compared(tmp_path: Path, make_set: MakeRun) -> None:
    folder = make_set(tmp_path / "s", ["fedavg", "fable"], [0], rounds=20)
    best_round = {
        m: json.loads((folder / m / "summary.json").read_text())["results"]["personal"]["accuracy"]["best_round"]
        for m in ("fedavg", "fable")
    }
    result = compare([folder], value="best", baseline="fedavg")
    against = result.rows[0].against
    expected = stats.ttest_rel(*(clients(folder / m, best_round[m]) for m in ("fable", "fedavg")))
    assert against is not None and against.p == pytest.approx(expected.pvalue)
    assert result.rows[0].best.mean == last(folder / "fable", number="best")


def test_other_data_is_not_tested(tmp_path: Path, make_run: MakeRun) -> None:
    """Seeds 0 and 1 part the data differently: their clients are not the same clients."""
    folders = [make_run(tmp_path / "a", method="fedavg", seed=0), make_run(tmp_path / "b", method="fable", seed=1)]
    result = compare(folders)
    against = result.rows[1].against
    assert against is not None and math.isnan(against.p) and "do not hold the same test examples" in against.reason
    assert result.method_text() == "No difference was tested."
    assert any(note.startswith("fedavg is not tested: one seed each") for note in result.notes)


def test_unequal_numbers_of_seeds(tmp_path: Path, make_set: MakeRun, make_run: MakeRun) -> None:
    folder = make_set(tmp_path / "s", ["fable"], [0, 1, 2])
    alone = make_run(tmp_path / "one", method="fedavg", seed=0)
    against = compare([folder, alone]).rows[1].against
    assert (
        against is not None
        and against.reason == "1 seed in common, but a test over seeds needs 2. Run the same seeds for both."
    )
    text = render(compare([folder, alone]).table())
    assert "not tested" in text and "needs 2. Run the same seeds" in " ".join(text.split())


def test_a_method_without_that_model_is_left_out_and_said(tmp_path: Path, make_set: MakeRun) -> None:
    folder = make_set(tmp_path / "s", ["local", "fedavg", "fable"], [0])
    result = compare([folder], model="global")
    assert {row.method for row in result.rows} == {"fedavg", "fable"}
    assert "local, seed 0: no global accuracy; left out." in result.notes


def test_lower_is_better_for_a_loss(tmp_path: Path, make_set: MakeRun) -> None:
    folder = make_set(tmp_path / "s", ["fedavg", "fable"], [0])
    assert compare([folder], metric="loss").rows[0].method == "fable"
    only = make_set(tmp_path / "l", ["fedavg", "fable"], [0], accuracy=False)
    assert compare([only]).metric == "loss"


def test_json_holds_everything(tmp_path: Path, make_set: MakeRun) -> None:
    folder = make_set(tmp_path / "s", ["fedavg", "fable"], [0])
    compare([folder], json_file=tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text()
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (found["metric"], found["model"], found["baseline"], found["test"]) == ("accuracy", "personal", "fable", "paired")
    row = found["rows"][0]
    assert (row["method"], row["seeds"], row["last"]["values"]) == ("fable", [0], [last(folder / "fable")])
    assert row["bytes_up"] == 48_040 * 10 * 12 and row["against"] is None


def test_the_table_fits_80_columns(tmp_path: Path, make_set: MakeRun) -> None:
    text = render(compare([make_set(tmp_path / "s", ["fedavg", "fable"], [0, 1])]).table())
    assert "…" not in text and "vs fable" in text
    assert any("fedavg" in line and "[" in line and "]" in line for line in text.splitlines())


def test_mistakes_are_named(tmp_path: Path, make_set: MakeRun) -> None:
    folder = make_set(tmp_path / "s", ["fedavg", "fable"], [0])
    with pytest.raises(ValueError, match=r"No run has the metric 'auroc' of the personal model.*Found: .*personal accuracy"):
        compare([folder], metric="auroc")
    with pytest.raises(ValueError, match=r"The baseline 'ditto' is not among the methods\. Found: fedavg, fable\."):
        compare([folder], baseline="ditto")
    with pytest.raises(ValueError, match=r"test must be one of paired, welch, found 'z'"):
        compare([folder], test="z")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"nothing to compare"):
        compare([])
    with pytest.raises(ValueError, match=r"cannot be written to .* Choose a path that you may write"):
        compare([folder], json_file=tmp_path / "no" / "c.json")


def render(table: object) -> str:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(table)
    return console.export_text()
