"""Noise for a budget, rounds for a budget: the accountant's own answer, turned round."""

from __future__ import annotations

import math

import pytest

from coterie.privacy.accountant import Budget, Scheme, Spending, noise_for, planned, rounds_for
from coterie.privacy.gaussian import gaussian_eps, gaussian_mu
from coterie.privacy.release import Release


@pytest.mark.parametrize(
    ("budget", "scheme", "rounds"),
    [
        (Budget(epsilon=3.0), Scheme(rate=0.1), 100),
        (Budget(epsilon=1.0, delta=1e-6), Scheme(rate=0.01, split="share", min_cohort=10), 500),
        (Budget(epsilon=3.0), Scheme(rate=0.2, sampling="fixed"), 20),
    ],
)
def test_the_noise_keeps_the_budget_and_hardly_more(budget: Budget, scheme: Scheme, rounds: int) -> None:
    noise = noise_for(budget, scheme, rounds)
    spent, less = (planned(scheme, z, rounds, budget).view(budget.view).epsilon for z in (noise, noise * 0.999))
    assert spent is not None and less is not None and budget.epsilon is not None
    assert spent <= budget.epsilon < less


def test_noise_without_sampling_by_hand() -> None:
    """R rounds of 2 / z together are mu, so z = 2 sqrt(R) / mu in the local view and sqrt(R / m) / mu in the central one."""
    mu = gaussian_mu(4.0, 1e-5)
    assert noise_for(Budget(epsilon=4.0, view="local"), Scheme(), 25) == pytest.approx(2 * 5 / mu, rel=2e-4)
    assert noise_for(Budget(epsilon=4.0, view="central"), Scheme(min_cohort=4), 25) == pytest.approx(5 / 2 / mu, rel=2e-4)
    three = Scheme(rate=0.1, participations=3)
    assert noise_for(Budget(epsilon=4.0, view="local"), three, 25) == pytest.approx(2 * math.sqrt(3) / mu, rel=2e-4)


def test_rounds_for_a_budget_by_hand() -> None:
    budget = Budget(epsilon=4.0, view="central")
    rounds = rounds_for(budget, Scheme(), 7.0)
    assert gaussian_eps(math.sqrt(rounds) / 7.0) <= 4.0 < gaussian_eps(math.sqrt(rounds + 1) / 7.0)
    assert rounds_for(budget, Scheme(), 0.3) == 0


def test_a_budget_is_exceeded_only_above_it() -> None:
    release = Release(round=1, noise=1.0, split="full", min_cohort=1, sampling="everyone", rate=1.0, participants=(0,), secure=True)
    exact = gaussian_eps(math.sqrt(2))
    assert not Spending(Budget(epsilon=exact), [release] * 2).exceeds()
    assert Spending(Budget(epsilon=exact), [release] * 3).exceeds()
    assert not Spending(Budget(), [release] * 3).exceeds()


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (lambda: Budget(epsilon=0.0), "epsilon must be a finite number above 0, found 0"),
        (lambda: Budget(epsilon=math.inf), "epsilon must be a finite number above 0, found inf"),
        (lambda: Budget(delta=0.0), "delta must lie strictly between 0 and 1, found 0"),
        (lambda: Budget(delta=1.0), "delta must lie strictly between 0 and 1, found 1"),
        (lambda: Budget(view="server"), "view must be one of local, central, amplified, found 'server'"),  # type: ignore[arg-type]
        (lambda: Scheme(rate=0.0), "rate must be above 0 and at most 1, found 0"),
        (lambda: Scheme(sampling="everyone", rate=0.1), "Where everyone takes part the rate is 1, found 0.1"),
        (lambda: Scheme(min_cohort=0), "min_cohort must be at least 1, found 0"),
        (lambda: planned(Scheme(), 1.0, 0), "rounds must be at least 1, found 0"),
        (lambda: planned(Scheme(), math.nan, 1), "noise must be a finite number of at least 0, found nan"),
        (lambda: noise_for(Budget(), Scheme(), 10), "Give a target epsilon"),
        (lambda: noise_for(Budget(epsilon=0.1), Scheme(clip_noise=1.0), 10), "because of the noise on the adaptive clip alone"),
    ],
)
def test_out_of_range(attempt, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        attempt()
