"""Gaussian noise that protects somebody: from the operating system's entropy, never from the run's seed."""

from __future__ import annotations

import math
import secrets
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coterie.privacy.discrete import discrete_gaussian
from coterie.tensors import Tensors

Mechanism = Literal["gaussian", "discrete"]

STEPS_PER_CLIP = 2**16
"""Discrete noise lives on a grid: so many of its steps, at least, are as long as the clip."""


def grid_step(clip: float) -> float:
    """The spacing of the grid: a power of two, so that fixed-point numbers hold its points exactly."""
    return math.ldexp(1.0, math.frexp(clip / STEPS_PER_CLIP)[1] - 1)


class NoiseSource:
    """Draws fresh noise. An `audit_seed` makes it repeatable, which protects nobody: reports must say so.

    Each round has numbers of its own, and none of them is a number of another seed's round.
    """

    def __init__(self, audit_seed: int | None = None, round: int = 0) -> None:
        seeds = None if audit_seed is None else np.random.SeedSequence((audit_seed % 2**64, round))  # any whole number is a seed
        self._repeatable = None if seeds is None else np.random.Generator(np.random.Philox(seeds))

    def add(self, values: Tensors, std: float) -> Tensors:
        """`values` plus N(0, std^2) on every coordinate, drawn and added in float64, whatever the values' own dtype."""
        return {name: value.double() + std * self._normal(value.shape).to(value.device) for name, value in values.items()}

    def add_discrete(self, values: Tensors, std: float, step: float) -> Tensors:
        """Multiples of `step` (cut towards zero, so that no vector grows) plus a discrete Gaussian of deviation std or, by
        less than a step, more."""
        sigma = math.ceil(std / step)
        found: Tensors = {}
        for name, value in values.items():
            drawn = torch.from_numpy(discrete_gaussian(sigma, value.numel(), self.words)).reshape(value.shape)
            found[name] = ((value.double() / step).trunc() + drawn.to(value.device)) * step
        return found

    def words(self, count: int) -> np.ndarray:
        """Uniform 64-bit words."""
        data = secrets.token_bytes(8 * count) if self._repeatable is None else self._repeatable.bytes(8 * count)
        return np.frombuffer(data, dtype=np.uint64)

    def uniform(self, count: int) -> np.ndarray:
        """Numbers in (0, 1), 53 random bits each."""
        bits = self.words(count) >> np.uint64(11)
        drawn: np.ndarray = (bits.astype(np.float64) + 0.5) * 2.0**-53
        return drawn

    def _normal(self, shape: torch.Size) -> Tensor:
        """Box-Muller on those numbers."""
        count = shape.numel()
        pairs = (count + 1) // 2
        radius = np.sqrt(-2.0 * np.log(self.uniform(pairs)))
        angle = 2.0 * np.pi * self.uniform(pairs)
        both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
        return torch.from_numpy(both).reshape(shape)
