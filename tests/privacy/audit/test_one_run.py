"""The one-run bound of Steinke, Nasr and Jagielski, against slow arithmetic of its own and values by hand."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binom

from coterie.privacy.audit.one_run import epsilon_of_guesses, middle_of, mu_of_guesses, one_run_bounds, p_value

NORMAL = NormalDist()


def slow_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Theorem 5.2 with sums over single outcomes."""
    q = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    chance = [math.comb(guesses, x) * q**x * (1.0 - q) ** (guesses - x) for x in range(guesses + 1)]
    beta = sum(chance[correct:])
    alpha = max((sum(chance[max(0, correct - i) : correct]) / i for i in range(1, correct + 1)), default=0.0)
    return min(1.0, beta + 2.0 * canaries * delta * alpha)


def slow_refusal(canaries: int, guesses: int, correct: int, mu: float, error: float) -> bool:
    """audit_rh_with_cap as arrays from the top down, with Python's own normal distribution."""
    r, h = {correct: error * correct / canaries}, {correct: error * (guesses - correct) / canaries}
    for i in reversed(range(correct)):
        curve = 1.0 if r[i + 1] >= 1.0 else NORMAL.cdf(NORMAL.inv_cdf(r[i + 1]) - mu)
        h[i] = max(h[i + 1], curve)
        r[i] = r[i + 1] + i / (guesses - i) * (h[i] - h[i + 1])
    return r[0] + h[0] >= guesses / canaries


def test_all_of_a_thousand_right() -> None:
    p = 0.05 ** (1 / 1000)
    assert epsilon_of_guesses(1000, 1000, 1000, delta=0.0) == pytest.approx(math.log(p / (1 - p)), rel=1e-8)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
@pytest.mark.parametrize(("canaries", "guesses", "correct"), [(100, 40, 38), (60, 60, 45), (200, 50, 50), (50, 20, 0)])
def test_p_values_are_those_of_sums_over_single_outcomes(canaries: int, guesses: int, correct: int, delta: float) -> None:
    for epsilon in (0.0, 0.7, 3.0):
        slow = slow_p_value(canaries, guesses, correct, epsilon, delta)
        assert p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(slow, rel=1e-9, abs=1e-14)


def test_the_bound_is_where_the_p_value_meets_the_error() -> None:
    found = epsilon_of_guesses(500, 200, 180, delta=1e-5, confidence=0.9)
    assert slow_p_value(500, 200, 180, found - 1e-6, 1e-5) < 0.1 < slow_p_value(500, 200, 180, found + 1e-6, 1e-5)


def test_a_larger_delta_explains_more() -> None:
    found = [epsilon_of_guesses(500, 100, 98, delta=delta) for delta in (0.0, 1e-6, 1e-4, 1e-2)]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_guesses_as_good_as_a_coin_refute_nothing() -> None:
    assert epsilon_of_guesses(100, 100, 55, delta=0.0) == 0.0  # P[X >= 55] = 0.18 for a fair coin
    assert mu_of_guesses(100, 100, 55) == 0.0


@pytest.mark.parametrize(("canaries", "guesses", "correct"), [(100, 100, 90), (300, 150, 140), (300, 80, 80)])
def test_the_gaussian_bound_is_where_the_slow_test_ceases_to_refute(canaries: int, guesses: int, correct: int) -> None:
    found = mu_of_guesses(canaries, guesses, correct)
    assert slow_refusal(canaries, guesses, correct, 0.9999 * found, 0.05)
    assert not slow_refusal(canaries, guesses, correct, 1.0001 * found, 0.05)
    if guesses == canaries:  # every coin is guessed: no attacker on mu-GDP is right more often than Phi(mu / 2)
        assert found < 2.0 * NORMAL.inv_cdf(correct / guesses)


def test_bounds_of_a_gaussian_training_hold_as_often_as_they_say() -> None:
    rng, failed = np.random.default_rng(0), 0
    for _ in range(60):
        included = rng.random(60) < 0.5
        found = one_run_bounds(rng.standard_normal(60) + included, included, delta=1e-5, confidence=0.8)
        failed += found.mu > 1.0 or found.epsilon > 4.3772
    assert failed <= binom.ppf(0.999, 60, 0.2)


def test_scores_that_tell_every_coin_reach_the_ceiling() -> None:
    included = np.random.default_rng(1).random(400) < 0.5
    found = one_run_bounds(np.where(included, 1.0, 0.0) + 0.01 * np.random.default_rng(2).random(400), included, delta=1e-5)
    assert found.epsilon == found.ceiling == epsilon_of_guesses(400, 400, 400, delta=1e-5, confidence=1 - 0.05 / 4)
    assert found.mu == mu_of_guesses(400, 400, 400, confidence=1 - 0.05 / 4)


def test_the_middle_lies_between_two_heaps_of_unequal_size() -> None:
    assert middle_of(np.array([0.0, 0.2, 0.1, 5.0, 5.2, 0.1, 0.1])) == pytest.approx(2.6)  # (0.1 + 5.1) / 2


def test_shuffled_coins_are_not_guessed() -> None:
    rng = np.random.default_rng(5)
    included = rng.random(600) < 0.5
    scores = rng.standard_normal(600) + 10.0 * included
    assert one_run_bounds(scores, included, delta=1e-5).epsilon > 2.0
    shuffled = one_run_bounds(scores, rng.permutation(included), delta=1e-5)
    assert shuffled.epsilon < 0.3
    assert shuffled.mu < 0.3


def test_bad_input_is_told_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="Right guesses <= guesses <= canaries must hold, found 5 right ones of 4 about 10"):
        epsilon_of_guesses(10, 4, 5, delta=0.0)
    with pytest.raises(ValueError, match="at least 20 canaries with finite scores, found 10"):
        one_run_bounds(np.zeros(10), np.arange(10) < 5, delta=1e-5)
    with pytest.raises(ValueError, match="All 30 coins fell on the same side"):
        one_run_bounds(np.zeros(30), np.ones(30, dtype=bool), delta=1e-5)
    with pytest.raises(ValueError, match="delta must lie strictly between 0 and 1, found 2"):
        one_run_bounds(np.zeros(30), np.arange(30) < 5, delta=2.0)
