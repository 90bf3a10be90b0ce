"""Is one method better than another, or did it only get better seeds? t tests, intervals, Holm's correction.

With differences d_i = a_i - b_i, mean d, deviation s (divided by n - 1) of n pairs:
paired (Student 1908): t = d / (s / sqrt n), n - 1 degrees of freedom; interval d +- t_{n-1, 0.975} s / sqrt n.
Unpaired (Welch 1947): t = (mean a - mean b) / e, e^2 = s_a^2 / n_a + s_b^2 / n_b,
with e^4 / ((s_a^2/n_a)^2/(n_a - 1) + (s_b^2/n_b)^2/(n_b - 1)) degrees of freedom (Welch-Satterthwaite).
Holm (1979): the i-th smallest of m p-values is multiplied by m - i + 1 and never falls below the one before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

ROUNDING = 1e-12  # a spread below this share of the values' size is rounding, not spread


@dataclass(frozen=True)
class TTest:
    """A two-sided t test of a difference and its confidence interval.

    Where the values do not vary at all there is no spread to test against: equal means give p = 1, different
    means give nan ("not tested"), never a p of 0.
    """

    difference: float
    low: float
    high: float
    statistic: float
    df: float
    p: float


def paired(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> TTest:
    """Student's paired t test of a - b: the same seeds, or the same clients, for both."""
    if len(a) != len(b):
        raise ValueError(f"A paired test needs as many values on both sides, but got {len(a)} and {len(b)}. Use test='welch'.")
    if len(a) < 2:
        raise ValueError(f"A paired test needs at least 2 pairs, but got {len(a)}. Run more seeds.")
    differences = [x - y for x, y in zip(a, b, strict=True)]
    size = max(map(abs, [*a, *b]))
    error = math.sqrt(_variance(differences) / len(differences))
    return _test(_mean(differences), error, len(differences) - 1, size, level)


def welch(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> TTest:
    """Welch's test of mean(a) - mean(b): independent values with spreads of their own."""
    if min(len(a), len(b)) < 2:
        raise ValueError(f"Welch's test needs at least 2 values on each side, but got {len(a)} and {len(b)}. Run more seeds.")
    share_a, share_b = _variance(a) / len(a), _variance(b) / len(b)
    error = math.sqrt(share_a + share_b)
    spread = share_a**2 / (len(a) - 1) + share_b**2 / (len(b) - 1)
    df = (share_a + share_b) ** 2 / spread if spread > 0 else float(len(a) + len(b) - 2)
    return _test(_mean(a) - _mean(b), error, df, max(map(abs, [*a, *b])), level)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's corrected p-values in the given order; nan (not tested) stays nan and is not counted."""
    tested = sorted((p, position) for position, p in enumerate(p_values) if not math.isnan(p))
    corrected = [math.nan] * len(p_values)
    floor = 0.0
    for rank, (p, position) in enumerate(tested):
        floor = min(1.0, max(floor, p * (len(tested) - rank)))
        corrected[position] = floor
    return corrected


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and deviation of a sample (seeds): divided by n - 1, nan for a single value."""
    return _mean(values), math.sqrt(_variance(values)) if len(values) > 1 else math.nan


def _test(difference: float, error: float, df: float, size: float, level: float) -> TTest:
    if not math.isfinite(difference) or not math.isfinite(error):
        return TTest(difference, math.nan, math.nan, math.nan, df, math.nan)
    if error <= ROUNDING * size:
        same = abs(difference) <= ROUNDING * size
        return TTest(difference, difference, difference, 0.0 if same else math.nan, df, 1.0 if same else math.nan)
    statistic = difference / error
    margin = float(stdtrit(df, 0.5 + level / 2)) * error
    return TTest(difference, difference - margin, difference + margin, statistic, df, 2.0 * float(stdtr(df, -abs(statistic))))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)
