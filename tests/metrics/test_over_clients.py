"""Summaries over clients, by hand."""

from __future__ import annotations

import math

import pytest

from coterie.metrics import better, over_clients, summarise


def test_mean_deviation_and_worst_tenth() -> None:
    """0.00 .. 0.19: mean .095, variance (20^2 - 1) / 12 in steps of .01, worst tenth the mean of two."""
    values = [i / 100 for i in range(20)]
    got = over_clients(values, "max")
    assert (got.mean, got.counted, got.skipped) == (pytest.approx(0.095), 20, 0)
    assert got.std == pytest.approx(math.sqrt(399 / 12) / 100)
    assert got.worst10 == pytest.approx(0.005)
    assert over_clients(values, "min").worst10 == pytest.approx(0.185)


@pytest.mark.parametrize(("count", "tail"), [(1, 1), (9, 1), (19, 1), (20, 2), (29, 2), (100, 10)])
def test_the_worst_tenth_is_rounded_down_but_never_empty(count: int, tail: int) -> None:
    expected = sum(range(tail)) / tail
    assert over_clients([float(i) for i in reversed(range(count))], "max").worst10 == expected


def test_undefined_numbers_are_skipped_and_counted() -> None:
    got = over_clients([0.5, math.nan, 1.0], "max")
    assert (got.mean, got.std, got.worst10, got.counted, got.skipped) == (0.75, 0.25, 0.5, 2, 1)
    nothing = over_clients([math.nan], "max")
    assert math.isnan(nothing.mean) and (nothing.counted, nothing.skipped) == (0, 1)


def test_a_diverged_client_is_not_skipped() -> None:
    got = over_clients([1.0, math.inf, 2.0], "min")
    assert got.mean == math.inf and got.worst10 == math.inf and math.isnan(got.std)


def test_summaries_of_several_metrics() -> None:
    got = summarise([{"accuracy": 0.2, "prevalence": 0.5}, {"accuracy": 0.4}], {"accuracy": "max"})
    assert got["accuracy"].mean == pytest.approx(0.3) and got["accuracy"].worst10 == 0.2
    assert (got["prevalence"].mean, got["prevalence"].skipped) == (0.5, 1) and math.isnan(got["prevalence"].worst10)


def test_better_follows_the_direction() -> None:
    assert better(2, 1, "max") and not better(1, 1, "max") and better(1, 2, "min")
    assert better(0.0, math.nan, "max") and not better(math.nan, 0.0, "max") and not better(math.nan, math.nan, "min")
