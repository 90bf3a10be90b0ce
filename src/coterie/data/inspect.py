"""A population in numbers: who has how much of what, how skewed that is, and what the leak check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from coterie.data.examples import Finding, Population, View

_SHADES = " ▁▂▃▄▅▆▇█"
_MAX_ROWS = 20
_MAX_CLASSES = 40  # one character each


@dataclass(frozen=True, eq=False)
class Inspection:
    """`sizes` is [clients, 3] (train, validation, test), `counts` [clients, classes] over all three."""

    name: str
    partition: str
    names: tuple[str, ...]
    classes: tuple[str, ...]
    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]
    num_central_test: int
    num_public: int
    findings: tuple[Finding, ...]

    @property
    def distances(self) -> NDArray[np.float64]:
        """Per client, the total variation distance between its labels and everybody's: 0 = alike, 1 = nothing in common."""
        shares = self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1)
        everybody = self.counts.sum(axis=0) / max(self.counts.sum(), 1)
        distances: NDArray[np.float64] = 0.5 * np.abs(shares - everybody).sum(axis=1)
        return distances

    @property
    def skew(self) -> float:
        """Mean distance over clients, each counting the same."""
        return float(self.distances.mean())

    @property
    def classes_per_client(self) -> NDArray[np.int64]:
        held: NDArray[np.int64] = (self.counts > 0).sum(axis=1)
        return held

    def as_json(self) -> dict[str, Any]:
        """Everything as plain lists and numbers, for `run.json` and `--json`."""
        totals = self.sizes.sum(axis=1)
        return {
            "name": self.name,
            "partition": self.partition,
            "clients": len(self.names),
            "names": list(self.names),
            "classes": list(self.classes),
            "sizes": {part: self.sizes[:, i].tolist() for i, part in enumerate(("train", "validation", "test"))},
            "counts": self.counts.tolist(),
            "examples": {"total": int(totals.sum()), "min": int(totals.min()), "median": float(np.median(totals)),
                         "max": int(totals.max())},
            "central_test": self.num_central_test,
            "public": self.num_public,
            "skew": {"mean_total_variation": self.skew, "classes_per_client_mean": float(self.classes_per_client.mean())},
            "findings": [vars(finding) for finding in self.findings],
        }  # fmt: skip

    def rendered(self) -> RenderableType:
        """For the terminal: a summary, what the leak check found, and a line per client (the first twenty)."""
        return Group(self._summary(), *self._notices(), _Clients(self))

    def _summary(self) -> Text:
        totals = self.sizes.sum(axis=1)
        held = self.classes_per_client
        lines = [
            f"{self.name}: {len(self.names):,} clients, {totals.sum():,} examples, {len(self.classes)} classes",
            f"partition    {self.partition}",
            f"per client   {totals.min():,} to {totals.max():,} examples, median {np.median(totals):,.0f}; "
            f"{held.min()} to {held.max()} classes, mean {held.mean():.1f}",
            f"label skew   {self.skew:.3f} (mean total variation distance to everybody's labels; 0 = alike, 1 = disjoint)",
            "parts        " + ", ".join(f"{n:,} {part}" for n, part in zip(self.sizes.sum(0), _PARTS, strict=True)),
        ]
        if self.num_central_test:
            lines[-1] += f"; {self.num_central_test:,} central test"
        if self.num_public:
            lines[-1] += f"; {self.num_public:,} public"
        return Text("\n".join(lines))

    def _notices(self) -> list[Text]:
        if not self.findings:
            return [Text("leak check   nothing found", style="green")]
        return [Text(f"leak check   {f.level}: {f.text}", style="yellow") for f in self.findings]

_PARTS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class _Clients:
    """A line per client, with as many classes as the terminal has room for: a bar that wraps reads as another one."""

    of: Inspection

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = self.of.names[:_MAX_ROWS]
        sizes = [[f"{n:,}" for n in row] for row in self.of.sizes[:_MAX_ROWS]]
        widths = [max(map(len, cells)) for cells in zip(("client", *_PARTS), *([n, *s] for n, s in zip(names, sizes, strict=True)), strict=True)]
        num_classes = self.of.counts.shape[1]
        room = options.max_width - sum(widths) - len("distance") - 2 * (len(widths) + 1)
        shown = min(num_classes, _MAX_CLASSES, max(room, len("classes")))
        grid = Grid("client", *_PARTS, "classes", "distance", box=None, pad_edge=False, header_style="bold")
        for column in grid.columns:
            column.justify, column.no_wrap = "right", True
        grid.columns[0].justify = grid.columns[4].justify = "left"
        for i, name in enumerate(names):
            top = max(int(self.of.counts[i].max(initial=0)), 1)
            bars = "".join(_SHADES[-(-int(n) * 8 // top)] for n in self.of.counts[i, :shown])
            grid.add_row(Text(name), *sizes[i], Text(bars), f"{self.of.distances[i]:.2f}")
        yield grid
        if shown < num_classes:
            yield Text(f"classes: the first {shown} of {num_classes}")
        if len(self.of.names) > _MAX_ROWS:
            yield Text(f"and {len(self.of.names) - _MAX_ROWS:,} more clients")


def inspection(population: Population) -> Inspection:
    """Count what every client of a population holds."""
    classes = population.num_classes or 0
    sizes, counts = [], []
    for own in population.parts:
        views = (own.train, own.validation, own.test)
        sizes.append([len(view) for view in views])
        counts.append(sum(_label_counts(view, classes) for view in views))
    return Inspection(
        name=population.name,
        partition=population.partition,
        names=population.names,
        classes=population.classes or tuple(map(str, range(classes))),
        sizes=np.array(sizes, dtype=np.int64),
        counts=np.array(counts, dtype=np.int64).reshape(len(population), classes),
        num_central_test=0 if population.central_test is None else len(population.central_test),
        num_public=sum(map(len, population.public.values())),
        findings=population.findings,
    )


def _label_counts(view: View, classes: int) -> NDArray[np.int64]:
    return np.bincount(view.column("y").cpu().numpy() if classes else [], minlength=classes).astype(np.int64)
