"""Gaussian noise that protects somebody: from the operating system's entropy, never from the run's seed."""

from __future__ import annotations

import secrets

import numpy as np
import torch
from torch import Tensor

from coterie.tensors import Tensors


class NoiseSource:
    """Draws fresh noise. An `audit_seed` makes it repeatable, which protects nobody: reports must say so.

    Each round has numbers of its own, and none of them is a number of another seed's round.
    """

    def __init__(self, audit_seed: int | None = None, round: int = 0) -> None:
        seeds = None if audit_seed is None else np.random.SeedSequence((audit_seed % 2**64, round))  # any whole number is a seed
        self._repeatable = None if seeds is None else np.random.Generator(np.random.Philox(seeds))

    def add(self, values: Tensors, std: float) -> Tensors:
        """`values` plus N(0, std^2) on every coordinate, drawn in float64."""
        return {name: value + (std * self._normal(value.shape)).to(value) for name, value in values.items()}

    def uniform(self, count: int) -> np.ndarray:
        """Numbers in (0, 1), 53 random bits each."""
        data = secrets.token_bytes(8 * count) if self._repeatable is None else self._repeatable.bytes(8 * count)
        bits: np.ndarray = np.frombuffer(data, dtype=np.uint64) >> np.uint64(11)
        return (bits.astype(np.float64) + 0.5) * 2.0**-53

    def _normal(self, shape: torch.Size) -> Tensor:
        """Box-Muller on those numbers."""
        count = shape.numel()
        pairs = (count + 1) // 2
        radius = np.sqrt(-2.0 * np.log(self.uniform(pairs)))
        angle = 2.0 * np.pi * self.uniform(pairs)
        both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
        return torch.from_numpy(both).reshape(shape)
