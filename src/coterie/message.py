"""The only thing that crosses between a client and the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from safetensors.torch import load, save
from torch import Tensor

from coterie.tensors import Groups, Tensors, clone, clone_groups, num_bytes, refuse_others

Kind = Literal["value", "change"]
Reduction = Literal["mean", "sum", "each"]
Guard = Literal["update", "examples", "public"]

SCALARS = "scalars"
"""The slot that declares a Message's scalars: names, with the shape () and guard "public"."""

_NUMBER_BYTES = 8  # a scalar or a weight on the wire


@dataclass(frozen=True)
class Slot:
    """What one group of a client's Message may be.

    `kind`: a "value" is an absolute state, from which the engine subtracts what it really sent;
    a "change" is taken as it is. `reduce`: "mean" is weighted, "sum" is not, "each" keeps every
    client's own. `guard`: which protection applies; "public" is never clipped or noised.
    """

    spec: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    kind: Kind = "value"
    reduce: Reduction = "mean"
    guard: Guard = "update"
    subset: bool = False  # a client may send fewer names ("each" only)

    def __post_init__(self) -> None:
        if self.subset and self.reduce != "each":
            raise ValueError(
                f"A slot that allows a subset of names must be reduced 'each', found '{self.reduce}'. "
                "Use reduce='each', or send every name."
            )

    @classmethod
    def like(
        cls, tensors: Mapping[str, Tensor], *, kind: Kind = "value", reduce: Reduction = "mean",
        guard: Guard = "update", subset: bool = False,
    ) -> Slot:
        """A slot for tensors of these names, shapes and dtypes."""
        spec = {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}
        return cls(spec, kind, reduce, guard, subset)


@dataclass(frozen=True)
class Message:
    """Named groups of tensors, a few numbers, and how much the sender counts.

    `weight` is a float64 >= 0 (8 bytes on the wire); None means that all count the same and costs nothing.
    Groups without tensors vanish, so that a Message and its bytes say the same.
    """

    groups: Groups = field(default_factory=dict)
    scalars: Tensors = field(default_factory=dict)
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", {name: group for name, group in self.groups.items() if group})
        refuse_others({**self.groups, "scalars": self.scalars}, "A Message")
        if self.weight is not None and not (isinstance(self.weight, Tensor) and self.weight.numel() == 1):
            raise ValueError(f"The weight of a Message is one number, found {self.weight!r}. Use torch.tensor(12.0).")

    def __getitem__(self, group: str) -> Tensors:
        try:
            return self.groups[group]
        except KeyError:
            raise KeyError(f"this Message has no group '{group}', only {sorted(self.groups)}") from None

    def group(self, name: str) -> Tensors:
        """The group, or no tensors where it is absent (a net without buffers sends none)."""
        return self.groups.get(name, {})

    def plus(self, **groups: Tensors) -> Message:
        """Also these groups; one that is already there is a conflict of two methods."""
        twice = sorted(self.groups.keys() & groups.keys())
        if twice:
            raise ValueError(f"Two methods write the same group {twice} of one Message. Give one of them another name.")
        return replace(self, groups={**self.groups, **groups})

    def with_(self, **groups: Tensors) -> Message:
        """The same Message with these groups replaced."""
        return replace(self, groups={**self.groups, **groups})

    def copied(self) -> Message:
        """The same Message with tensors of its own, as if it had crossed a wire."""
        weight = None if self.weight is None else self.weight.detach().clone()
        return Message(clone_groups(self.groups), clone(self.scalars), weight)

    def weighing(self, factor: Tensor | float) -> Message:
        """Count `factor` times as much."""
        own = torch.ones((), dtype=torch.float64) if self.weight is None else self.weight
        return replace(self, weight=own * torch.as_tensor(factor, dtype=torch.float64))

    def bytes_by_slot(self) -> dict[str, int]:
        """Bytes on the wire by group, with scalars as "scalars" and the weight as "weight"."""
        counted = {name: sum(map(num_bytes, group.values())) for name, group in self.groups.items()}
        if self.scalars:
            counted["scalars"] = _NUMBER_BYTES * sum(value.numel() for value in self.scalars.values())
        if self.weight is not None:
            counted["weight"] = _NUMBER_BYTES
        return counted

    def to_bytes(self) -> bytes:
        flat = {f"group|{g}|{n}": value for g, group in self.groups.items() for n, value in group.items()}
        flat |= {f"scalar|{name}": value for name, value in self.scalars.items()}
        if self.weight is not None:
            flat["weight"] = self.weight
        return pack(flat)

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        groups: Groups = {}
        scalars: Tensors = {}
        weight: Tensor | None = None
        for name, value in unpack(data).items():
            kind, *rest = name.split("|", 2)
            if kind == "group":
                groups.setdefault(rest[0], {})[rest[1]] = value
            elif kind == "scalar":
                scalars["|".join(rest)] = value
            else:
                weight = value
        return cls(groups, scalars, weight)


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Named tensors as safetensors bytes. The format sorts by itself, so the place goes into the name:
    sums over names must not depend on whether a Message travelled. Views are copied, as the format asks."""
    return save(
        {
            f"{place:06d}|{name}": value.detach().cpu().clone(memory_format=torch.contiguous_format)
            for place, (name, value) in enumerate(tensors.items())
        }
    )


def unpack(data: bytes) -> Tensors:
    return {name.split("|", 1)[1]: value for name, value in sorted(load(data).items())}


def pack_groups(groups: Mapping[str, Tensors]) -> bytes:
    """What somebody remembers. A group without tensors stays (unlike in a Message): a method may look for its name.
    What lay on an accelerator says so, to be put back there."""
    flat: Tensors = {}
    for group, tensors in groups.items():
        found = {f"{'group' if value.device.type == 'cpu' else 'there'}|{group}|{name}": value for name, value in tensors.items()}
        flat |= found or {f"empty|{group}": torch.empty(0)}
    return pack(flat)


def unpack_groups(data: bytes, device: torch.device | None = None) -> Groups:
    """With a device: what lay on an accelerator is put there, what did not stays with the processor."""
    groups: Groups = {}
    for name, value in unpack(data).items():
        kind, group, *rest = name.split("|", 2)
        groups.setdefault(group, {})
        if kind != "empty":
            groups[group][rest[0]] = value.to(device) if kind == "there" and device is not None else value
    return groups
