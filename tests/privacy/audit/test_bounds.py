"""Lower bounds from scores, against exact tails, numbers by hand and mechanisms whose epsilon is known."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.metrics import roc_auc_score

from coterie.privacy.audit.bounds import (
    auc,
    bounds_of,
    epsilon_of_rates,
    estimated_mu,
    lower_bound_of,
    mu_of_rates,
    tpr_at,
    upper_bound_of,
)
from coterie.privacy.audit.canaries import permuted_auc

NORMAL = NormalDist()


@pytest.mark.parametrize(("successes", "trials"), [(1, 10), (7, 10), (10, 10), (490, 500)])
def test_a_lower_bound_is_the_probability_at_which_so_many_successes_are_just_unlikely(successes: int, trials: int) -> None:
    low = float(lower_bound_of(successes, trials, 0.95))
    assert binom.sf(successes - 1, trials, low) == pytest.approx(0.05, rel=1e-9)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (9, 10), (10, 500)])
def test_an_upper_bound_is_the_probability_at_which_so_few_successes_are_just_unlikely(successes: int, trials: int) -> None:
    high = float(upper_bound_of(successes, trials, 0.99))
    assert binom.cdf(successes, trials, high) == pytest.approx(0.01, rel=1e-9)


def test_nothing_and_everything_are_bounded_by_nothing_on_their_own_side() -> None:
    assert float(lower_bound_of(0, 10, 0.95)) == 0.0
    assert float(upper_bound_of(10, 10, 0.95)) == 1.0
    assert float(upper_bound_of(0, 100, 0.95)) == pytest.approx(1 - 0.05 ** (1 / 100))  # the rule of three: 0.0295


def test_epsilon_of_rates_by_hand() -> None:
    assert float(epsilon_of_rates(0.8, 0.1, 0.0)) == pytest.approx(math.log(8.0))  # 0.8 / 0.1 beats 0.9 / 0.2
    assert float(epsilon_of_rates(0.99, 0.5, 0.0)) == pytest.approx(math.log(50.0))  # TNR .5 beside FNR .01
    assert float(epsilon_of_rates(0.8, 0.1, 0.05)) == pytest.approx(math.log(7.5))
    assert float(epsilon_of_rates(0.1, 0.3, 0.0)) == 0.0
    assert float(epsilon_of_rates(0.01, 0.9, 0.2)) == 0.0  # delta explains all of it


def test_mu_of_rates_by_hand() -> None:
    assert float(mu_of_rates(0.8413447460685429, 0.5)) == pytest.approx(1.0)
    assert float(mu_of_rates(0.9, 0.05)) == pytest.approx(NORMAL.inv_cdf(0.9) - NORMAL.inv_cdf(0.05))
    assert float(mu_of_rates(0.0, 0.5)) == float(mu_of_rates(0.9, 1.0)) == 0.0


def test_area_and_rate_agree_with_scikit_learn_and_counting() -> None:
    rng = np.random.default_rng(0)
    without, with_canary = rng.integers(0, 8, 60).astype(float), rng.integers(2, 10, 40).astype(float)
    truth = np.concatenate([np.zeros(60), np.ones(40)])
    assert auc(without, with_canary) == pytest.approx(roc_auc_score(truth, np.concatenate([without, with_canary])))
    assert tpr_at(0.1, np.arange(1.0, 101.0), np.array([50.0, 90.0, 92.0, 99.0])) == 0.5  # the 90 % quantile is 90.1


def test_the_fitted_distance_by_hand() -> None:
    # means 0 and 3, both with squares 1 + 0 + 1 around them: spread sqrt(4 / 4)
    assert estimated_mu(np.array([-1.0, 0.0, 1.0]), np.array([2.0, 3.0, 4.0])) == pytest.approx(3.0)
    assert estimated_mu(np.array([2.0, 3.0, 4.0]), np.array([-1.0, 0.0, 1.0])) == 0.0
    assert estimated_mu(np.zeros(3), np.ones(3)) == math.inf


def test_a_threshold_is_judged_by_scores_that_did_not_choose_it() -> None:
    without = np.zeros(400)
    with_canary = np.where(np.arange(400) % 2 == 0, 1.0, 0.0)  # only the half that chooses is told apart
    assert bounds_of(without, with_canary, delta=1e-5).epsilon == 0.0
    assert bounds_of(without, with_canary[np.r_[1, :399]], delta=1e-5).epsilon == 0.0


def test_scores_that_tell_all_reach_the_ceiling_and_no_more() -> None:
    found = bounds_of(np.zeros(1000), np.ones(1000), delta=1e-5)
    rate = 0.0125 ** (1 / 500)  # 500 of 500 with a quarter of the error
    assert found.epsilon == pytest.approx(math.log((rate - 1e-5) / (1 - rate)))
    assert found.mu == pytest.approx(2 * NORMAL.inv_cdf(rate))
    assert found.epsilon == pytest.approx(found.ceiling)
    assert found.gaussian_epsilon == pytest.approx(found.gaussian_ceiling)


def test_randomised_response_is_never_said_to_lose_more_than_it_does_and_nearly_as_much() -> None:
    rng, truth = np.random.default_rng(1), math.log(3.0)
    without, with_canary = (rng.random(20_000) < 0.25).astype(float), (rng.random(20_000) < 0.75).astype(float)
    assert 0.94 * truth < bounds_of(without, with_canary, delta=1e-9).epsilon < truth


def test_bounds_hold_as_often_as_they_say() -> None:
    """400 audits of a mechanism that is exactly 1-Gaussian-DP: at 80 % confidence, four bounds may fail in 20 % of them."""
    rng, failed = np.random.default_rng(2), 0
    for _ in range(400):
        found = bounds_of(rng.standard_normal(200), 1.0 + rng.standard_normal(200), delta=1e-5, confidence=0.8)
        failed += found.mu > 1.0 or found.epsilon > 4.3772
    assert failed <= binom.ppf(0.999, 400, 0.2)
    assert failed > 0  # else they would not be bounds but something far below


def test_without_a_difference_nothing_is_found() -> None:
    rng = np.random.default_rng(3)
    found = bounds_of(rng.standard_normal(5000), rng.standard_normal(5000), delta=1e-5)
    assert found.epsilon < 0.1
    assert found.mu < 0.05


def test_permuted_labels_tell_nothing() -> None:
    """AT-T7: the area is one half, up to the error of 2000 scores of each kind (Mann-Whitney)."""
    rng = np.random.default_rng(4)
    without, with_canary = rng.standard_normal(2000), 3.0 + rng.standard_normal(2000)
    error = math.sqrt((4000 + 1) / (12 * 2000 * 2000))
    assert auc(without, with_canary) > 0.95
    assert abs(permuted_auc(without, with_canary, seed=0) - 0.5) < 3 * error


@pytest.mark.parametrize(
    ("count", "delta", "confidence", "told"),
    [
        (10, 1e-5, 0.95, "at least 20 scores.*found 10"),
        (50, 0.0, 0.95, "delta must lie strictly between 0 and 1, found 0"),
        (50, 1.5, 0.95, "delta must lie strictly between 0 and 1, found 1.5"),
        (50, 1e-5, 1.0, "confidence must be at least 0.5 and below 1, found 1"),
    ],
)
def test_bad_input_is_told_in_one_sentence(count: int, delta: float, confidence: float, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        bounds_of(np.zeros(count), np.ones(count), delta=delta, confidence=confidence)


def test_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="finite scores"):
        bounds_of(np.zeros(50), np.full(50, np.nan), delta=1e-5)
