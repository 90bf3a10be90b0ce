"""Tests of differences against published values and SciPy's own tests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from coterie.metrics.statistics import holm, mean_and_deviation, paired, welch

# Student's sleep data (1908), hours of extra sleep under two drugs; the numbers below are those of R's manual.
FIRST = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def test_students_sleep_data_paired() -> None:
    got = paired(FIRST, SECOND)
    assert (got.statistic, got.df, got.p) == (pytest.approx(-4.0621, abs=5e-5), 9, pytest.approx(0.002833, abs=5e-7))
    assert (got.low, got.high) == (pytest.approx(-2.4598858, abs=5e-8), pytest.approx(-0.7001142, abs=5e-8))
    assert got.difference == pytest.approx(-1.58)


def test_students_sleep_data_unpaired() -> None:
    got = welch(FIRST, SECOND)
    assert (got.statistic, got.df) == (pytest.approx(-1.8608, abs=5e-5), pytest.approx(17.776, abs=5e-4))
    assert got.p == pytest.approx(0.07939, abs=5e-6)
    assert (got.low, got.high) == (pytest.approx(-3.3654832, abs=5e-8), pytest.approx(0.2054832, abs=5e-8))


def test_equal_to_scipy_on_random_values() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(0.5, 0.1, 7), rng.normal(0.4, 0.3, 7)
    reference = stats.ttest_rel(a, b)
    got = paired(a.tolist(), b.tolist(), level=0.9)
    interval = reference.confidence_interval(0.9)
    assert (got.statistic, got.p) == pytest.approx((reference.statistic, reference.pvalue), rel=1e-12)
    assert (got.low, got.high) == pytest.approx((interval.low, interval.high), rel=1e-12)
    reference = stats.ttest_ind(a, b[:4], equal_var=False)
    got = welch(a.tolist(), b[:4].tolist())
    assert (got.statistic, got.df, got.p) == pytest.approx((reference.statistic, reference.df, reference.pvalue), rel=1e-12)


def test_holm_by_hand() -> None:
    """4 x .005, then 3 x .01, 2 x .03, and .04 lifted to the .06 before it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_leaves_out_what_was_not_tested() -> None:
    got = holm([0.02, math.nan, 0.03])
    assert got[0] == pytest.approx(0.04) and math.isnan(got[1]) and got[2] == pytest.approx(0.04)


def test_no_spread_is_not_a_proof() -> None:
    same = paired([0.5, 0.7], [0.5, 0.7])
    assert (same.difference, same.p) == (0.0, 1.0)
    constant = paired([0.6, 0.8, 0.7], [0.5, 0.7, 0.6])  # 0.1 each time, up to rounding
    assert constant.difference == pytest.approx(0.1) and math.isnan(constant.p)
    assert math.isnan(paired([math.inf, 1.0], [0.0, 0.0]).p)


def test_deviation_of_a_sample() -> None:
    assert mean_and_deviation([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))
    mean, deviation = mean_and_deviation([4.0])
    assert mean == 4.0 and math.isnan(deviation)


def test_too_little_data_is_said() -> None:
    with pytest.raises(ValueError, match=r"at least 2 pairs, but got 1\. Run more seeds"):
        paired([1.0], [2.0])
    with pytest.raises(ValueError, match=r"got 2 and 3\. Use test='welch'"):
        paired([1.0, 2.0], [2.0, 3.0, 4.0])
    with pytest.raises(ValueError, match=r"got 2 and 1\. Run more seeds"):
        welch([1.0, 2.0], [2.0])
