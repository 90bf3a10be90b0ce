"""The result of a comparison: its numbers, and how they read in a terminal."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Literal

from rich.table import Table

from coterie.metrics import Direction
from coterie.report.records import Json
from coterie.report.wording import NOTHING, count, megabytes, metric_name, p_value, show, show_spread

Test = Literal["paired", "welch"]
Correction = Literal["holm", "none"]
Value = Literal["last", "best"]


@dataclass(frozen=True)
class Spread:
    """Mean and deviation over seeds; over the clients where there is one seed."""

    mean: float
    std: float
    over: Literal["seeds", "clients"]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Against:
    """A method minus the baseline. `p` is nan where nothing was tested, and `reason` says why."""

    difference: float
    low: float
    high: float
    p: float
    corrected: float
    num: int
    over: str
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """One method."""

    method: str
    paths: tuple[str, ...]
    seeds: tuple[int, ...]
    last: Spread
    best: Spread
    worst10: float
    bytes_up: float
    bytes_down: float
    seconds: float
    against: Against | None = None


@dataclass(frozen=True)
class Comparison:
    """Methods from the best to the worst, each against the baseline."""

    metric: str
    model: str
    direction: Direction
    value: Value
    test: Test
    correct: Correction
    baseline: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        """Everything, with null for numbers that do not exist."""
        plain: dict[str, Json] = json.loads(json.dumps(asdict(self)), parse_constant=lambda _: None)
        return plain

    def method_text(self) -> str:
        """What was tested, in a sentence."""
        tested = [row.against for row in self.rows if row.against and not math.isnan(row.against.p)]
        if not tested:
            return "No difference was tested."
        name = "Paired t test" if self.test == "paired" else "Welch's t test"
        over = {f"{against.num} {against.over}" for against in tested}
        correction = (
            f", Holm's correction over {count(len(tested), 'comparison')}" if self.correct == "holm" else ", not corrected"
        )
        caution = ""
        if any(against.over == "clients" for against in tested):
            caution = " A test over the clients of one seed speaks about these clients, not about another seed."
        return f"{name} against {self.baseline} over {' / '.join(sorted(over))}{correction}; 95 % interval.{caution}"

    def table(self) -> Table:
        """For the terminal."""
        measure = f"{self.model} {metric_name(self.metric).lower()}"
        table = Table(title=f"{measure}, test part of the clients", title_justify="left", caption_justify="left")
        table.caption = "\n".join([self.method_text(), *self.notes])
        table.add_column("method", no_wrap=True)
        head = ["seeds", "last", "best by val.", "worst 10 %", "MB up", "MB down", f"vs {self.baseline} [95 %]"]
        for name in [*head, "p (Holm)" if self.correct == "holm" else "p"]:
            table.add_column(name, justify="right")
        for number, row in enumerate(self.rows):
            table.add_row(*self._cells(row), style="bold" if number == 0 else "")
        return table

    def _cells(self, row: Row) -> list[str]:
        return [
            row.method,
            str(len(row.seeds)),
            show_spread(row.last.mean, row.last.std, self.metric),
            show_spread(row.best.mean, row.best.std, self.metric),
            show(row.worst10, self.metric),
            megabytes(row.bytes_up),
            megabytes(row.bytes_down),
            *difference_words(row.against, self.metric),
        ]


def difference_words(against: Against | None, metric: str) -> tuple[str, str]:
    """The difference with its interval, and the p-value, "not tested" where there is none."""
    if against is None:
        return "baseline", NOTHING
    if math.isnan(against.difference):
        return NOTHING, "not tested"
    sign = "+" if against.difference > 0 else ""
    words = sign + show(against.difference, metric)
    if not math.isnan(against.low) and not math.isnan(against.p):
        words += f" [{show(against.low, metric)}, {show(against.high, metric)}]"
    return words, "not tested" if math.isnan(against.p) else p_value(against.corrected)
