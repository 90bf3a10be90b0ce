"""The layer groups of a net, which FL-GAP freezes, uploads and mixes as wholes: parameters with their statistics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.method import Net
from coterie.tensors import Tensors


@dataclass(frozen=True)
class Layers:
    """Names by group, from input to output; the last group is the head."""

    params: tuple[tuple[str, ...], ...]
    buffers: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, net: Net) -> Layers:
        """The net's own groups. A net with fewer than two has nothing to freeze."""
        params = tuple(net.groups.values())
        if len(params) < 2:
            raise ValueError(
                f"FL-GAP freezes and opens layer groups, but this net has {len(params)}. "
                "Use a net whose encoder has named children."
            )
        loose = net.params.keys() - {name for names in params for name in names}
        if loose:
            raise ValueError(
                f"The parameter '{min(loose)}' is in no layer group, so FL-GAP can neither freeze nor send it. "
                "Put every parameter into a named child of the encoder, or into the head."
            )
        return cls(params, tuple(net.buffer_groups[name] for name in net.groups))

    def __len__(self) -> int:
        return len(self.params)

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        """Every group's parameters and statistics together."""
        return (params + buffers for params, buffers in zip(self.params, self.buffers, strict=True))

    def frozen(self, moving: Tensor) -> Tensors:
        """One flag per parameter: does its group stand still?"""
        return {name: ~moving[place] for place, names in enumerate(self.params) for name in names}

    def params_in(self, chosen: Tensor) -> tuple[str, ...]:
        return _flat(self.params, chosen)

    def buffers_in(self, chosen: Tensor) -> tuple[str, ...]:
        return _flat(self.buffers, chosen)

    def head(self) -> Tensor:
        """A flag for the last group only."""
        flags = torch.zeros(len(self), dtype=torch.bool)
        flags[-1] = True
        return flags

    def having(self, held: Tensors) -> Tensor:
        """Which groups are among these tensors."""
        return torch.tensor([names[0] in held for names in self.params])

    def differ(self, a: Tensors, b: Tensors) -> Tensor:
        """Which groups are not equal bit for bit."""
        return torch.tensor([any(not torch.equal(a[name], b[name]) for name in names) for names in self])


def _flat(names: tuple[tuple[str, ...], ...], chosen: Tensor) -> tuple[str, ...]:
    return tuple(name for place, group in enumerate(names) if bool(chosen[place]) for name in group)
