"""What guards can't protect: found when a run is built, with the reason and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from coterie.message import Slot
from coterie.privacy.clipping import BIT
from coterie.privacy.secure_sum.vector import check_slots

if TYPE_CHECKING:
    from coterie.privacy.guards import Guards


def refuse_unprotected(guards: Guards, slots: Mapping[str, Slot], method: str) -> None:
    """Raise with a sentence where a slot of this method would leave a client without its protection."""
    if guards.secure is not None:
        check_slots(slots, method)
        _refuse_public(guards, slots, method)
    if guards.clip is None:
        return
    if BIT in slots:
        raise ValueError(f"{method} sends a group '{BIT}', which is what the adaptive clip's bit is called. Give it another name.")
    for name, slot in slots.items():
        _refuse_slot(guards, name, slot, method)


def _refuse_slot(guards: Guards, name: str, slot: Slot, method: str) -> None:
    whole = [key for key, (_, dtype) in slot.spec.items() if not dtype.is_floating_point]
    if slot.guard == "update" and whole:
        raise ValueError(
            f"{method} sends '{whole[0]}' in '{name}' as whole numbers, which can't be scaled or noised. "
            "Send floats, or leave out clip and noise."
        )
    if slot.reduce == "each" and slot.guard == "update":
        raise ValueError(
            f"{method} needs every client's own '{name}', which a clip on the summed change does not protect. "
            "Leave out clip and noise, or choose a method whose updates are averaged."
        )
    if "/" in name and (guards.private or guards.follows):
        raise ValueError(
            f"{method} asks the server in mid-round with '{name}', a second release of every round that is not accounted. "
            "Leave out noise and an adaptive clip, or choose a method that sends one message a round."
        )
    if not guards.private:
        return
    if slot.guard == "public":
        raise ValueError(
            f"{method} sends '{name}' unguarded, so noise on the rest protects nobody. "
            "Keep batch-norm statistics on the client with buffers='local', or use a net without them."
        )
    if slot.guard == "examples":
        raise ValueError(
            f"{method} sends examples in '{name}', which are not covered by noise on its updates: it has a guarantee of its own "
            "for them. Leave out clip and noise, or choose a method that sends no examples."
        )
    half = [key for key, (_, dtype) in slot.spec.items() if dtype in (torch.float16, torch.bfloat16)]
    if guards.mechanism == "discrete" and half:
        raise ValueError(
            f"{method} sends '{half[0]}' in '{name}' in half precision, which can't hold the grid of discrete noise. "
            "Use mechanism='gaussian', or a net in float32."
        )


def _refuse_public(guards: Guards, slots: Mapping[str, Slot], method: str) -> None:
    """What no clip reaches needs a range of its own."""
    public = [name for name, slot in slots.items() if slot.guard == "public"]
    if public and not guards.private and guards.secure is not None and guards.secure.range is None:
        raise ValueError(
            f"{method} sends '{public[0]}' without a clip, so the range of the secure sum can't be the clip. "
            "Set its range, for example 8, or keep batch-norm statistics on the client with buffers='local'."
        )
