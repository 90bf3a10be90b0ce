"""What a secure sum asks for: threshold, ring, neighbours, and the range of what is summed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Bits = Literal[32, 64]

SMALLEST_COHORT = 3  # of two clients, each knows the other's value once it knows the sum


class Aborted(RuntimeError):
    """A secure sum that ended without a result: too few clients were left, and nothing was revealed."""


@dataclass(frozen=True, kw_only=True)
class SecureSum:
    """The server learns the sum of what clients send, and nothing of any one of them.

    `threshold`: clients that must stay to the end, and whose shares together can remove masks; None for more than two thirds.
    `bits`: the ring Z_2^bits in which is summed. `neighbours`: None masks every pair of clients; k masks each with k others
    only, for large cohorts, and the threshold then counts within a neighbourhood (k others and the client itself).
    `range`: the largest absolute coordinate of one client's weighted change; None for the clip of the guards.
    `dropout`: the chance that a client falls silent in a round, in one of the four phases, for experiments.
    """

    threshold: int | None = None
    bits: Bits = 32
    neighbours: int | None = None
    range: float | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.bits not in get_args(Bits):
            raise ValueError(f"A secure sum counts in 32 or 64 bits, found {self.bits}. Use 32, or 64 for finer steps.")
        if self.threshold is not None and self.threshold < 2:
            raise ValueError(f"The threshold of a secure sum must be at least 2, found {self.threshold}. Leave it out for two thirds.")
        if self.neighbours is not None and (self.neighbours < 4 or self.neighbours % 2):
            raise ValueError(
                f"The neighbours of a secure sum must be an even number of at least 4, found {self.neighbours}. "
                "Use for example 40, or leave it out for all pairs."
            )
        if self.range is not None and not 0 < self.range < math.inf:
            raise ValueError(f"The range of a secure sum must be greater than 0, found {self.range}. Use for example 8.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, found {self.dropout}. Use for example 0.1.")

    def holders(self, clients: int) -> int:
        """How many clients hold shares of one client's secrets, itself among them."""
        return clients if self.neighbours is None else min(clients, self.neighbours + 1)

    def threshold_among(self, clients: int) -> int:
        """How many holders of a client's shares must stay. More than half of them in every case: two halves could otherwise
        be told different things, and be asked for both kinds of shares of one client."""
        holders = self.holders(clients)
        if self.threshold is None:
            return 2 * holders // 3 + 1
        return max(self.threshold, holders // 2 + 1)

    def check_cohort(self, clients: int, *, at_most: bool = False) -> None:
        """Refuse a cohort of this many clients (or up to as many), in which nothing could be summed securely."""
        if clients < SMALLEST_COHORT:
            raise ValueError(
                f"A secure sum needs at least {SMALLEST_COHORT} clients in a round, found {clients}. "
                "Use a larger cohort, or leave out the secure sum."
            )
        holders = self.holders(clients)
        if self.threshold is not None and self.threshold > holders:
            what = f"{clients} clients" if holders == clients else f"a client and its {holders - 1} neighbours"
            raise ValueError(
                f"The threshold of the secure sum is {self.threshold}, but shares are held by {what} only. "
                f"Use {holders} or less, or leave it out for {2 * holders // 3 + 1}."
            )
        if self.threshold is not None and 2 * self.threshold <= holders and not at_most:
            raise ValueError(
                f"The threshold of the secure sum is {self.threshold} of {holders}: two separate groups could be asked for both kinds of "
                f"shares of one client. Use {holders // 2 + 1} or more, or leave it out for {2 * holders // 3 + 1}."
            )
