"""Many clients, one number each: mean, spread, and how the worst-off fare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coterie.metrics.metric import Direction


@dataclass(frozen=True)
class OverClients:
    """Every client counts once, whatever its size; `skipped` clients had no such number (nan)."""

    mean: float
    std: float
    worst10: float
    counted: int
    skipped: int


def over_clients(values: Iterable[float], direction: Direction | None) -> OverClients:
    """Mean, standard deviation and the mean of the worst tenth of the clients.

    The clients are all there are, not a sample of more, so the deviation divides by their number. The worst tenth
    is rounded down but never empty: 1 of 10 to 19 clients, 2 of 20. A number without a direction has no worst end.
    """
    everything = [float(value) for value in values]
    known = sorted(value for value in everything if not math.isnan(value))
    skipped = len(everything) - len(known)
    if not known:
        return OverClients(math.nan, math.nan, math.nan, 0, skipped)
    mean = math.fsum(known) / len(known) if all(map(math.isfinite, known)) else sum(known)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / len(known)) if math.isfinite(mean) else math.nan
    tail = max(1, len(known) // 10)
    worst = {"max": known[:tail], "min": known[-tail:], None: [math.nan]}[direction]
    return OverClients(mean, std, sum(worst) / len(worst), len(known), skipped)


def summarise(rows: Sequence[Mapping[str, float]], directions: Mapping[str, Direction]) -> dict[str, OverClients]:
    """`over_clients` of every metric that any row holds; each row is one client."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: over_clients([row.get(name, math.nan) for row in rows], directions.get(name)) for name in names}


def better(a: float, b: float, direction: Direction) -> bool:
    """Whether `a` is strictly better than `b`; any number beats nan."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(b) and not math.isnan(a)
    return a > b if direction == "max" else a < b
