"""Three views of the same rounds: what each counts, and where there is no number."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from coterie.privacy.accountant import Budget, Scheme, Spending, planned, sampled
from coterie.privacy.gaussian import gaussian_eps
from coterie.privacy.guards import Guards
from coterie.privacy.release import Release

ALL = Release(round=1, noise=2.0, split="full", min_cohort=4, sampling="everyone", rate=1.0, participants=(0, 1, 2), secure=True)


def test_the_local_view_charges_by_participation_and_tells_the_largest() -> None:
    releases = [replace(ALL, participants=who) for who in ((0, 1), (1,), (1, 2), ())]
    local = Spending(releases=releases).view("local")
    # client 1 took part three times, each time mu = 2 / noise = 1
    assert local.epsilon == pytest.approx(gaussian_eps(math.sqrt(3)), rel=1e-12)
    assert "3 times" in local.sampling and "replaced" in local.relation


def test_the_sum_carries_the_noise_of_the_guaranteed_terms() -> None:
    full, share = Spending(releases=[ALL]), Spending(releases=[replace(ALL, split="share")])
    assert full.view("central").epsilon == pytest.approx(gaussian_eps(1 / (2.0 * math.sqrt(4))), rel=1e-12)
    assert share.view("central").epsilon == pytest.approx(gaussian_eps(1 / 2.0), rel=1e-12)
    assert share.view("central").replaced_epsilon == pytest.approx(gaussian_eps(2 / 2.0), rel=1e-12)
    assert full.view("local").epsilon == pytest.approx(gaussian_eps(2 / 2.0), rel=1e-12)
    assert share.view("local").epsilon == pytest.approx(gaussian_eps(2 / (2.0 / math.sqrt(4))), rel=1e-12)


def test_different_releases_add_up() -> None:
    """mu^2 of a Gaussian composition is the sum of 1/z^2."""
    other = replace(ALL, noise=0.7, min_cohort=9, split="share")
    mu = math.sqrt(2 / (2.0**2 * 4) + 1 / 0.7**2)
    assert Spending(releases=[ALL, other, ALL]).view("amplified").epsilon == pytest.approx(gaussian_eps(mu), rel=1e-12)


def test_different_sampled_releases_cost_more_than_either_and_less_than_their_sum() -> None:
    first = replace(ALL, sampling="poisson", rate=0.1, min_cohort=1, noise=1.0)
    second = replace(first, rate=0.2, noise=1.5)
    alone = [Spending(releases=[release] * 10).view("amplified").epsilon for release in (first, second)]
    both = Spending(releases=[first, second] * 10).view("amplified").epsilon
    assert None not in alone and both is not None
    assert max(alone) < both < sum(alone)


def test_the_bit_of_the_adaptive_clip_is_one_more_part_of_the_same_release() -> None:
    view = Spending(releases=[replace(ALL, min_cohort=1, noise=2.0, clip_noise=5.0)]).view("central")
    assert view.epsilon == pytest.approx(gaussian_eps(math.sqrt(1 / 4 + 1 / 25)), rel=1e-12)


def test_the_coordinate_of_the_weight_is_inside_the_multiplier() -> None:
    """The joint vector (a Delta, kappa C a) is at most C sqrt(1 + kappa^2) long; its noise has that factor, so their ratio is `noise`."""
    guards = Guards(clip=3.0, noise=0.7, kappa=0.4)
    longest = 3.0 * math.sqrt(1 + 0.4**2)
    assert guards.noise_std / longest == pytest.approx(0.7, rel=1e-12)


def test_void_rounds_are_charged() -> None:
    empty = replace(ALL, sampling="poisson", rate=0.1, min_cohort=1, participants=())
    ten, eleven = (planned(Scheme(rate=0.1), 2.0, rounds).view("amplified").epsilon for rounds in (10, 11))
    spending = Spending(releases=[replace(empty, participants=(0,))] * 10)
    assert spending.view("amplified").epsilon == pytest.approx(ten, rel=1e-9)
    assert spending.plus([empty]).view("amplified").epsilon == pytest.approx(eleven, rel=1e-9)
    assert ten is not None and eleven is not None and eleven > ten


def test_what_nobody_checked_stands_beside_the_number() -> None:
    open_sum = Spending(releases=[replace(ALL, secure=False)])
    assert open_sum.view("local").only_if is None
    assert "trusted" in (open_sum.view("central").only_if or "")
    assert "work with the server" in (Spending(releases=[ALL]).view("central").only_if or "")
    hidden = Spending(releases=[replace(ALL, sampling="poisson", rate=0.5)]).view("amplified")
    assert "hidden" in (hidden.only_if or "")
    assert open_sum.headline() == "local" and Spending(releases=[ALL]).headline() == "central"
    assert Spending(Budget(epsilon=1.0, view="amplified"), [ALL]).headline() == "amplified"


def test_no_number_is_given_where_none_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = Spending(releases=[replace(ALL, noise=0.0)]).views()
    assert all(view.epsilon is None and view.reason == "a release carried no noise" for view in bare.values())
    poisson, fixed = (replace(ALL, sampling=sampling, rate=0.5) for sampling in ("poisson", "fixed"))
    mixed = Spending(releases=[poisson, fixed]).view("amplified")
    assert mixed.epsilon is None and "mixed" in (mixed.reason or "")
    monkeypatch.setattr(sampled.importlib.util, "find_spec", lambda name: None)
    without = Spending(releases=[poisson])
    assert without.view("amplified").epsilon is None and "pip install 'coterie[privacy]'" in (without.view("amplified").reason or "")
    assert without.view("local").epsilon is not None and without.view("central").epsilon is not None


def test_what_is_seen_in_one_go_is_what_is_added_round_by_round() -> None:
    release = replace(ALL, sampling="poisson", rate=0.05, min_cohort=1, noise=1.0)
    step_by_step = Spending()
    for _ in range(30):
        step_by_step.add(release)
        epsilon = step_by_step.view("amplified").epsilon
    assert epsilon == pytest.approx(planned(Scheme(rate=0.05), 1.0, 30).view("amplified").epsilon, rel=1e-6)


def test_known_sizes_of_poisson_cohorts_cost_what_fixed_cohorts_of_those_sizes_do() -> None:
    """100 of 1,000 with noise 0.4 each carry 0.4 sqrt(100) = 4 clips in the sum, 2 for replacing: 5.379 for 100 rounds (published)."""
    release = replace(ALL, sampling="poisson", rate=0.1, noise=0.4, min_cohort=4, participants=tuple(range(100)))
    spending = Spending(releases=[release] * 100, num_clients=1000)
    assert spending.sizes_known_epsilon() == pytest.approx(5.379, abs=1e-3)
    void = replace(release, participants=(1, 2, 3))
    assert spending.plus([void] * 50).sizes_known_epsilon() == pytest.approx(5.379, abs=1e-3)  # noise alone in the sum
    larger = spending.plus([replace(release, participants=tuple(range(104)))]).sizes_known_epsilon()  # within a tenth: the worse of both
    assert larger is not None and larger > 5.379
    assert planned(Scheme(rate=0.1, clients=1000), 0.4, 100).sizes_known_epsilon() == pytest.approx(5.379, abs=1e-3)


def test_known_sizes_are_told_only_where_they_can_be() -> None:
    poisson = replace(ALL, sampling="poisson", rate=0.1)
    assert Spending(releases=[poisson]).sizes_known_epsilon() is None  # of how many clients?
    assert Spending(releases=[ALL], num_clients=4).sizes_known_epsilon() is None  # nothing is sampled
    assert Spending(releases=[poisson], num_clients=4).view("amplified").sizes_known_epsilon is None  # seconds, so only when asked


@pytest.mark.skipif(not sampled.available(), reason="needs dp-accounting (the extra 'privacy')")
def test_who_was_drawn_sets_the_chance_and_who_sent_the_noise() -> None:
    """60 of 100 were drawn and 30 sent: a client was among them with the chance of 60, under the noise of 30."""
    release = Release(
        round=1, noise=1.0, split="full", min_cohort=20, sampling="poisson", rate=0.6, participants=tuple(range(30)), secure=True, drawn=60
    )
    spending = Spending(Budget(delta=1e-3), [release] * 100, num_clients=100)
    expected = sampled.replaced_epsilon({(math.sqrt(30), 0.6): 100}, 1e-3)
    assert spending.sizes_known_epsilon() == pytest.approx(expected, rel=1e-12) and expected > 20


@pytest.mark.parametrize(("noise", "epsilon"), [(1e-200, None), (1e300, 0.0)])
def test_noise_of_any_size_has_a_number_or_none(noise: float, epsilon: float | None) -> None:
    assert Spending(releases=[replace(ALL, noise=noise)]).view("central").epsilon == epsilon
