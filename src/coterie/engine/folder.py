"""The run folder: what tools and people read (the contract stands in `docs/architecture.md`)."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.metrics.clients import better, summarise
from coterie.metrics.metric import Direction

LOGS = ("metrics.jsonl", "clients.csv", "wire.jsonl")


class RunFolder:
    """Writes one run's logs; every line of a round is written at once when the round is committed."""

    def __init__(self, path: Path, metrics: Sequence[str]) -> None:
        self.path = path
        self._columns = ("round", "model", "split", "client", "name", "examples", *metrics)

    def begin(self) -> None:
        for log in LOGS:  # a run that was killed before its first checkpoint may have left lines
            (self.path / log).write_text("", encoding="utf-8")
        (self.path / "clients.csv").write_text(_csv_line(self._columns), encoding="utf-8")

    def sizes(self) -> dict[str, int]:
        return {log: (self.path / log).stat().st_size for log in LOGS}

    def cut_back(self, sizes: Mapping[str, int]) -> None:
        """Forget every line after a checkpoint."""
        for log, size in sizes.items():
            path = self.path / log
            found = path.stat().st_size if path.exists() else 0
            if found < size:
                raise ValueError(f"'{path}' has {found} bytes, but its checkpoint knows {size}: lines are lost. Start a new run.")
            os.truncate(path, size)

    def lines(self, log: str, lines: Iterable[Mapping[str, Any]]) -> None:
        with (self.path / log).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(plain(line)) + "\n" for line in lines)

    def clients(self, rows: Iterable[Mapping[str, Any]]) -> None:
        with (self.path / "clients.csv").open("a", encoding="utf-8") as file:
            file.writelines(_csv_line([row.get(column, "") for column in self._columns]) for row in rows)

    def read(self, log: str) -> list[dict[str, Any]]:
        lines = []
        for number, line in enumerate((self.path / log).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            try:
                lines.append(json.loads(line))
            except ValueError:
                raise ValueError(f"Line {number} of '{self.path / log}' is damaged: {line[:80]!r}. Mend it, or start a new run.") from None
        return lines

    def described(self) -> dict[str, Any] | None:
        """What run.json says; nothing where it is lost or damaged, since a run does not need it to go on."""
        try:
            return read_json(self.path / "run.json")
        except (OSError, ValueError):
            return None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a whole JSON file, or nothing."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(plain(content), indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def evaluation_lines(
    scores: Mapping[tuple[str, str], Mapping[int, Mapping[str, float]]], directions: Mapping[str, Direction], head: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """One line per (model, split): means over clients, with spread and worst tenth."""
    lines = []
    for (model, split), by_client in scores.items():
        over = summarise(list(by_client.values()), directions)
        lines.append(
            {
                **head, "split": split, "model": model, "clients": len(by_client),
                **{name: value.mean for name, value in over.items()},
                "std": {name: value.std for name, value in over.items()},
                "worst10": {name: value.worst10 for name, value in over.items()},
            }
        )  # fmt: skip
    return lines


def results(lines: Sequence[Mapping[str, Any]], main: str, directions: Mapping[str, Direction]) -> dict[str, Any]:
    """The summary's results. "best" is the test value of the round that is best on validation data."""
    found: dict[str, Any] = {}
    scored = [line for line in lines if "split" in line]
    for model in dict.fromkeys(line["model"] for line in scored):
        tests = [line for line in scored if line["model"] == model and line["split"] == "test"]
        if not tests:
            continue
        best_round = _best_round([x for x in scored if x["model"] == model and x["split"] == "validation"], main, directions)
        best = next((line for line in tests if line["round"] == best_round), None)
        central = [line for line in scored if line["model"] == model and line["split"] == "central"]
        last = tests[-1]
        found[model] = {
            name: {
                "last": last[name],
                "best": best[name] if best else None,
                "best_round": best_round,
                "mean": last[name],
                "std": last["std"][name],
                "worst10": last["worst10"][name],
                **({"central": central[-1].get(name)} if central else {}),
            }
            for name in last["std"]
        }
    return found


def _best_round(lines: Sequence[Mapping[str, Any]], main: str, directions: Mapping[str, Direction]) -> int | None:
    best: Mapping[str, Any] | None = None
    for line in lines:
        if line.get(main) is not None and (best is None or better(line[main], best[main], directions[main])):
            best = line
    return None if best is None else int(best["round"])


def _csv_line(values: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


def plain(value: Any) -> Any:
    """JSON has neither NaN nor infinity: an undefined number is null, a diverged loss the largest number there is."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else math.copysign(sys.float_info.max, value)
    return value
