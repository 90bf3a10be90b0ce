"""A Message as one vector of coordinates, and the sum of such vectors as a Message again.

The last coordinate is the weight, times a scale, so that a weighted mean needs the sum only:
S = sum_k a_k x_k and A = sum_k scale a_k give the mean S / (A / scale).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from coterie.message import SCALARS, Message, Slot
from coterie.tensors import Groups, Tensors


class Layout:
    """Where each number of the summed slots stands in the vector."""

    def __init__(self, slots: Mapping[str, Slot]) -> None:
        self.slots = {name: slot for name, slot in slots.items() if slot.spec}
        self.sizes = {name: sum(map(_numel, slot.spec.values())) for name, slot in self.slots.items()}
        self.length = sum(self.sizes.values()) + 1

    def vector(self, groups: Mapping[str, Tensors], weight: float) -> npt.NDArray[np.float64]:
        """`weight`: the last coordinate as it is."""
        parts = [groups[name][key].detach().double().cpu().numpy().ravel() for name, slot in self.slots.items() for key in slot.spec]
        return np.concatenate([*parts, np.array([weight])])

    def groups(self, vector: npt.NDArray[np.float64], device: torch.device) -> tuple[Groups, float]:
        """The groups in float64, and the last coordinate."""
        found: Groups = {}
        start = 0
        for name, slot in self.slots.items():
            found[name] = {}
            for key, spec in slot.spec.items():
                part = vector[start : start + _numel(spec)]
                found[name][key] = torch.from_numpy(part.copy()).reshape(spec[0]).to(device)
                start += part.size
        return found, float(vector[-1])


def weighed(message: Message, slots: Mapping[str, Slot], weight: float) -> Groups:
    """What a client adds to the sum: averaged groups times its weight, summed ones as they are."""
    return {
        name: {key: value.double() * weight if slots[name].reduce == "mean" else value for key, value in group.items()}
        for name, group in message.groups.items()
    }


def check_slots(slots: Mapping[str, Slot], method: str) -> None:
    """Refuse, before the run, a method that needs more than sums."""
    for name, slot in slots.items():
        if "/" in name:
            raise ValueError(
                f"{method} asks the server '{name.split('/')[0]}' in the middle of a round, with a Message that a secure sum does not hide. "
                "Leave out the secure sum, or choose a method without an exchange."
            )
        if slot.reduce == "each":
            raise ValueError(
                f"{method} needs every client's own '{name}', but a secure sum reveals the sum only. "
                "Leave out the secure sum, or choose a method whose updates are averaged (fedavg, fable, scaffold, ...)."
            )
        if name == SCALARS and slot.spec:
            raise ValueError(
                f"{method} sends the scalars {sorted(slot.spec)}, which a secure sum does not hide. "
                "Leave out the secure sum, or send them as a group that is averaged."
            )
        for key, (shape, dtype) in slot.spec.items():
            if not dtype.is_floating_point:
                raise ValueError(
                    f"{method} sends '{key}' in '{name}' as {str(dtype).removeprefix('torch.')}, and a secure sum takes real numbers only. "
                    "Send floats, or leave out the secure sum."
                )
            if -1 in shape:
                raise ValueError(
                    f"{method} sends '{key}' in '{name}' with a size that is not fixed, and a secure sum needs vectors of one length. "
                    "Declare the shape, or leave out the secure sum."
                )


def _numel(spec: tuple[tuple[int, ...], torch.dtype]) -> int:
    return torch.Size(spec[0]).numel()
