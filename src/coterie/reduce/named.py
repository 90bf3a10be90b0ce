"""Reductions by the names that the command line knows them by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from coterie.reduce.coordinates import CoordinateMedian, TrimmedMean
from coterie.reduce.geometric_median import GeometricMedian
from coterie.reduce.krum import Krum, MultiKrum
from coterie.reduce.mean import Mean
from coterie.reduce.norm_bound import NormBound
from coterie.reduce.seam import Reduce

ReduceName = Literal["mean", "median", "trimmed", "krum", "multikrum", "normbound", "geomedian"]

_MAKE: dict[str, Callable[[int, int], Reduce]] = {
    "mean": lambda clients, attackers: Mean(),
    "median": lambda clients, attackers: CoordinateMedian(),
    "trimmed": lambda clients, attackers: TrimmedMean(max(attackers, 1) / clients),
    "krum": lambda clients, attackers: Krum(attackers),
    "multikrum": lambda clients, attackers: MultiKrum(attackers),
    "normbound": lambda clients, attackers: NormBound(),
    "geomedian": lambda clients, attackers: GeometricMedian(),
}


REDUCTIONS: dict[str, str] = {
    "mean": "the mean weighted by examples; bounds nobody",
    "median": "the median of every coordinate",
    "trimmed": "the mean of every coordinate without its extremes",
    "krum": "the one update that has most others near it",
    "multikrum": "the mean of the updates that have most others near them",
    "normbound": "the mean of updates cut to the median length",
    "geomedian": "the point of the smallest sum of distances to all updates",
}
"""Every named reduction in a line."""


def named_reduce(name: str, clients: int, attackers: int) -> Reduce:
    """The reduction of this name for rounds of so many clients, made for so many attackers among them."""
    if name not in _MAKE:
        raise ValueError(f"Unknown reduction '{name}'. Use one of: {', '.join(_MAKE)}.")
    if name == "trimmed" and 2 * attackers >= clients:
        raise ValueError(f"A trimmed mean of {clients} clients can't cut {attackers} at either end. Count on fewer attackers.")
    return _MAKE[name](clients, attackers)
