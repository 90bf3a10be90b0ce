"""Robust means that look at one coordinate at a time.

Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018,
arXiv 1803.01498: Definition 1, the coordinate-wise median, g_j = med{x_1j ... x_nj} (the usual one-dimensional median, the mean
of the two middle values where n is even), and Definition 2, the coordinate-wise beta-trimmed mean,

    g_j = 1 / ((1 - 2 beta) n) sum over U_j of x,   U_j: {x_1j ... x_nj} without the largest and the smallest beta n.

Both are unweighted by definition: a client that claims more examples moves nothing by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.reduce.kept import RobustReduce, Updates

_COLUMNS = 2**16  # sorted at once: a copy in float64 and its order are several times the block


@dataclass(frozen=True)
class CoordinateMedian(RobustReduce):
    """The median of every coordinate (Definition 1), unweighted. Holds while fewer than half of the clients attack."""

    def centre(self, updates: Updates) -> list[Tensor]:
        low, high = (len(updates) - 1) // 2, len(updates) // 2
        return [_in_the_middle(block, low, high + 1) for block in updates.blocks]


@dataclass(frozen=True)
class TrimmedMean(RobustReduce):
    """The mean of every coordinate without its largest and smallest values (Definition 2), unweighted.

    `fraction` (beta) is cut at either end: floor(beta n) clients, so it must be at least the share of attackers.
    """

    fraction: float = 0.2

    def __post_init__(self) -> None:
        if not 0.0 < self.fraction < 0.5:
            raise ValueError(
                f"A trimmed mean cuts a fraction between 0 and 0.5 at either end, found {self.fraction}. "
                "Use for example 0.2, or Mean() to cut nothing."
            )

    @property
    def fewest(self) -> int:
        """With fewer clients nobody would be cut, and it would be a mean that promises more."""
        return math.ceil(1.0 / self.fraction - 1e-9)

    def centre(self, updates: Updates) -> list[Tensor]:
        cut = self.cut(len(updates))
        return [_in_the_middle(block, cut, len(updates) - cut) for block in updates.blocks]

    def cut(self, clients: int) -> int:
        """How many are cut at either end (0.29 of 100 is 29, whatever the product of floats says)."""
        return math.floor(self.fraction * clients + 1e-9)


def _in_the_middle(block: Tensor, start: int, end: int) -> Tensor:
    """The mean of the sorted values from `start` up to `end`, coordinate by coordinate."""
    pieces = torch.split(block.reshape(len(block), block[0].numel()), _COLUMNS, dim=1)
    means = [piece.double().sort(dim=0).values[start:end].sum(0) / (end - start) for piece in pieces]
    return torch.cat(means).reshape(block.shape[1:])
