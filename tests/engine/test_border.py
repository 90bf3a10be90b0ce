"""What the server refuses of a Message, and what it subtracts: every reason, with what was found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from coterie.engine.border import Refused, changes, check
from coterie.message import Message, Slot

F64 = torch.float64
SLOTS = {
    "shared": Slot({"w": ((2, 3), torch.float32), "b": ((3,), torch.float32)}),
    "control": Slot({"c": ((2,), F64)}, kind="change", reduce="sum"),
    "groups": Slot({"l1": ((4,), torch.float32), "l2": ((4,), torch.float32)}, reduce="each", subset=True),
    "images": Slot({"x": ((-1, 2), torch.float32), "y": ((-1,), torch.int64)}, kind="change", reduce="each", guard="examples"),
    "statistics": Slot({"mean": ((2,), torch.float32)}, guard="public"),
    "scalars": Slot({"loss": ((), torch.float32)}, guard="public"),
}
RECEIVED = Message({"shared": {"w": torch.ones(2, 3), "b": torch.zeros(3)}, "statistics": {"mean": torch.full((2,), 5.0)}})


def message() -> Message:
    return Message(
        {
            "shared": {"w": torch.full((2, 3), 3.0), "b": torch.ones(3)}, "control": {"c": torch.tensor([1.0, -1.0], dtype=F64)},
            "statistics": {"mean": torch.full((2,), 7.0)},
        },
        weight=torch.tensor(4.0, dtype=F64),
    )  # fmt: skip


def verdict(sent: Message, *, norm_ratio: float = 1e3) -> str:
    """What is said of it; nothing where it may pass."""
    try:
        check(sent, SLOTS, RECEIVED, norm_ratio=norm_ratio)
    except Refused as refused:
        return str(refused)
    return ""


def test_a_message_as_declared_passes() -> None:
    assert verdict(message()) == "" and verdict(replace(message(), weight=None)) == ""
    assert verdict(message().plus(groups={"l2": torch.ones(4)})) == ""
    assert verdict(message().plus(images={"x": torch.ones(5, 2), "y": torch.zeros(5, dtype=torch.int64)})) == ""
    assert verdict(replace(message(), scalars={"loss": torch.tensor(0.5)})) == ""


def with_shared(**tensors: Tensor) -> Message:
    return message().with_(shared={**message()["shared"], **tensors})


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (message().plus(secret={"x": torch.ones(1)}), "sent the group 'secret', which is not among ['control',"),
        (Message({g: t for g, t in message().groups.items() if g != "control"}), "sent no group 'control'. The method's client must"),
        (with_shared(door=torch.ones(1)), "sent 'door' in 'shared', which has no such name (2 names are declared)."),
        (message().with_(shared={"w": torch.ones(2, 3)}), "sent no 'b' in 'shared' (1 of 2 names arrived)."),
        (with_shared(w=torch.ones(3, 2)), "sent 'shared/w' of shape (3, 2), expected (2, 3)."),
        (with_shared(w=torch.ones(6)), "sent 'shared/w' of shape (6,), expected (2, 3)."),
        (with_shared(b=torch.ones(3, dtype=F64)), "sent 'shared/b' as torch.float64, expected torch.float32."),
        (with_shared(b=torch.tensor([0.0, float("nan"), 0.0])), "sent 'shared/b' with NaN or infinite entries."),
        (with_shared(b=torch.tensor([0.0, float("-inf"), 0.0])), "sent 'shared/b' with NaN or infinite entries."),
        (message().plus(groups={"l3": torch.ones(4)}), "sent 'l3' in 'groups', which has no such name"),
        (message().plus(images={"x": torch.ones(5, 3), "y": torch.zeros(5, dtype=torch.int64)}), "of shape (5, 3), expected (-1, 2)."),
        (message().plus(images={"x": torch.ones(5, 2)}), "sent no 'y' in 'images'"),
        (replace(message(), weight=torch.tensor(-1.0)), "sent the weight -1.0. A weight must be a number from 0 to 1e+15."),
        (replace(message(), weight=torch.tensor(1e300, dtype=torch.float64)), "sent the weight 1e+300."),  # two would sum to infinity
        (replace(message(), weight=torch.tensor(float("nan"))), "sent the weight nan."),
        (replace(message(), weight=torch.tensor(float("inf"))), "sent the weight inf."),
        (replace(message(), scalars={"loss": torch.tensor(float("nan"))}), "sent a scalar 'loss' that is not one finite number."),
        (replace(message(), scalars={"age": torch.tensor(41.0)}), "sent the scalar 'age', which is not among ['loss']. Declare it"),
        (replace(message(), scalars={"loss": torch.zeros(2)}), "sent a scalar 'loss' that is not one finite number."),
    ],
)  # fmt: skip
def test_what_is_refused_is_said(sent: Message, said: str) -> None:
    assert said in verdict(sent)


def test_an_update_is_measured_against_what_was_received() -> None:
    """Received: norm sqrt(6 + 2 * 25); moved: w by 2, b by 1, control by (1, -1), statistics by 2: sqrt(24 + 3 + 2 + 8)."""
    limit = 1 + 56**0.5
    assert verdict(message(), norm_ratio=37**0.5 / limit * 1.001) == ""
    said = verdict(message(), norm_ratio=37**0.5 / limit * 0.999)
    assert said.startswith("sent an update of norm 6.08, beyond 6.08 (") and said.endswith("times what it received).")


def test_groups_for_each_count_in_the_size_as_they_are_and_public_ones_and_examples_do_not() -> None:
    for more, counted in ((message().plus(groups={"l1": torch.full((4,), 1e6)}), True),
                          (message().plus(images={"x": torch.full((1, 2), 1e6), "y": torch.zeros(1, dtype=torch.int64)}), False)):  # fmt: skip
        assert bool(verdict(more)) == counted


def test_only_averaged_values_have_the_download_subtracted() -> None:
    sent = message().plus(groups={"l1": torch.ones(4)})
    found = changes(sent, SLOTS, RECEIVED)
    assert found["shared"]["w"].tolist() == [[2.0] * 3] * 2 and found["statistics"]["mean"].tolist() == [2.0, 2.0]
    assert found["control"]["c"].tolist() == [1.0, -1.0] and found["groups"]["l1"].tolist() == [1.0] * 4
    assert float(sent["shared"]["w"][0, 0]) == 3.0 and float(found.weight) == 4.0


def test_a_value_needs_something_that_it_could_have_changed() -> None:
    """A method that declares a value and sends nothing down would have its whole model clipped by mistake."""
    nothing = Message({"statistics": RECEIVED["statistics"]})
    with pytest.raises(Refused, match=r"sent 'b' in 'shared' as a value, but received none .* its slot must be of kind 'change'"):
        check(message(), SLOTS, nothing, norm_ratio=1e3)


# --- what cannot even become a Message ----------------------------------------------------------------------------------------------


def test_a_message_carries_tensors_only() -> None:
    with pytest.raises(ValueError, match=r"A Message carries tensors only, found a float as 'w' in 'shared'\. Use torch\.tensor"):
        Message({"shared": {"w": 1.0}})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"found a int as 'n' in 'scalars'"):
        Message(scalars={"n": 3})  # type: ignore[dict-item]
    for weight in (3.0, torch.ones(2)):
        with pytest.raises(ValueError, match=r"The weight of a Message is one number, found .*Use torch\.tensor\(12\.0\)"):
            Message(weight=weight)  # type: ignore[arg-type]
