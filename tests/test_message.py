"""What crosses: Messages, their slots, their size and their bytes."""

import pytest
import torch
from safetensors.torch import load

from coterie.message import Message, Slot, pack, unpack

A, B = torch.arange(6.0).reshape(2, 3), torch.tensor([1, 2, 3])


def message():
    return Message(
        {"shared": {"z.weight": A.double(), "a.bias": B}, "flags": {"open": torch.tensor([True, False, True])}},
        {"score": torch.tensor(0.25, dtype=torch.float64)},
        torch.tensor(7.0, dtype=torch.float64),
    )


def test_bytes_and_back_keep_everything_and_the_order():
    """The order of names matters: sums over them must not depend on whether a Message travelled."""
    sent = message()
    back = Message.from_bytes(sent.to_bytes())
    assert [(g, list(t)) for g, t in back.groups.items()] == [("shared", ["z.weight", "a.bias"]), ("flags", ["open"])]
    for group, tensors in sent.groups.items():
        for name, value in tensors.items():
            assert torch.equal(back[group][name], value) and back[group][name].dtype == value.dtype
    assert float(back.scalars["score"]) == 0.25 and float(back.weight) == 7.0
    assert Message.from_bytes(Message().to_bytes()) == Message()


def test_bytes_are_plain_safetensors():
    assert {name.split("|", 1)[1] for name in load(message().to_bytes())} == {
        "group|shared|z.weight", "group|shared|a.bias", "group|flags|open", "scalar|score", "weight",
    }  # fmt: skip


def test_views_and_transposes_are_packed_by_value():
    view, turned = A[:, 1], A.T
    back = unpack(pack({"view": view, "turned": turned, "again": view}))
    assert torch.equal(back["view"], view) and torch.equal(back["turned"], turned) and torch.equal(back["again"], view)


def test_size_counts_what_crosses():
    """6 doubles and 3 int64; 3 flags in one byte; a scalar and the weight 8 bytes each."""
    assert message().bytes_by_slot() == {"shared": 6 * 8 + 3 * 8, "flags": 1, "scalars": 8, "weight": 8}
    assert Message({"shared": {"a": A}}).bytes_by_slot() == {"shared": 24}


def test_groups_without_tensors_vanish():
    assert Message({"shared": {"a": A}, "buffers": {}}).groups.keys() == {"shared"}
    assert Message({"buffers": {}}).group("buffers") == {}


def test_weights_multiply():
    assert Message().weight is None
    assert float(Message().weighing(3).weight) == 3.0
    assert float(Message().weighing(3).weighing(torch.tensor(0.5)).weight) == 1.5
    assert Message().weighing(3).weight.dtype == torch.float64


def test_two_writers_of_one_group_are_a_conflict():
    grown = Message({"shared": {"a": A}}).plus(control={"a": A})
    assert set(grown.groups) == {"shared", "control"}
    with pytest.raises(ValueError, match=r"Two methods write the same group \['control'\] of one Message\. Give one"):
        grown.plus(control={"a": A})
    assert torch.equal(grown.with_(control={"a": 2 * A})["control"]["a"], 2 * A) and torch.equal(grown["control"]["a"], A)


def test_a_missing_group_says_what_is_there():
    with pytest.raises(KeyError, match=r"no group 'head', only \['flags', 'shared'\]"):
        message()["head"]


def test_a_subset_of_names_needs_a_slot_of_its_own():
    slot = Slot.like({"a": A}, reduce="each", subset=True)
    assert slot.spec == {"a": ((2, 3), torch.float32)}
    with pytest.raises(ValueError, match=r"must be reduced 'each', found 'mean'\. Use reduce='each'"):
        Slot.like({"a": A}, subset=True)
