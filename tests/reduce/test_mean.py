"""Many Messages into one, against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from coterie.message import Message, Slot
from coterie.reduce.mean import Fold

F32, F64 = torch.float32, torch.float64
SLOTS = {
    "shared": Slot({"w": ((3,), F32), "b": ((), F32)}),
    "control": Slot({"w": ((3,), F32)}, kind="change", reduce="sum"),
    "own": Slot({"w": ((3,), F32)}, reduce="each"),
}


def fold(messages: list[Message], *, premultiplied: bool = False, expected: int = 1) -> Message | None:
    folded = Fold(SLOTS, premultiplied=premultiplied, expected=expected)
    for message in messages:
        folded.add(message)
    return folded.result()


def message(value: float, weight: float | None = None, score: float | None = None) -> Message:
    w = torch.tensor([value, 2 * value, -value], dtype=F32)
    groups = {"shared": {"w": w, "b": torch.tensor(value, dtype=F32)}, "control": {"w": w}, "own": {"w": w}}
    scalars = {} if score is None else {"score": torch.tensor(score)}
    return Message(groups, scalars, None if weight is None else torch.tensor(weight, dtype=F64))


def test_a_mean_is_weighted_a_sum_is_not_and_each_is_left_alone() -> None:
    """Values 1, 4, 10 with weights 2, 1, 1: mean 4, sum 15."""
    found = fold([message(1, 2), message(4, 1), message(10, 1)])
    assert found is not None and set(found.groups) == {"shared", "control"}
    assert found["shared"]["w"].tolist() == [4, 8, -4] and float(found["shared"]["b"]) == 4
    assert found["control"]["w"].tolist() == [15, 30, -15]
    assert float(found.weight) == 4 and found["shared"]["w"].dtype == F32


def test_without_weights_all_count_the_same_and_a_weight_of_0_counts_nothing() -> None:
    found = fold([message(1), message(4), message(10)])
    assert found is not None and float(found["shared"]["b"]) == 5
    found = fold([message(1, 3), message(1000, 0)])
    assert found is not None and float(found["shared"]["b"]) == 1 and float(found["control"]["w"][0]) == 1001


def test_nobody_or_nobody_that_counts_is_none() -> None:
    assert fold([]) is None and fold([message(1, 0), message(2, 0)]) is None


def test_scalars_are_weighted_means_in_float64() -> None:
    found = fold([message(0, 3, 1.0), message(0, 1, 2.0)])
    assert found is not None and float(found.scalars["score"]) == 1.25 and found.scalars["score"].dtype == F64


def test_the_order_of_clients_changes_no_bit() -> None:
    """In float64 the sum of these float32 values is exact, so every order gives the same."""
    generator = np.random.default_rng(0)
    messages = [message(float(np.float32(generator.integers(-(2**20), 2**20) / 2**10)), int(generator.integers(1, 50))) for _ in range(5)]
    results = [fold(list(order)) for order in itertools.permutations(messages)]
    for group in ("shared", "control"):
        assert len({tuple(found[group]["w"].tolist()) for found in results if found is not None}) == 1


def test_small_values_survive_beside_large_ones() -> None:
    """10,000 times 1e-4 beside 1e4: float32 would lose every one of them (1e4 + 1e-4 is 1e4 there)."""
    folded = Fold(SLOTS, premultiplied=False, expected=1)
    for value in (1e4, *[1e-4] * 10_000, -1e4):
        folded.add(message(value))
    found = folded.result()
    assert found is not None and float(found["control"]["w"][0]) == pytest.approx(1.0, rel=1e-5)


@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8),
    weights=st.lists(st.floats(1e-3, 1e3), min_size=8, max_size=8),
)
@hypothesis_settings(max_examples=60, deadline=None)
def test_the_mean_is_numpys_average(values: list[float], weights: list[float]) -> None:
    found = fold([message(v, w) for v, w in zip(values, weights, strict=False)])
    expected = np.average(np.float32(values).astype(np.float64), weights=weights[: len(values)])
    assert found is not None and float(found["shared"]["b"]) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_premultiplied_messages_are_not_weighed_again() -> None:
    """a x with a = 0.5 and 1 of x = 2 and 8: (1 + 8) / 1.5 = 6."""
    found = fold([message(1, 0.5), message(8, 1.0)], premultiplied=True, expected=2)
    assert found is not None and float(found["shared"]["b"]) == 6 and float(found["control"]["w"][0]) == 9


@pytest.mark.parametrize(("weights", "divisor"), [((0.2, -0.3), 0.4), ((0.25, 0.25), 0.5), ((-5.0, 1.0), 0.4)])
def test_noisy_weights_never_turn_the_division_into_an_explosion(weights: tuple[float, float], divisor: float) -> None:
    """PT-D2: S / max(A, A_min) with A_min = 0.1 for each of the 4 who were expected."""
    found = fold([message(1, weights[0]), message(2, weights[1])], premultiplied=True, expected=4)
    assert found is not None and float(found["shared"]["b"]) == pytest.approx(3 / divisor, rel=1e-6)


def test_groups_that_only_some_send_do_not_disturb_the_others() -> None:
    found = fold([message(4), Message({"own": {"w": torch.ones(3)}})])
    assert found is not None and float(found.weight) == 2 and set(found.groups) == {"shared", "control"}


def test_a_mean_of_whole_numbers_is_not_cut() -> None:
    slots = {"labels": Slot({"n": ((2,), torch.int64)}), "total": Slot({"n": ((2,), torch.int64)}, reduce="sum")}
    folded = Fold(slots, premultiplied=False, expected=1)
    for count in ([1, -1], [2, -2]):
        folded.add(Message({name: {"n": torch.tensor(count)} for name in slots}))
    found = folded.result()
    assert found is not None and found["labels"]["n"].tolist() == [1.5, -1.5] and found["total"]["n"].tolist() == [3, -3]
