"""Clips by hand: shared out over groups, and adaptive (Andrew et al. 2021, Algorithm 1)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.message import Message, Slot
from coterie.privacy.clipping import BIT, Adaptive, length, towards_zero, units
from coterie.privacy.guards import Guards
from coterie.privacy.noise import NoiseSource

F64 = torch.float64
SLOTS = {
    "shared": Slot({"a.weight": ((2,), F64), "a.bias": ((1,), F64), "b.weight": ((2,), F64)}),
    "control": Slot({"a.weight": ((2,), F64)}, kind="change", reduce="sum"),
}


def message(a: list[float], bias: list[float], b: list[float], control: list[float]) -> Message:
    def t(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=F64)

    return Message({"shared": {"a.weight": t(a), "a.bias": t(bias), "b.weight": t(b)}, "control": {"a.weight": t(control)}})


UP = message([3, 0], [4], [0.1, 0], [0, 12])  # layers of lengths 5, 0.1 and 12


def test_every_layer_has_its_own_bound_and_their_squares_add_up_to_the_clip() -> None:
    """C = 3 over three layers: each may be sqrt(3) long. A layer's weight and bias share one bound."""
    found = Guards(clip=3.0, clip_mode="groups").apply(UP, SLOTS, NoiseSource())
    each = math.sqrt(3.0)
    np.testing.assert_allclose(found["shared"]["a.weight"], [3 / 5 * each, 0], rtol=1e-12)
    np.testing.assert_allclose(found["shared"]["a.bias"], [4 / 5 * each], rtol=1e-12)
    np.testing.assert_array_equal(found["shared"]["b.weight"], [0.1, 0])  # short enough
    np.testing.assert_allclose(found["control"]["a.weight"], [0, each], rtol=1e-12)


def test_bounds_of_slots() -> None:
    """C = 2 over two slots: sqrt(2) each; "shared" is sqrt(9 + 16 + 0.01) long."""
    found = Guards(clip=2.0, clip_mode="groups", clip_groups="slots").apply(UP, SLOTS, NoiseSource())
    factor = math.sqrt(2.0) / math.sqrt(25.01)
    np.testing.assert_allclose(found["shared"]["a.weight"], [3 * factor, 0], rtol=1e-12)
    np.testing.assert_allclose(found["shared"]["b.weight"], [0.1 * factor, 0], rtol=1e-12)
    np.testing.assert_allclose(found["control"]["a.weight"], [0, math.sqrt(2.0)], rtol=1e-12)


def test_units_share_bounds_as_named() -> None:
    assert units(UP.groups, "flat", "layers") == [
        [("shared", "a.weight"), ("shared", "a.bias"), ("shared", "b.weight"), ("control", "a.weight")]
    ]
    assert [len(unit) for unit in units(UP.groups, "groups", "layers")] == [2, 1, 1]
    assert [len(unit) for unit in units(UP.groups, "groups", "slots")] == [3, 1]
    assert units({}, "flat", "layers") == []


@pytest.mark.parametrize("clip", [12.99, 13.1])
def test_the_bit_says_whether_the_whole_change_is_within_the_clip(clip: float) -> None:
    """The change is sqrt(9 + 16 + 0.01 + 144) = 13.0004 long."""
    found = Guards(clip=clip, clip_mode="adaptive").apply(UP, SLOTS, NoiseSource())
    assert float(found[BIT]["within"]) == (0.5 if clip > 13.0004 else -0.5)
    assert length(v for g in ("shared", "control") for v in found[g].values()) <= clip


def test_update_and_bit_together_cost_what_is_declared() -> None:
    """Two Gaussian queries of sensitivities C and 1/2 have multipliers that add as 1/z^2 = 1/z_Delta^2 + 1/(2 sigma_b)^2."""
    for noise, bit in ((1.0, None), (1.0, 0.8), (0.6, 5.0), (4.0, 2.5)):
        guards = Guards(clip=2.0, noise=noise, clip_mode="adaptive", adaptive=Adaptive(bit_noise=bit), kappa=0)
        z, b = guards.noise_std / 2.0, guards.bit_noise
        assert b is not None and 1 / z**2 + 1 / (2 * b) ** 2 == pytest.approx(1 / noise**2, rel=1e-12)
    assert Guards(clip=1.0, noise=1.0, clip_mode="adaptive").update_noise == pytest.approx(1.0463, abs=1e-4)
    assert Guards(clip=1.0, noise=1.0).update_noise == 1.0 and Guards(clip=1.0, noise=1.0).bit_noise is None


def test_a_bit_that_costs_more_than_everything_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bit has noise 0\.5, which alone costs more than the declared noise 1\. Use a bit noise above 0\.5"):
        Guards(clip=1.0, noise=1.0, clip_mode="adaptive", adaptive=Adaptive(bit_noise=0.5))


@pytest.mark.parametrize(
    ("knobs", "text"),
    [({"quantile": 1.5}, r"quantile .* in \[0, 1\], found 1\.5"), ({"rate": 0.0}, "rate .* found 0"), ({"bit_noise": -1.0}, "bit noise .* found -1")],
)
def test_adaptive_clips_that_make_no_sense_are_refused(knobs: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Adaptive(**knobs)


@pytest.mark.parametrize("split", ["full", "share"])
def test_noise_on_the_bit_has_its_own_deviation(split: str) -> None:
    guards = Guards(clip=50.0, noise=1.0, clip_mode="adaptive", split=split, min_cohort=4)  # type: ignore[arg-type]
    source = NoiseSource(3)
    bits = [float(guards.apply(UP, SLOTS, source)[BIT]["within"]) for _ in range(3000)]
    std = 1.7 / (2 if split == "share" else 1)
    assert np.mean(bits) == pytest.approx(0.5, abs=5 * std / math.sqrt(3000))
    assert np.std(bits) == pytest.approx(std, rel=0.06)


def test_the_clip_finds_the_quantile() -> None:
    """Lengths of a log-normal: the clip comes to its median from far away, by the rule written out in NumPy."""
    lengths = np.random.default_rng(0).lognormal(1.0, 0.5, size=200)
    adaptive, clip, by_hand = Adaptive(quantile=0.5, rate=0.3), 0.01, 0.01
    for _ in range(60):
        clip = adaptive.next_clip(clip, float(np.where(lengths <= clip, 0.5, -0.5).sum()), 200, 0.01)
        by_hand *= np.exp(-0.3 * (np.mean(lengths <= by_hand) - 0.5))
        assert clip == pytest.approx(by_hand, rel=1e-12)
    assert clip == pytest.approx(np.median(lengths), rel=0.02)


def test_a_clip_never_becomes_0_or_infinite() -> None:
    for bits, bound in ((1e300, 1e-9), (-1e300, 1e9)):
        clip = 1.0
        for _ in range(10):
            clip = Adaptive().next_clip(clip, bits, 1.0, 1.0)
        assert clip == pytest.approx(bound)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rounding_towards_zero_is_the_nearest_number_that_is_not_larger(dtype: torch.dtype) -> None:
    values = torch.from_numpy(np.random.default_rng(1).normal(size=4000) * 10.0 ** np.random.default_rng(2).integers(-9, 4, 4000))
    found = towards_zero(values, dtype)
    assert bool((found.double().abs() <= values.abs()).all())
    bits = found.view(torch.int32 if dtype == torch.float32 else torch.int16)
    beyond = (bits + 1).view(dtype).double()  # floats are sign and magnitude: the next number away from zero
    assert bool((beyond.abs() > values.abs()).all())
    assert bool((found.double() * values >= 0).all())
    exact = torch.tensor([0.0, -0.0, 1.0, -2.5, 65504.0], dtype=F64)
    assert torch.equal(towards_zero(exact, torch.float16).double(), exact)


def test_lengths_of_numbers_whose_squares_are_lost() -> None:
    assert length([torch.tensor([3e200, 4e200], dtype=F64)]) == pytest.approx(5e200)
    assert length([torch.tensor([3e-200], dtype=F64), torch.tensor([4e-200], dtype=F64)]) == pytest.approx(5e-200)
    assert length([torch.tensor([5e-324], dtype=F64)]) == 5e-324
    assert length([]) == 0.0 and length([torch.zeros(0), torch.zeros(3)]) == 0.0
    assert length([torch.tensor([math.inf, 1.0])]) == math.inf and math.isnan(length([torch.tensor([math.nan, 1.0])]))
