"""A lying score: the client claims the largest weight that PrivFedTalk's ISFA can give, s = 1 and n = n_max.

ISFA weighs a client by a_k = min(n_k, n_max) / n_max * exp(gamma (s_k - 1)) in (0, 1]  (PT-D2, bounded form of (21)). Whoever lies
claims a = 1, and gains

    1 / a_k = n_max / min(n_k, n_max) * exp(gamma (1 - s_k)) <= exp(gamma) n_max / min(n_k, n_max),

with equality for a true score of 0. Without n_max it would gain whatever number of examples it makes up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from coterie.attacks.poison.attack import Attack
from coterie.attacks.poison.updates import scaled
from coterie.message import Message
from coterie.randomness import Key


@dataclass(frozen=True, kw_only=True)
class LyingScore(Attack):
    """Claim the weight 1, whatever one's score; `scale` also multiplies the update (-1 turns it round).

    `sharpness` (gamma) and `n_max` are the method's, to say what the lie can gain at most.
    """

    sharpness: float = 0.5
    n_max: int = 32
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.sharpness < math.inf or self.n_max < 1:
            raise ValueError(
                f"sharpness must be at least 0 and n_max at least 1, found {self.sharpness} and {self.n_max}. Use the method's own."
            )
        if not math.isfinite(self.scale):
            raise ValueError(f"scale must be a finite number, found {self.scale}. Use 1 to lie about the score alone.")

    @property
    def tampers(self) -> bool:
        return True

    def tamper(
        self, messages: Mapping[int, Message], downs: Mapping[int, Message], key: Key, honest: Mapping[int, Message]
    ) -> Mapping[int, Message]:
        claimed = torch.ones((), dtype=torch.float64)
        return {
            client: Message(scaled(message.groups, self.scale), message.scalars, claimed) for client, message in messages.items()
        }

    def facts(self, sizes: Mapping[int, int]) -> dict[str, float]:
        return {"weight_gain_bound": max(largest_gain(self.sharpness, self.n_max, size) for size in sizes.values())}


def isfa_weight(score: float, examples: int, sharpness: float, n_max: int) -> float:
    """a_k of PT-D2."""
    return min(examples, n_max) / n_max * math.exp(sharpness * (score - 1.0))


def largest_gain(sharpness: float, n_max: int, examples: int) -> float:
    """How many times its weight a client of so many examples can claim at most."""
    return 1.0 / isfa_weight(0.0, examples, sharpness, n_max)
