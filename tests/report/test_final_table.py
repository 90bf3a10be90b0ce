"""The tables at the end of a run show the numbers of the summary, and fit a narrow terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from coterie.report.table import final_table

MakeRun = Callable[..., Path]


def render(folder: Path) -> str:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(final_table(folder))
    return console.export_text()


def numbers(folder: Path, model: str) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "summary.json").read_text())["results"][model]["accuracy"]
    return found


def test_methods_by_models(tmp_path: Path, make_set: MakeRun) -> None:
    folder = make_set(tmp_path / "s", ["local", "fedavg", "fable"], [0])
    lines = render(folder).splitlines()
    row = next(line for line in lines if line.strip().startswith("fable"))
    for model in ("personal", "global", "local"):
        entry = numbers(folder / "fable", model)
        assert f"{100 * entry['last']:.1f} ± {100 * entry['std']:.1f}" in row
    assert f"{100 * numbers(folder / 'fable', 'personal')['worst10']:.1f}" in row
    assert "11.5  5.40 s" in row  # 2 x 48,040 bytes x 10 clients x 12 rounds, 12 x 0.45 s
    local = next(line for line in lines if line.strip().startswith("local"))
    assert "–" in local and " 0 " in local
    assert "…" not in "".join(lines)


def test_one_run_by_metrics(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "a")
    text = render(folder)
    for model in ("personal", "global", "local"):
        row = next(line for line in text.splitlines() if line.strip().startswith(model))
        assert f"{100 * numbers(folder, model)['last']:.1f} ±" in row
    assert "5.76 MB up, 5.76 MB down, 12 rounds in 5.40 s." in text


def test_nothing_evaluated_yet(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "a", finished=False)
    (folder / "metrics.jsonl").unlink()
    assert final_table(folder) is None
