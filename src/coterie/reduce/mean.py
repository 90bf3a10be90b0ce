"""Many Messages into one: weighted means and plain sums, folded one Message at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.message import Message, Slot
from coterie.reduce.seam import Reduce
from coterie.tensors import Groups, Tensors

_SMALLEST_MEAN_WEIGHT = 0.1  # A_min per expected client: noisy weights must not turn a division into an explosion


@dataclass(frozen=True)
class Mean(Reduce):
    """The mean weighted by the Messages' weights, and plain sums: what every method expects where nothing else is said."""

    @property
    def needs_single_updates(self) -> bool:
        return False

    def fold(self, slots: Mapping[str, Slot], *, premultiplied: bool, expected: float, by_expected: bool = False) -> Fold:
        return Fold(slots, premultiplied=premultiplied, expected=expected, by_expected=by_expected)


class Fold:
    """mean = sum w x / sum w for "mean" slots and sum x for "sum" slots, in float64.

    `premultiplied`: the Messages hold w x already (the guards multiplied before they added noise). `by_expected`: no weights
    came with them, and means are divided by the number of clients that the round counts on.
    """

    def __init__(self, slots: Mapping[str, Slot], *, premultiplied: bool, expected: float, by_expected: bool = False) -> None:
        self._slots = slots
        self._premultiplied = premultiplied
        self._floor = _SMALLEST_MEAN_WEIGHT * max(expected, 1.0) if premultiplied else 0.0
        self._divisor = max(expected, 1.0) if by_expected else None
        self._sums: Groups = {}
        self._scalars: Tensors = {}
        self._weight = 0.0
        self.counted = 0
        self.kept_bytes = 0  # nothing is kept: that is what a fold is for

    def add(self, message: Message, client: int = 0) -> None:
        weight = 1.0 if message.weight is None else float(message.weight)
        for name, group in message.groups.items():
            if self._slots[name].reduce == "each":
                continue
            factor = weight if self._slots[name].reduce == "mean" and not self._premultiplied else 1.0
            sums = self._sums.setdefault(name, {})
            for key, value in group.items():
                term = value.double() * factor
                sums[key] = sums[key] + term if key in sums else term
        for key, value in message.scalars.items():
            term = value.double() * weight
            self._scalars[key] = self._scalars[key] + term if key in self._scalars else term
        self._weight += weight
        self.counted += 1

    def result(self) -> Message | None:
        """The folded Message; None when nobody came, or everybody counts for nothing."""
        if self.counted == 0 or (self._weight <= 0 and not self._premultiplied):
            return None
        divisor = self._divisor or max(self._weight, self._floor)

        def finish(name: str, key: str, value: Tensor) -> Tensor:
            dtype = self._slots[name].spec[key][1]  # what was added may be finer: a secure sum is decoded in float64
            if self._slots[name].reduce == "sum":
                return value.to(dtype)
            return (value / divisor).to(dtype if dtype.is_floating_point else value.dtype)  # a mean of whole numbers is not whole

        groups = {name: {key: finish(name, key, value) for key, value in group.items()} for name, group in self._sums.items()}
        scalars = {key: value / divisor for key, value in self._scalars.items()}
        return Message(groups, scalars, torch.tensor(self._divisor or self._weight, dtype=torch.float64))


def sums_behind(mean: Message, *, expected: float) -> Groups:
    """The sums that a noised mean was made of, as a server that watches itself knows them."""
    weight = 1.0 if mean.weight is None else float(mean.weight)
    divisor = max(weight, _SMALLEST_MEAN_WEIGHT * max(expected, 1.0))
    return {name: {key: value.double() * divisor for key, value in group.items()} for name, group in mean.groups.items()}
