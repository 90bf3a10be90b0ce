"""The command line called in this process, and what it wrote."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from coterie.cli import main

SMALL = ("--clients", "3", "--rounds", "2", "--epochs", "1", "--backend", "loop")


def call(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    capsys.readouterr()
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def succeed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    code, out, err = call(capsys, *words)
    assert code == 0 and not err, err
    return out


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """The one line on standard error with which a command ends."""
    code, _, err = call(capsys, *words)
    assert code == 2
    assert err.startswith("coterie: ") and err.count("\n") == 1 and "Traceback" not in err, err
    return err.removeprefix("coterie: ").strip()


def numbers(folder: Path) -> dict[str, Any]:
    """Every number of the runs below a folder that does not depend on the clock."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("clients.csv")):
        run = path.parent
        summary = json.loads((run / "summary.json").read_text())
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            line.pop("seconds", None)
        kept = {key: summary[key] for key in ("results", "bytes", "rounds", "seed")}
        found[str(run.relative_to(folder))] = (kept, rows, lines, (run / "wire.jsonl").read_text())
    assert found
    return found
