"""Counter-based random numbers: the same for any order of clients, any worker, CPU and GPU.

A number depends only on its key (seed, round, client, purpose ...), the step and its place in the tensor.
The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011),
written in integer tensor arithmetic so that it also runs under vmap and inside a captured graph.
Noise that protects somebody's privacy never comes from here: see `coterie.privacy.noise`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_GAMMA_TRIES = 16  # Marsaglia-Tsang accepts more than 95 % of its tries, so 16 misses have probability below 1e-20


@dataclass(frozen=True)
class Key:
    """A place in the tree of all random numbers of a run: a seed and the path to a purpose."""

    seed: int
    path: tuple[int | str, ...] = ()

    def fold(self, *parts: int | str) -> Key:
        return Key(self.seed, self.path + parts)

    @property
    def words(self) -> tuple[int, int]:
        """The 64 bits that Philox is keyed with."""
        text = "\x1f".join([str(self.seed), *(f"{type(part).__name__}:{part}" for part in self.path)])
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")

    def numpy(self) -> np.random.Generator:
        """A host generator for shuffles and partitions."""
        low, high = self.words
        return np.random.Generator(np.random.Philox(key=low | high << 32))

    def torch_seed(self) -> int:
        """A 63-bit seed for torch's own generator (weight initialisation)."""
        low, high = self.words
        return low | (high & 0x7FFFFFFF) << 32


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor | int, Tensor | int]) -> tuple[Tensor, ...]:
    """Philox4x32-10 on int64 tensors that hold 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def _multiply(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """High and low word of a 32 x 32 bit product; in halves, because int64 has only 63 bits to spare."""
    high = (a * (b >> 16) + (a * (b & 0xFFFF) >> 16)) >> 16
    return high, (a * (b & 0xFFFF) + ((a * (b >> 16) & 0xFFFF) << 16)) & _MASK


Words: TypeAlias = tuple[Tensor, Tensor]
"""The key words of G places, [G, 1] each."""


def words_of(keys: Sequence[Key], device: torch.device) -> Words:
    """What `draw_many` needs to know of these keys: hashed once, for all steps."""
    low, high = zip(*(key.words for key in keys), strict=True)
    return torch.tensor(low, device=device)[:, None], torch.tensor(high, device=device)[:, None]


def _random_words(words: Words, step: int | Tensor, stream: int, count: int) -> Tensor:
    """`count` random 32-bit words of every place, [G, count]."""
    blocks = torch.arange(-(-count // 4), dtype=torch.int64, device=words[0].device)
    zero = torch.zeros_like(blocks)
    drawn = philox((blocks, zero + stream, zero + step, zero), words)
    return torch.stack(drawn, dim=2).flatten(1)[:, :count]


@dataclass(frozen=True)
class Draw:
    """A random tensor that an ask wants at each step. The size "batch" stands for the batch size."""

    kind: Literal["normal", "uniform", "integers", "bernoulli", "beta", "categorical"]
    shape: tuple[int | Literal["batch"], ...]
    args: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        wanted = {"normal": 0, "uniform": 0, "integers": 1, "bernoulli": 1, "beta": 2}
        if self.kind in wanted and len(self.args) != wanted[self.kind]:
            raise ValueError(f"Draw '{self.kind}' takes {wanted[self.kind]} numbers, found {self.args}. Give exactly those.")


def draw(key: Key, step: int | Tensor, spec: Draw, batch: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The tensor that `spec` asks for at `step`."""
    return draw_many(words_of([key], device), step, spec, batch, dtype)[0]


def draw_many(words: Words, step: int | Tensor, spec: Draw, batch: int, dtype: torch.dtype) -> Tensor:
    """What `draw` gives for each of G keys, as one tensor with a leading axis of G."""
    shape = (len(words[0]), *(batch if size == "batch" else int(size) for size in spec.shape))
    count = math.prod(shape[1:])
    if spec.kind == "normal":
        return _normal(words, step, 0, count).to(dtype).reshape(shape)
    if spec.kind == "beta":
        a, b = spec.args
        first, second = _gamma(words, step, 1, a, count), _gamma(words, step, 100, b, count)
        return (first / (first + second)).to(dtype).reshape(shape)
    drawn = _random_words(words, step, 0, count)
    if spec.kind == "integers":
        return (drawn * int(spec.args[0]) >> 32).reshape(shape)
    uniform = (drawn >> 8).double() * 2.0**-24  # 24 bits: exact in float32 and never rounded up to 1
    if spec.kind == "uniform":
        return uniform.to(dtype).reshape(shape)
    if spec.kind == "bernoulli":
        return (uniform < spec.args[0]).reshape(shape)
    weights = torch.tensor(spec.args, dtype=torch.float64, device=uniform.device)
    return torch.bucketize(uniform, (weights / weights.sum()).cumsum(0)[:-1], right=True).reshape(shape)


def _open_uniform(words: Words, step: int | Tensor, stream: int, count: int) -> Tensor:
    """In (0, 1), never 0: its logarithm is finite."""
    return (_random_words(words, step, stream, count).double() + 0.5) * 2.0**-32


def _normal(words: Words, step: int | Tensor, stream: int, count: int) -> Tensor:
    """Box-Muller on 32-bit words, computed in float64 whatever it is cast to afterwards."""
    u = _open_uniform(words, step, stream, count + count % 2)
    radius, angle = (-2.0 * u[:, 0::2].log()).sqrt(), 2.0 * math.pi * u[:, 1::2]
    # side by side, so that a number depends on its place only: a padded batch has the numbers of a short one, and more
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=2).flatten(1)[:, :count]


def _gamma(words: Words, step: int | Tensor, stream: int, shape: float, count: int) -> Tensor:
    """Gamma(shape, 1) by Marsaglia and Tsang (2000), with a fixed number of tries instead of a loop."""
    boost = max(shape, 1.0 + shape) if shape < 1.0 else shape
    d = boost - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    result = torch.full((len(words[0]), count), d, dtype=torch.float64, device=words[0].device)
    done = torch.zeros_like(result, dtype=torch.bool)
    for attempt in range(_GAMMA_TRIES):
        x = _normal(words, step, stream + 3 * attempt, count)
        u = _open_uniform(words, step, stream + 3 * attempt + 1, count)
        v = (1.0 + c * x) ** 3
        good = (v > 0) & (u.log() < 0.5 * x * x + d - d * v + d * v.clamp(min=1e-300).log())
        result = torch.where(good & ~done, d * v, result)
        done |= good
    if shape < 1.0:
        result = result * _open_uniform(words, step, stream + 2, count) ** (1.0 / shape)
    return result
