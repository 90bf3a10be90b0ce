"""The result of a comparison: its numbers, and how they read in a terminal."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Literal

from rich import box
from rich.table import Table

from coterie.metrics import Direction
from coterie.report.records import Json
from coterie.report.wording import NOTHING, bare, bare_spread, count, megabytes, metric_name, p_value, unit

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
        title = f"{self.model} {metric_name(self.metric, inside=True)}{unit(self.metric)}, test parts of the clients"
        table = terminal_table(title)
        legend = "best: at the round chosen on validation; worst: worst 10 % of clients; MB: up and down, all clients."
        table.caption = "\n".join([self.method_text(), legend, *self.notes])
        table.add_column("method", overflow="fold")
        for name in ["seeds", "last", "best", "worst", "MB"]:
            table.add_column(name, justify="right")
        table.add_column(f"vs {self.baseline if len(self.baseline) <= 16 else 'baseline'}", justify="right", no_wrap=True)
        table.add_column("p", justify="right", no_wrap=True)
        for number, row in enumerate(self.rows):
            table.add_row(*self._cells(row), style="bold" if number == 0 else "")
        return table

    def _cells(self, row: Row) -> list[str]:
        return [
            row.method,
            str(len(row.seeds)),
            bare_spread(row.last.mean, row.last.std, self.metric),
            bare(row.best.mean, self.metric),
            bare(row.worst10, self.metric),
            megabytes(row.bytes_up + row.bytes_down),
            *difference_words(row.against, self.metric),
        ]


def difference_words(against: Against | None, metric: str) -> tuple[str, str]:
    """The difference with its interval, and the p-value, "not tested" where there is none."""
    if against is None:
        return "baseline", NOTHING
    if math.isnan(against.difference):
        return NOTHING, "not tested"
    words = ("+" if against.difference > 0 else "") + bare(against.difference, metric)
    if math.isnan(against.p):
        return words, "not tested"
    return f"{words} [{bare(against.low, metric)}, {bare(against.high, metric)}]", p_value(against.corrected)


def terminal_table(title: str) -> Table:
    """Rules only where they help, so that a table of methods fits 80 columns."""
    return Table(
        title=title, title_style="bold", title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1), pad_edge=False,
    )  # fmt: skip
