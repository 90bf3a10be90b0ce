"""A recording for processors without graphs of their own: the list of operations, run again one by one.

It follows the rules of a CUDA graph: fixed tensors are read and written where they lie, and no Python code of
the step runs again. So it shows on any machine what a captured step would compute; it is not there for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten


@dataclass(frozen=True, eq=False)
class _Operation:
    func: Any
    given: list[Any]  # its arguments, flat
    shape: TreeSpec
    made: list[tuple[int, int]]  # which of them an earlier operation made: (place, slot)
    makes: list[int | None]  # the slots of what it gives
    last: list[int]  # slots that nobody reads afterwards


class Tape:
    """Runs `step` once, and what it did as often as `replay` is called."""

    def __init__(self, step: Callable[[], None]) -> None:
        mode = _Recorder()
        with mode:
            step()
        self._operations = mode.operations()
        self._slots = mode.count

    def replay(self) -> None:
        slots: list[Any] = [None] * self._slots
        with torch.no_grad():
            for operation in self._operations:
                given = list(operation.given)
                for place, slot in operation.made:
                    given[place] = slots[slot]
                args, kwargs = tree_unflatten(given, operation.shape)
                for made, value in zip(operation.makes, tree_leaves(operation.func(*args, **kwargs)), strict=True):
                    if made is not None:
                        slots[made] = value
                for slot in operation.last:
                    slots[slot] = None


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self._slots: dict[int, int] = {}
        self._seen: list[tuple[_Operation, list[Any]]] = []  # with its results, so that no id is given to another tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        given, shape = tree_flatten((tuple(args), dict(kwargs or {})))
        made = [(place, self._slots[id(value)]) for place, value in enumerate(given) if id(value) in self._slots]
        out = func(*args, **(kwargs or {}))
        results = tree_leaves(out)
        own = {id(value) for value in given if isinstance(value, Tensor)}  # what it gives back as it was
        for value in results:
            if isinstance(value, Tensor) and id(value) not in own and id(value) not in self._slots:
                self._slots[id(value)] = self.count
                self.count += 1
        makes = [self._slots.get(id(value)) if isinstance(value, Tensor) else None for value in results]
        kept = [None if id(value) in self._slots else value for value in given]
        self._seen.append((_Operation(func, kept, shape, made, makes, []), [*results, *given]))
        return out

    def operations(self) -> list[_Operation]:
        """All of them, each with the slots that it is the last to need."""
        last: dict[int, _Operation] = {}
        for operation, _ in self._seen:
            for slot in (*(slot for _, slot in operation.made), *(slot for slot in operation.makes if slot is not None)):
                last[slot] = operation
        for slot, operation in last.items():
            operation.last.append(slot)
        return [operation for operation, _ in self._seen]
