"""All Messages of a round kept, and reduced at its end: what every robust reduction stands on.

What is reduced: every group of a "mean" or "sum" slot, with the parameters of all groups taken as one vector x_k per
client, so that one decision covers them all: whoever hides in one group is seen in all of them. The result of a
"mean" slot is the robust mean, that of a "sum" slot is the number of clients times it. A client of weight 0 says that it
counts for nothing and is left out. Arithmetic is in float64; clients stand in the order of their ids, so the order in
which they finish changes no bit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.message import Message, Slot
from coterie.reduce.seam import Reduce
from coterie.tensors import Groups, memory_bytes


@dataclass(frozen=True, eq=False)
class Updates:
    """The updates of n clients: one block [n, ...] for each name, and their weights [n] in float64."""

    blocks: tuple[Tensor, ...]
    weights: Tensor

    def __len__(self) -> int:
        return len(self.weights)

    def doubled(self) -> Iterator[Tensor]:
        """One block after another as [n, entries] in float64."""
        for block in self.blocks:
            yield block.reshape(len(self), block[0].numel()).double()

    def squared_norms(self) -> Tensor:
        """||x_k||^2."""
        return torch.stack([block.square().sum(1).cpu() for block in self.doubled()]).sum(0)

    def squared_distances(self) -> Tensor:
        """||x_i - x_k||^2, [n, n], from the differences themselves: products would cancel beside one huge update."""
        total = torch.zeros(len(self), len(self), dtype=torch.float64)
        for block in self.doubled():
            for i, row in enumerate(block):
                total[i, i + 1 :] += (block[i + 1 :] - row).square().sum(1).cpu()
        return total + total.T

    def combined(self, shares: Tensor) -> list[Tensor]:
        """sum_k p_k x_k, block by block."""
        return [(shares.to(block.device) @ block).reshape(kept.shape[1:]) for block, kept in zip(self.doubled(), self.blocks, strict=True)]


@dataclass(frozen=True)
class RobustReduce(Reduce):
    """A reduction that sees all updates of a round at once."""

    @abstractmethod
    def centre(self, updates: Updates) -> list[Tensor]:
        """The robust mean, block by block, in float64."""

    def fold(self, slots: Mapping[str, Slot], *, premultiplied: bool, expected: float, by_expected: bool = False) -> Kept:
        assert not premultiplied, "noise and a robust reduction are refused when the run is built"
        return Kept(slots, self)


class Kept:
    """Keeps what is averaged or summed, of every client, until the round ends."""

    def __init__(self, slots: Mapping[str, Slot], reduce: RobustReduce) -> None:
        self._reduces = {name: slot.reduce for name, slot in slots.items() if slot.reduce != "each"}
        self._reduce = reduce
        self._messages: dict[int, Message] = {}
        self.counted = 0
        self.kept_bytes = 0

    def add(self, message: Message, client: int = 0) -> None:
        place = client if client not in self._messages else max(self._messages) + 1
        groups = {name: group for name, group in message.groups.items() if name in self._reduces}
        self._messages[place] = Message(groups, message.scalars, message.weight).copied()  # a row may hold the same tensors
        self.counted += weight_of(message) > 0
        self.kept_bytes += memory_bytes(groups)

    def result(self) -> Message | None:
        messages = [message for _, message in sorted(self._messages.items()) if weight_of(message) > 0]
        if not messages:
            return None
        if len(messages) < self._reduce.fewest:
            raise ValueError(
                f"{self._reduce} needs at least {self._reduce.fewest} clients that count, found {len(messages)}. "
                "Use a larger cohort, or count on fewer attackers."
            )
        weights = torch.tensor([weight_of(message) for message in messages], dtype=torch.float64)
        first = messages[0]
        groups: Groups = {}
        names = [(group, name) for group, tensors in first.groups.items() for name in tensors]
        blocks = [torch.stack([message[group][name] for message in messages]) for group, name in names]
        scalars = [name for name in first.scalars if all(name in message.scalars for message in messages)]
        blocks += [torch.stack([message.scalars[name] for message in messages]) for name in scalars]
        found = self._reduce.centre(Updates(tuple(blocks), weights))
        for (group, name), value in zip(names, found, strict=False):
            dtype = first[group][name].dtype
            total = value * len(messages) if self._reduces[group] == "sum" else value
            whole_mean = self._reduces[group] == "mean" and not dtype.is_floating_point  # a mean of whole numbers is not whole
            groups.setdefault(group, {})[name] = total if whole_mean else total.to(dtype)
        return Message(groups, dict(zip(scalars, found[len(names) :], strict=True)), weights.sum())


def weight_of(message: Message) -> float:
    return 1.0 if message.weight is None else float(message.weight)
