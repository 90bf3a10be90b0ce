"""How long a client's change may be: one bound for all of it, one for each group, or one that follows a quantile.

Adaptive: Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021, arXiv 1905.03871, Algorithm 1:

    b_k = 1 if ||Delta_k|| <= C,    C <- C exp(-eta_C (mean b_k - gamma)),
    z_Delta = (z^-2 - (2 sigma_b)^-2)^(-1/2).

paper symbol -> our name: gamma -> quantile; eta_C -> rate; sigma_b -> bit noise; z -> the declared noise; z_Delta -> update noise.
A bit is sent as b - 1/2: adding or removing a client then moves the sum by 1/2 only, which is where the 2 comes from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.message import Slot

ClipMode = Literal["flat", "groups", "adaptive"]
ClipGroups = Literal["layers", "slots"]

BIT = "clip"
"""The group of a Message that holds the adaptive clip's bit."""

BIT_SLOT = Slot({"within": ((), torch.float64)}, kind="change", reduce="sum")

_WHOLE_RANGE = 1e9  # how far an adaptive clip may move from where it began; noise on few bits could otherwise send it anywhere
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """An adaptive clip: `quantile` of the clients' changes shall be shorter than it; it moves by `rate` in the exponent.

    `bit_noise`: sigma_b, in bits; None for 1.7 times the declared noise, which costs the update 5 % more noise.
    """

    quantile: float = 0.5
    rate: float = 0.2
    bit_noise: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.quantile <= 1:
            raise ValueError(f"The quantile of an adaptive clip must lie in [0, 1], found {self.quantile}. Use for example 0.5.")
        if not 0 < self.rate < math.inf:
            raise ValueError(f"The rate of an adaptive clip must be greater than 0, found {self.rate}. Use for example 0.2.")
        if self.bit_noise is not None and not 0 < self.bit_noise < math.inf:
            raise ValueError(f"The bit noise of an adaptive clip must be greater than 0, found {self.bit_noise}. Leave it out for the default.")

    def noise_on_bit(self, noise: float) -> float:
        return 1.7 * noise if self.bit_noise is None else self.bit_noise

    def noise_on_update(self, noise: float) -> float:
        """z_Delta, so that update and bit together cost what the declared noise alone would."""
        of_both, of_bit = 1.0 / noise, 0.5 / self.noise_on_bit(noise)
        left = (of_both - of_bit) * (of_both + of_bit)
        if left <= 0:
            raise ValueError(
                f"The adaptive clip's bit has noise {self.noise_on_bit(noise):g}, which alone costs more than the declared noise {noise:g}. "
                f"Use a bit noise above {noise / 2:g}, or leave it out."
            )
        return 1.0 / math.sqrt(left)

    def next_clip(self, clip: float, bits: float, expected: float, first: float) -> float:
        """The clip of the next round from the (noised) sum of b - 1/2 over the clients, and how many were expected."""
        within = 0.5 + bits / expected
        exponent = max(-50.0, min(50.0, -self.rate * (within - self.quantile)))
        return max(first / _WHOLE_RANGE, min(first * _WHOLE_RANGE, clip * math.exp(exponent)))


def length(values: Iterable[Tensor]) -> float:
    """The L2 norm of all of them in float64, for every size of number: squares of 1e200 or 1e-200 would be lost."""
    return _norm(torch.tensor([_norm(value.detach()) for value in values], dtype=torch.float64))


def _norm(value: Tensor) -> float:
    value = value.double()
    largest = float(value.abs().max()) if value.numel() else 0.0
    if not 0.0 < largest < math.inf:  # NaN too
        return largest
    return largest * float((value / largest).square().sum().sqrt())


def factor_to(bound: float, found: float) -> float:
    """What a vector of this length is multiplied by. A hair less than exact: the rounding of products must not pass the bound."""
    return 1.0 if found <= bound else bound / found * (1.0 - 1e-13)


def units(groups: Mapping[str, Mapping[str, Tensor]], mode: ClipMode, by: ClipGroups) -> list[list[tuple[str, str]]]:
    """The (group, name) pairs that share one bound: everything, or a slot's, or a layer's within its slot."""
    every = [(group, name) for group, tensors in groups.items() for name in tensors]
    if mode != "groups":
        return [every] if every else []
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for group, name in every:
        found.setdefault((group, name.rpartition(".")[0] if by == "layers" else ""), []).append((group, name))
    return list(found.values())


def towards_zero(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 numbers in another dtype, none larger in size than it was: rounding up would pass the clip."""
    rounded = exact.to(dtype)
    if dtype == exact.dtype:
        return rounded
    bits = rounded.contiguous().view(_INTEGERS[rounded.element_size()])
    # floats are sign and magnitude: the next one towards zero has the bit pattern before
    return (bits - (rounded.double().abs() > exact.abs()).to(bits.dtype)).view(dtype)
