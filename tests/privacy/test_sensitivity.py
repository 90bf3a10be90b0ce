"""PT-T8: whatever a client sends, what is guarded is no longer than the accountant was told.

Changes and weights are adversarial: huge, tiny, subnormal, zero, in every float dtype, in many groups. The length is computed
by Python's own hypot, which knows nothing of the code under test.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coterie.message import Message, Slot
from coterie.privacy.clipping import BIT
from coterie.privacy.guards import Guards, Unguardable
from coterie.privacy.noise import NoiseSource

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
MODES = ["flat", "groups", "adaptive"]


def numbers(dtype: torch.dtype) -> st.SearchStrategy[float]:
    """Finite numbers of this dtype: all sizes, with its extremes and subnormals among them (lengths beyond every float: see below)."""
    info = torch.finfo(dtype)
    largest = min(info.max, 1e300)
    extremes = [0.0, -0.0, largest, -largest, info.tiny, -info.tiny, info.smallest_normal * info.eps, info.eps, 1.0, -1.0]
    spread = st.floats(-1.0, 1.0).flatmap(lambda m: st.integers(-40, 40).map(lambda e: m * 2.0**e))
    return st.one_of(st.sampled_from(extremes), spread, st.floats(-largest, largest))


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    if draw(st.booleans()):  # many equal entries: every one of them rounds the same way
        return held([draw(numbers(dtype))] * draw(st.integers(1, 300)), dtype)
    values = draw(st.lists(numbers(dtype), min_size=0, max_size=8))
    return held(values, dtype)


def held(values: list[float], dtype: torch.dtype) -> torch.Tensor:
    """As the dtype's finite numbers."""
    largest = torch.finfo(dtype).max
    return torch.tensor(values, dtype=torch.float64).clamp(-largest, largest).to(dtype)


@st.composite
def messages(draw: Any) -> tuple[Message, dict[str, Slot]]:
    """Up to six groups of up to four tensors, with a weight of any size."""
    groups = {f"g{i}": {f"layer{j // 2}.w{j}": draw(tensors()) for j in range(draw(st.integers(1, 4)))} for i in range(draw(st.integers(1, 6)))}
    weight = draw(st.one_of(st.none(), st.floats(0, 1), st.floats(0, 1e15), st.sampled_from([0.0, 5e-324, 1.0, 1e15])))
    slots = {name: Slot.like(group, kind="change", reduce=draw(st.sampled_from(["mean", "sum"]))) for name, group in groups.items()}
    return Message(groups, weight=None if weight is None else torch.tensor(weight, dtype=torch.float64)), slots


def exact_length(values: list[float]) -> float:
    """By Python's own hypot, which neither overflows nor loses small squares."""
    return math.hypot(*values) if values else 0.0


def entries(message: Message) -> list[float]:
    return [x for name, group in message.groups.items() if name != BIT for value in group.values() for x in value.double().reshape(-1).tolist()]


def knobs() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "clip": st.one_of(st.floats(1e-30, 1e30), st.floats(0.01, 100.0)), "kappa": st.sampled_from([0.0, 0.1, 1.0, 7.0]),
            "n_max": st.sampled_from([1.0, 0.5, 30.0, 1e6]), "clip_mode": st.sampled_from(MODES),
            "clip_groups": st.sampled_from(["layers", "slots"]),
        }
    )  # fmt: skip


@given(sent=messages(), knobs=knobs())
@settings(max_examples=70, deadline=None)
def test_the_vector_before_the_noise_is_bounded_with_its_weight(sent: tuple[Message, dict[str, Slot]], knobs: dict[str, Any]) -> None:
    """||(a clip(Delta), kappa C a)|| <= C sqrt(1 + kappa^2) (1 + 1e-6), and the bit is 1/2 or -1/2."""
    message, slots = sent
    guards = Guards(noise=1.0, **knobs)
    bounded = guards.bounded(message, slots)
    assert bounded.weight is not None and 0.0 <= float(bounded.weight) <= 1.0
    block = knobs["kappa"] * knobs["clip"] * float(bounded.weight)
    assert exact_length([*entries(bounded), block]) <= guards.sensitivity * (1 + 1e-6)
    assert guards.sensitivity == pytest.approx(knobs["clip"] * math.sqrt(1 + knobs["kappa"] ** 2))
    if knobs["clip_mode"] == "adaptive":
        assert float(bounded[BIT]["within"]) in (0.5, -0.5)
    else:
        assert BIT not in bounded.groups
    for name, group in bounded.groups.items():  # no sign is turned
        assert name == BIT or all(bool((value * message[name][key].double() >= 0).all()) for key, value in group.items())


@given(sent=messages(), knobs=knobs())
@settings(max_examples=70, deadline=None)
@example(
    sent=(Message({"g": {"w": torch.full((9,), 1.0, dtype=torch.float16)}}), {"g": Slot({"w": ((9,), torch.float16)}, kind="change")}),
    knobs={"clip": 3e-7, "kappa": 0.0, "n_max": 1.0, "clip_mode": "flat", "clip_groups": "layers"},  # nearest would round all of them up
)
def test_a_clip_without_noise_holds_after_rounding_to_the_dtype(sent: tuple[Message, dict[str, Slot]], knobs: dict[str, Any]) -> None:
    message, slots = sent
    found = Guards(**knobs).apply(message, slots, NoiseSource())
    assert exact_length(entries(found)) <= knobs["clip"] * (1 + 1e-6)
    for name, group in message.groups.items():
        assert all(found[name][key].dtype == value.dtype and found[name][key].shape == value.shape for key, value in group.items())


@given(sent=messages(), knobs=knobs())
@settings(max_examples=15, deadline=None)
def test_discrete_noise_is_added_to_a_vector_that_is_no_longer(sent: tuple[Message, dict[str, Slot]], knobs: dict[str, Any]) -> None:
    """On the grid the vector is cut towards zero: what is left without the noise is measured by drawing the same noise on zeros."""
    message, slots = sent
    guards = Guards(noise=1.0, mechanism="discrete", **knobs)
    step = guards.clip / 2**16  # an upper end of the grid's spacing
    bounded = guards.bounded(message, slots)
    left = NoiseSource(1).add_discrete({str(i): v for i, v in enumerate(flat(bounded))}, guards.noise_std, step)
    drawn = NoiseSource(1).add_discrete({str(i): v * 0 for i, v in enumerate(flat(bounded))}, guards.noise_std, step)
    cut = [float(x) for name in left for x in (left[name] - drawn[name]).reshape(-1)]
    assert exact_length(cut) <= knobs["clip"] * (1 + 1e-6)


def flat(message: Message) -> list[torch.Tensor]:
    return [value for name, group in message.groups.items() if name != BIT for value in group.values()]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_refused_and_never_noised(bad: float, dtype: torch.dtype) -> None:
    group = {"w": torch.tensor([1.0, bad], dtype=dtype)}
    for mode in MODES:
        with pytest.raises(Unguardable, match="NaN or infinite entries"):
            Guards(clip=1.0, noise=1.0, clip_mode=mode).apply(Message({"g": group}), {"g": Slot.like(group)}, NoiseSource())  # type: ignore[arg-type]


def test_a_length_beyond_every_float_is_refused() -> None:
    group = {"w": torch.full((9,), 1.7e308, dtype=torch.float64)}
    with pytest.raises(Unguardable, match="infinite length"):
        Guards(clip=1.0).apply(Message({"g": group}), {"g": Slot.like(group)}, NoiseSource())


@pytest.mark.parametrize("weight", [math.nan, -1.0, -1e-300])
def test_a_weight_that_is_no_weight_is_refused(weight: float) -> None:
    group = {"w": torch.ones(2)}
    with pytest.raises(Unguardable, match="A weight must be a number of at least 0"):
        Guards(clip=1.0, noise=1.0, n_max=5).apply(Message({"g": group}, weight=torch.tensor(weight, dtype=torch.float64)), {"g": Slot.like(group)}, NoiseSource())
