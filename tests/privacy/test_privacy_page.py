"""docs/privacy.md: its example runs, and the numbers it quotes are the command line's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from coterie.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
WORDS = " ".join(PAGE.split())


def commands() -> list[str]:
    found = [line.partition("#")[0].strip() for line in PAGE.splitlines() if line.startswith("coterie privacy ")]
    return [re.sub(r" --picture \S+", "", line) for line in found]


def numbers(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*command.split()[1:], "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_example_runs_and_keeps_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    exec(compile(source, "docs/privacy.md", "exec"), {"__name__": "page"})
    summary = json.loads((tmp_path / "runs" / "mine" / "summary.json").read_text())
    assert 0 < summary["rounds"] < 20 and "exceed the budget" in summary["stopped"]
    assert 0 < summary["privacy"]["epsilon"] <= 3.0 and summary["privacy"]["view"] == "amplified"
    account = numbers(capsys, "coterie privacy account runs/mine")["runs"][0]
    assert account["views"] == summary["privacy"]["views"]


def test_the_plans_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    models, hospitals = (line for line in commands() if " plan " in line)
    plan = numbers(capsys, models)
    views = plan["views"]
    told = re.search(r"noise multiplier ([\d.]+) .*?local ([\d.]+), central ([\d.]+), amplified ([\d.]+), and ([\d.]+) \(replaced", WORDS)
    assert told is not None
    exact = [plan["noise"], *(views[name]["epsilon"] for name in ("local", "central", "amplified")), views["amplified"]["sizes_known_epsilon"]]
    assert [float(number) for number in told.groups()] == pytest.approx(exact, rel=1e-3)
    assert f"says {numbers(capsys, hospitals)['noise']:.5g}," in WORDS


def test_the_account_of_rounds_that_nobody_ran(capsys: pytest.CaptureFixture[str]) -> None:
    command = next(line for line in commands() if " account --noise" in line)
    views = numbers(capsys, command)["views"]
    assert f"local {views['local']['epsilon']:.2f}, amplified {views['amplified']['epsilon']:.2f}" in WORDS
