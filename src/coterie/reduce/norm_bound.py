"""Norm bounding: the server shortens long updates, so that nobody moves the model further than the rest.

Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated Learning?", 2019, arXiv 1911.07963 (norm thresholding of updates):

    mean = sum_k w_k x_k / max(1, ||x_k|| / M) / sum_k w_k.

Without a stated M it is the median of this round's norms (adaptive clipping as in FLAME, Nguyen et al., USENIX Security 2022), which
follows the training by itself and holds while fewer than half of the clients attack. Weights are the clients' own, as in the plain mean: what
is bounded is the length of an update, not the weight that a client claims.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from coterie.reduce.kept import RobustReduce, Updates


@dataclass(frozen=True)
class NormBound(RobustReduce):
    """The weighted mean of updates that are at most `bound` (M) long; None takes the median of the round's norms."""

    bound: float | None = None

    def __post_init__(self) -> None:
        if self.bound is not None and not 0.0 < self.bound < math.inf:
            raise ValueError(f"bound must be greater than 0, found {self.bound}. Use for example 1.0, or leave it out for the median.")

    def centre(self, updates: Updates) -> list[Tensor]:
        norms = updates.squared_norms().sqrt()
        bound = float(norms.quantile(0.5)) if self.bound is None else self.bound
        factors = (bound / norms.clamp(min=1e-300)).clamp(max=1.0)
        return updates.combined(updates.weights * factors / updates.weights.sum())

