"""What a recording can't hold, found by name before anything is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Unrecordable(RuntimeError):
    """Why a step has to be computed anew each time."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets a step run, and raises `Unrecordable` at the first operation that would not be the same in a replay.

    A CUDA graph would refuse most of these too, by leaving the device in a state that is hard to explain.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.lift_fresh.default:
            raise Unrecordable("it makes a tensor of Python numbers in every step; use torch.full, or put it into refs")
        for tag, reason in _REASONS.items():
            if tag in func.tags and not _by_whole_numbers(func, args):
                raise Unrecordable(reason)
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, Tensor) and value.device.type != self._device.type:
                raise Unrecordable(f"it computes on {value.device} ({func}), and the parameters are on {self._device}")
        return out


_REASONS = {
    torch.Tag.data_dependent_output: "it reads a number back from a tensor (a Python branch on it, float() or .item())",
    torch.Tag.dynamic_output_shape: "the shape of something in it depends on numbers, as of nonzero() or a mask as an index",
    torch.Tag.nondeterministic_seeded: "it draws random numbers by itself, as dropout does; let the ask draw noise",
}


def _by_whole_numbers(func: Any, args: Sequence[Any]) -> bool:
    """Indexing by positions, which has the shape of the positions (by a mask it would depend on the mask's numbers)."""
    if func is not torch.ops.aten.index.Tensor:
        return False
    return all(index is None or index.dtype not in (torch.bool, torch.uint8) for index in args[1])
