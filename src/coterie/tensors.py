"""Arithmetic on named tensors: pure functions on `dict[str, Tensor]`, never in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

Tensors: TypeAlias = dict[str, Tensor]
"""Parameter name -> tensor. Names and shapes stay the same for a whole run."""

Groups: TypeAlias = dict[str, Tensors]
"""Group name ("shared", "private", "control") -> its tensors."""


def tmap(fn: Callable[..., Tensor], first: Mapping[str, Tensor], *rest: Mapping[str, Tensor]) -> Tensors:
    """Apply `fn` name by name; every argument must have the names of the first."""
    return {name: fn(value, *(other[name] for other in rest)) for name, value in first.items()}


def gmap(fn: Callable[..., Tensor], first: Mapping[str, Tensors], *rest: Mapping[str, Tensors]) -> Groups:
    """`tmap` over every group."""
    return {group: tmap(fn, values, *(other[group] for other in rest)) for group, values in first.items()}


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensors:
    return tmap(torch.add, a, b)


def sub(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensors:
    return tmap(torch.sub, a, b)


def scale(a: Mapping[str, Tensor], factor: Tensor | float) -> Tensors:
    return {name: value * factor for name, value in a.items()}


def zeros_like(a: Mapping[str, Tensor]) -> Tensors:
    return tmap(torch.zeros_like, a)


def clone(a: Mapping[str, Tensor]) -> Tensors:
    return {name: value.detach().clone() for name, value in a.items()}


def clone_groups(groups: Mapping[str, Tensors]) -> Groups:
    return {group: clone(values) for group, values in groups.items()}


def copied_to(device: torch.device, groups: Mapping[str, Tensors]) -> Groups:
    """Copies on this device, also of single numbers that stayed with the processor."""
    return {group: {name: value.detach().to(device, copy=True) for name, value in values.items()} for group, values in groups.items()}


def equal_groups(a: Mapping[str, Mapping[str, Tensor]], b: Mapping[str, Mapping[str, Tensor]]) -> bool:
    """Equal names and equal bits."""
    if [(group, list(values)) for group, values in a.items()] != [(group, list(values)) for group, values in b.items()]:
        return False
    return all(torch.equal(value, b[group][name]) for group, values in a.items() for name, value in values.items())


def pick(a: Mapping[str, Tensor], names: Iterable[str]) -> Tensors:
    return {name: a[name] for name in names}


def merge(*parts: Mapping[str, Tensor]) -> Tensors:
    """One mapping of all names; two parts that hold the same name are a mistake of ours."""
    merged: Tensors = {}
    for part in parts:
        twice = merged.keys() & part.keys()
        assert not twice, f"groups overlap in {sorted(twice)[:3]}"
        merged.update(part)
    return merged


def squared_norm(a: Mapping[str, Tensor]) -> Tensor:
    """Sum of squares over all entries, in float64 (0 for no tensors at all)."""
    squares = [value.detach().double().square().sum() for value in a.values()]
    return torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)


def squared_distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """||a - b||^2 over the names of b, as something that can be trained on (unlike `squared_norm`)."""
    return torch.stack([(a[name] - value).square().sum() for name, value in b.items()]).sum()


def norm(groups: Iterable[Mapping[str, Tensor]]) -> Tensor:
    """The L2 norm of all groups together."""
    squares = [squared_norm(group).cpu() for group in groups]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros((), dtype=torch.float64)


def refuse_others(groups: Mapping[str, Mapping[str, object]], what: str) -> None:
    """Refuse anything but tensors, where its author can still be named."""
    for group, values in groups.items():
        for name, value in values.items():
            if not isinstance(value, Tensor):
                found = type(value).__name__
                raise ValueError(f"{what} carries tensors only, found a {found} as '{name}' in '{group}'. Use torch.tensor(...).")


def num_elements(a: Mapping[str, Tensor]) -> int:
    return sum(value.numel() for value in a.values())


def num_bytes(value: Tensor) -> int:
    """What a tensor costs on the wire: flags are packed to bits, everything else is sent as it is."""
    if value.dtype == torch.bool:
        return -(-value.numel() // 8)
    return value.numel() * value.element_size()


def memory_bytes(groups: Mapping[str, Tensors]) -> int:
    """Bytes that these tensors hold in memory."""
    return sum(value.numel() * value.element_size() for tensors in groups.values() for value in tensors.values())


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real examples of a batch; padded rows (mask 0) count for nothing."""
    weights = mask.to(values.dtype)
    return (values * weights).sum() / weights.sum().clamp(min=1.0)
