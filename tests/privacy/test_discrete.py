"""The discrete Gaussian against its probabilities written out (Canonne, Kamath, Steinke 2020, Definition 1)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from coterie.message import Message, Slot
from coterie.privacy.discrete import _bernoulli_exp, _uniform, discrete_gaussian
from coterie.privacy.guards import Guards
from coterie.privacy.noise import NoiseSource, grid_step

F64 = torch.float64


def chi_square(drawn: np.ndarray, probability: dict[int, float], least: float = 20.0) -> float:
    """The p-value of these draws; rare values are put together."""
    count = len(drawn)
    common = [value for value, p in probability.items() if p * count >= least]
    seen = [int((drawn == value).sum()) for value in common]
    expected = [probability[value] * count for value in common]
    seen.append(count - sum(seen))
    expected.append(count - sum(expected))
    statistic = sum((s - e) ** 2 / e for s, e in zip(seen, expected, strict=True))
    return float(stats.chi2.sf(statistic, len(seen) - 1))


@pytest.mark.parametrize("sigma", [1, 2, 7, 30])
def test_draws_have_exactly_the_stated_probabilities(sigma: int) -> None:
    """The noise of a fixed audit seed, so that this is no game of chance: 200,000 draws, chi-square over all common values."""
    reach = range(-12 * sigma, 12 * sigma + 1)
    mass = {x: math.exp(-(x**2) / (2 * sigma**2)) for x in reach}
    total = math.fsum(mass.values())
    drawn = discrete_gaussian(sigma, 200_000, NoiseSource(sigma).words)
    assert chi_square(drawn, {x: p / total for x, p in mass.items()}) > 0.01


def test_the_test_finds_a_wrong_distribution() -> None:
    """A rounded normal of the same sigma, which is what the discrete Gaussian is not."""
    mass = {x: math.exp(-(x**2) / 2) for x in range(-12, 13)}
    total = math.fsum(mass.values())
    rounded = np.rint(np.random.default_rng(0).normal(0, 1, 200_000))
    assert chi_square(rounded, {x: p / total for x, p in mass.items()}) < 1e-6


@pytest.mark.parametrize("sigma", [3000, 65536, 2**31 + 5])
def test_large_sigmas_use_long_whole_numbers_and_look_normal(sigma: int) -> None:
    drawn = discrete_gaussian(sigma, 20_000, NoiseSource(1).words)
    assert stats.kstest(drawn / sigma, "norm").pvalue > 0.01
    assert len(np.unique(drawn % 8)) == 8  # every residue: no coarser grid inside


def test_no_draws_and_no_noise() -> None:
    assert len(discrete_gaussian(3, 0, NoiseSource().words)) == 0
    assert not discrete_gaussian(0, 5, NoiseSource().words).any()
    with pytest.raises(ValueError, match="sigma must be at least 0, found -1"):
        discrete_gaussian(-1, 5, NoiseSource().words)


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 3), (1, 1), (5, 2), (3 * 10**20, 10**20)])
def test_a_coin_of_probability_exp_minus_a_fraction(numerator: int, denominator: int) -> None:
    """Algorithm 1, with fractions above 1 and beyond 64 bits too."""
    kind = object if denominator > 2**62 else np.int64
    heads = int(_bernoulli_exp(np.full(40_000, numerator, dtype=kind), denominator, NoiseSource(2).words).sum())
    assert stats.binomtest(heads, 40_000, math.exp(-numerator / denominator)).pvalue > 0.01


@pytest.mark.parametrize("limit", [1, 3, 2**62 - 1, 3 * 2**61, 5 * 2**90])
def test_uniform_whole_numbers_cover_their_range_evenly(limit: int) -> None:
    drawn = _uniform(limit, 12_000, NoiseSource(4).words)
    assert all(0 <= int(value) < limit for value in drawn)
    if limit > 1:
        parts = np.bincount([3 * int(value) // limit for value in drawn], minlength=3)
        assert stats.chisquare(parts).pvalue > 0.01


def test_the_grid_is_a_power_of_two_and_fine() -> None:
    for clip in (1.0, 0.3, 1e-4, 777.0):
        step = grid_step(clip)
        assert math.frexp(step)[0] == 0.5 and 2**16 <= clip / step < 2**17


def test_a_discrete_message_lies_on_the_grid_and_carries_the_noise() -> None:
    guards = Guards(clip=0.3, noise=2.0, mechanism="discrete", kappa=0)
    step = grid_step(0.3)
    up = Message({"shared": {"w": torch.linspace(-1, 1, 20_000, dtype=torch.float32)}})
    slots = {"shared": Slot.like(up["shared"])}
    found = guards.apply(up, slots, NoiseSource(0))["shared"]["w"]
    assert found.dtype == torch.float32
    points = found.double().numpy() / step
    np.testing.assert_array_equal(points, np.rint(points))  # float32 holds the grid exactly
    assert np.std(found.numpy()) == pytest.approx(0.6, rel=0.02)
    bounded = guards.bounded(up, slots)["shared"]["w"]
    left = NoiseSource(0).add_discrete({"w": bounded}, 1e-300, step)["w"] / step  # sigma is rounded up to one step
    cut = (bounded / step).trunc()
    assert float((left - cut).abs().max()) <= 8 and float(cut.norm()) * step <= 0.3


def test_discrete_noise_needs_more_than_half_precision() -> None:
    slots = {"shared": Slot({"w": ((3,), torch.float16)})}
    with pytest.raises(ValueError, match=r"M sends 'w' in 'shared' in half precision, which can't hold the grid"):
        Guards(clip=1.0, noise=1.0, mechanism="discrete").check(slots, "M")
