"""Groups of tensors of G clients, with a leading axis of clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from coterie.tensors import Groups

Axes: TypeAlias = dict[str, dict[str, int | None]]
"""group -> name -> the axis of clients; None where one tensor serves all."""


def stacked(groups: Sequence[Groups]) -> Groups:
    """Groups of G clients with a leading axis, as tensors of their own."""
    return {
        group: {name: torch.stack([own[group][name].detach() for own in groups]) for name in values}
        for group, values in groups[0].items()
    }


def expanded(groups: Sequence[Groups]) -> tuple[Groups, Axes]:
    """Like `stacked`, but what is one tensor for all stays one; with the axis of clients of each (None: for all)."""
    found: Groups = {}
    axes: Axes = {}
    for group, values in groups[0].items():
        found[group], axes[group] = {}, {}
        for name, value in values.items():
            same = all(own[group][name] is value for own in groups)
            found[group][name] = value if same else torch.stack([own[group][name].detach() for own in groups])
            axes[group][name] = None if same else 0
    return found, axes


def fill(groups_G: Groups, groups: Sequence[Groups], axes: Axes | None = None) -> None:
    """Write the groups of G clients into tensors that stay where they are."""
    for group, values_G in groups_G.items():
        for name, value_G in values_G.items():
            if axes and axes[group][name] is None:
                value_G.copy_(groups[0][group][name].detach())
            else:
                value_G.copy_(torch.stack([own[group][name].detach() for own in groups]))


def row_of(groups_G: Groups, client: int) -> Groups:
    return {group: {name: value[client].clone() for name, value in values.items()} for group, values in groups_G.items()}


def narrowed(groups_G: Groups, width: int, axes: Axes | None = None) -> Groups:
    """The first `width` clients, as views that are written through; what is one tensor for all stays as it is."""
    return {
        group: {name: value if axes and axes[group][name] is None else value[:width] for name, value in values.items()}
        for group, values in groups_G.items()
    }


def lifted(value_G: Tensor, dims: int) -> Tensor:
    """A number or tensor per client, with axes of size 1 after the first so that it goes with tensors of `dims` axes."""
    return value_G.reshape(len(value_G), *[1] * (dims - value_G.dim()), *value_G.shape[1:])
