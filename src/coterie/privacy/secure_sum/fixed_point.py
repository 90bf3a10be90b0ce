"""Real numbers as whole numbers modulo 2^bits, so that masks can hide them perfectly and sums are exact.

encode(u) = round_stochastic(u 2^f) mod 2^bits, with f the largest whole number for which m clients can't overflow:
m (range 2^f + 1) <= 2^(bits-1) - 1. A rounding error lies strictly between -1 and 1 steps and is 0 on average, so the
decoded sum differs from the true one by less than m 2^-f in every coordinate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from coterie.privacy.secure_sum.settings import Bits

Whole: TypeAlias = npt.NDArray[Any]
"""Elements of the ring: uint32 or uint64."""

_RINGS: dict[int, tuple[Any, Any]] = {32: (np.uint32, np.int32), 64: (np.uint64, np.int64)}


def ring(bits: Bits) -> Any:
    return _RINGS[bits][0]


@dataclass(frozen=True)
class FixedPoint:
    """How numbers of absolute value up to `bound` are written so that `clients` of them can be added."""

    clients: int
    bound: float
    bits: Bits = 32

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise ValueError(f"A sum needs at least 1 client, found {self.clients}. Use 1 or more.")
        if not 0 < self.bound < math.inf:
            raise ValueError(f"The range of a fixed-point number must be greater than 0, found {self.bound}. Use for example 8.")
        if self.bits not in _RINGS:
            raise ValueError(f"Fixed-point numbers have 32 or 64 bits, found {self.bits}. Use 32 or 64.")
        if self._room < 2:
            raise ValueError(
                f"{self.clients} clients can't be added in {self.bits} bits: each would have fewer than two steps. "
                "Use 64 bits, or fewer clients."
            )

    @property
    def _room(self) -> int:
        """The largest whole number that every client may send."""
        return int(2 ** (self.bits - 1) - 1) // self.clients

    @property
    def fraction_bits(self) -> int:
        """f. It may be negative, where the range is larger than what fits."""
        guess = math.frexp(self._room)[1] - math.frexp(self.bound)[1]
        return next(f for f in range(guess + 1, guess - 3, -1) if math.ldexp(self.bound, f) <= self._room - 1)

    @property
    def step(self) -> float:
        return math.ldexp(1.0, -self.fraction_bits)

    @property
    def error(self) -> float:
        """More than any coordinate of the sum is off: m 2^-f. (Decoding adds float64's own rounding, which counts in 64 bits only.)"""
        return self.clients * self.step

    def encode(
        self, values: npt.NDArray[np.float64], uniform: npt.NDArray[np.float64], *, clamp: bool = False,
        noise: npt.NDArray[np.int64] | None = None,
    ) -> tuple[Whole, int]:  # fmt: skip
        """Ring elements, and how many coordinates were clamped to the range.

        `uniform`: numbers in [0, 1) by which is rounded up or down, without bias. `clamp` is for values that hold noise already:
        cutting them at the range is post-processing. Without it a value beyond the range is refused, because cutting it would
        change the sum silently. `noise`: whole numbers of a discrete mechanism, added after rounding; what then lies beyond the
        range is clamped too.
        """
        if not (finite := np.isfinite(values)).all():
            count = int(values.size - finite.sum())
            raise ValueError(f"Only finite numbers can be summed securely, found {count} of {values.size} that are not. Use a lower learning rate.")
        if not clamp and values.size and (largest := float(np.abs(values).max())) > self.bound:
            raise ValueError(
                f"A coordinate of {largest:.3g} lies beyond the range {self.bound:.3g} of the secure sum, where it would wrap around. "
                "Declare a larger range, or set a clip."
            )
        edge = math.ldexp(self.bound, self.fraction_bits)
        scaled = np.ldexp(values, self.fraction_bits)
        outside = int((np.abs(scaled) > edge).sum()) if clamp else 0
        scaled = np.clip(scaled, -edge, edge)
        below = np.floor(scaled)
        found = below.astype(np.int64) + (uniform < scaled - below)
        if noise is not None:
            found += noise
            limit = math.floor(edge) + 1
            outside += int((np.abs(found) > limit).sum())
            found = np.clip(found, -limit, limit)
        return found.astype(ring(self.bits)), outside  # two's complement: modulo 2^bits

    def decode(self, total: Whole) -> npt.NDArray[np.float64]:
        """The sum as real numbers: residues are centred around 0."""
        centred: npt.NDArray[np.float64] = total.view(_RINGS[self.bits][1]).astype(np.float64)
        return np.ldexp(centred, -self.fraction_bits)
