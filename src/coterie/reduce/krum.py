"""Krum and Multi-Krum: trust the updates that have many others near them.

Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NIPS 2017,
section 4. With n clients of which f may attack, the score of client i is the sum of squared distances to its n - f - 2 closest
others (i -> j),

    s(i) = sum over i -> j of ||x_i - x_j||^2,        Krum(x_1 ... x_n) = x_i*,   i* = argmin s(i),

of equal scores the smallest id, and 2 f + 2 < n is needed (Proposition 1). Multi-Krum is the mean of
the `keep` clients of smallest score. Both are unweighted by definition. One decision holds for all groups of a client: the distance is
over everything that is averaged or summed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.reduce.kept import RobustReduce, Updates


@dataclass(frozen=True)
class Krum(RobustReduce):
    """The update of the client that has the others nearest to it. `attackers` is f, the most that are tolerated."""

    attackers: int = 1

    def __post_init__(self) -> None:
        if self.attackers < 0:
            raise ValueError(f"attackers must be at least 0, found {self.attackers}. Use the most that you expect among the clients.")

    @property
    def fewest(self) -> int:
        return 2 * self.attackers + 3

    def centre(self, updates: Updates) -> list[Tensor]:
        return updates.combined(self.shares(updates))

    def kept(self, clients: int) -> int:
        """How many of the best are averaged."""
        return 1

    def shares(self, updates: Updates) -> Tensor:
        """What each client counts: equal parts for those of smallest score, 0 for the others."""
        scores = krum_scores(updates.squared_distances(), self.attackers)
        best = scores.argsort(stable=True)[: self.kept(len(updates))]  # clients stand in the order of their ids
        shares = torch.zeros(len(updates), dtype=torch.float64)
        shares[best] = 1.0 / len(best)
        return shares


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The mean of the `keep` updates of smallest score (by default n - f)."""

    keep: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is not None and self.keep < 1:
            raise ValueError(f"keep must be at least 1, found {self.keep}. Use the number of updates to average, or leave it out.")

    @property
    def fewest(self) -> int:
        return max(super().fewest, self.keep or 0)

    def kept(self, clients: int) -> int:
        return clients - self.attackers if self.keep is None else self.keep


def krum_scores(squared_distances: Tensor, attackers: int) -> Tensor:
    """s(i): the sum over the n - f - 2 closest others."""
    closest = len(squared_distances) - attackers - 2
    others = squared_distances.clone().fill_diagonal_(torch.inf)  # a client is not its own neighbour
    return others.sort(dim=1).values[:, :closest].sum(1)
