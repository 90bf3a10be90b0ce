"""What the server checks before a Message counts: names, shapes, dtypes, numbers and size."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from coterie.message import SCALARS, Message, Slot
from coterie.tensors import norm, sub

_LARGEST_WEIGHT = 1e15  # beyond any count; weights of 1e308 would overflow the mean, and a model of NaN never recovers


class Refused(ValueError):
    """A Message that is left out of the round."""


class NotFinite(Refused):
    """Refused for its numbers, which come from the client's data: under noise even the refusal would tell of them."""


def check(message: Message, slots: Mapping[str, Slot], sent: Message, *, norm_ratio: float) -> None:
    """Raise `Refused` with the reason when this Message can't count. `message` is what arrived, values as values."""
    for group, tensors in message.groups.items():
        if group not in slots:
            raise Refused(f"sent the group '{group}', which is not among {sorted(slots)}. A method must declare it in slots().")
        _check_names(group, tensors, slots[group])
        for name, value in tensors.items():
            _check_tensor(f"{group}/{name}", value, slots[group].spec[name])
    _check_numbers(message)
    for group, slot in slots.items():
        if group not in {*message.groups, SCALARS} and slot.spec and not slot.subset and slot.reduce != "each":
            raise Refused(f"sent no group '{group}'. The method's client must return every declared group.")
    weight = message.weight
    if weight is not None and not 0 <= float(weight) <= _LARGEST_WEIGHT:
        raise NotFinite(f"sent the weight {float(weight)}. A weight must be a number from 0 to {_LARGEST_WEIGHT:.0e}.")
    declared = slots[SCALARS].spec if SCALARS in slots else {}
    for name, value in message.scalars.items():
        if name not in declared:
            raise Refused(f"sent the scalar '{name}', which is not among {sorted(declared)}. Declare it in slots(), as '{SCALARS}'.")
        if value.numel() != 1 or not bool(torch.isfinite(value)):
            raise Refused(f"sent a scalar '{name}' that is not one finite number.")
    _check_size(message, slots, sent, norm_ratio)


def changes(message: Message, slots: Mapping[str, Slot], sent: Message) -> Message:
    """The Message with what was really sent subtracted from every averaged value."""
    groups = dict(message.groups)
    for name, group in message.groups.items():
        if slots[name].kind == "value" and slots[name].reduce != "each":
            missing = sorted(group.keys() - sent.group(name).keys())
            if missing:
                raise Refused(
                    f"sent '{missing[0]}' in '{name}' as a value, but received none that it could have changed. "
                    f"The method's send must give it, or its slot must be of kind 'change'."
                )
            groups[name] = sub(group, sent[name])
    return message.with_(**groups)


def _check_names(group: str, tensors: Mapping[str, Tensor], slot: Slot) -> None:
    extra = sorted(tensors.keys() - slot.spec.keys())
    missing = sorted(slot.spec.keys() - tensors.keys())
    if extra:
        raise Refused(f"sent '{extra[0]}' in '{group}', which has no such name ({len(slot.spec)} names are declared).")
    if missing and not slot.subset:
        raise Refused(f"sent no '{missing[0]}' in '{group}' ({len(tensors)} of {len(slot.spec)} names arrived).")


def _check_tensor(where: str, value: Tensor, expected: tuple[tuple[int, ...], torch.dtype]) -> None:
    shape, dtype = expected
    if value.layout is not torch.strided or value.is_meta:
        raise Refused(f"sent '{where}' as a {'meta' if value.is_meta else value.layout} tensor. Send an ordinary one, with every entry.")
    same = len(shape) == value.dim() and all(want in (-1, have) for want, have in zip(shape, value.shape, strict=True))
    if not same:
        raise Refused(f"sent '{where}' of shape {tuple(value.shape)}, expected {shape}.")
    if value.dtype != dtype:
        raise Refused(f"sent '{where}' as {value.dtype}, expected {dtype}.")


def _check_numbers(message: Message) -> None:
    """All at once, because an accelerator would be waited for at each tensor."""
    floats = {f"{group}/{n}": v for group, tensors in message.groups.items() for n, v in tensors.items() if v.is_floating_point()}
    finite = [torch.isfinite(value).all() for value in floats.values()]
    if finite and not bool(torch.stack(finite).all()):
        where = next(name for name, fine in zip(floats, finite, strict=True) if not fine)
        raise NotFinite(f"sent '{where}' with NaN or infinite entries.")


def _check_size(message: Message, slots: Mapping[str, Slot], sent: Message, norm_ratio: float) -> None:
    moved = changes(message, slots, sent)
    updates = [group for name, group in moved.groups.items() if slots[name].guard != "examples" and slots[name].reduce != "each"]
    updates += [group for name, group in moved.groups.items() if slots[name].guard == "update" and slots[name].reduce == "each"]
    size = float(norm(updates))
    if not math.isfinite(size):  # two finite numbers may lie too far apart for their dtype
        raise NotFinite("sent an update of infinite length.")
    limit = norm_ratio * (1.0 + float(norm(sent.groups.values())))
    if size > limit:
        raise Refused(f"sent an update of norm {size:.3g}, beyond {limit:.3g} ({norm_ratio:g} times what it received).")
