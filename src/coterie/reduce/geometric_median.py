"""The geometric median: the point of the smallest weighted sum of distances to all updates.

Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning" (RFA), IEEE Transactions on Signal Processing 2022,
arXiv 1912.13445: minimise g(v) = sum_k a_k ||v - x_k|| with the smoothed Weiszfeld algorithm (Algorithm 2),

    b_k = a_k / max(nu, ||v - x_k||),   v <- sum_k b_k x_k / sum_k b_k,

from the weighted mean. a_k = w_k / sum_j w_j, so a client counts as much as it claims, and the median holds while attackers have less
than half of the weight. It stops after `iterations`, or when v moves by less than a millionth of its median distance to the updates: the
objective would say nothing beside one huge update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.reduce.kept import RobustReduce, Updates

_STILL = 1e-6


@dataclass(frozen=True)
class GeometricMedian(RobustReduce):
    """Smoothed Weiszfeld steps over all groups together, weighted. `smoothing` is nu."""

    iterations: int = 100
    smoothing: float = 1e-6

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, found {self.iterations}. Use for example 100.")
        if not 0.0 < self.smoothing < math.inf:
            raise ValueError(f"smoothing must be greater than 0, found {self.smoothing}. Use for example 1e-6.")

    def centre(self, updates: Updates) -> list[Tensor]:
        weights = updates.weights / updates.weights.sum()
        point = updates.combined(weights)
        for _ in range(self.iterations):
            lengths = _distances(updates, point)
            pull = weights / lengths.clamp(min=self.smoothing)  # b_k of Algorithm 2
            before, point = point, updates.combined(pull / pull.sum())
            moved = sum(float((new - old).square().sum()) for new, old in zip(point, before, strict=True))
            if math.sqrt(moved) <= _STILL * float(lengths.quantile(0.5)):
                break
        return point


def _distances(updates: Updates, point: list[Tensor]) -> Tensor:
    """||v - x_k||."""
    squares = [(block - v.flatten()).square().sum(1).cpu() for block, v in zip(updates.doubled(), point, strict=True)]
    return torch.stack(squares).sum(0).sqrt()
