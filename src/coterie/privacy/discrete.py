"""Whole numbers with a discrete Gaussian distribution, drawn exactly: no float is rounded on the way.

Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, arXiv 2004.00010, Algorithms 1 to 3:

    P(x) ~ exp(-x^2 / (2 sigma^2)) for whole x,

from uniform whole numbers by rejection. All steps are comparisons of whole numbers, for many draws at once; those
that outgrow 64 bits are Python's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = Callable[[int], npt.NDArray[np.uint64]]
"""So many uniform 64-bit words."""

Integers: TypeAlias = npt.NDArray[Any]
"""int64, or Python's whole numbers (dtype object)."""

_CHUNK = 1 << 18  # draws at once: Python's whole numbers take memory


def discrete_gaussian(sigma: int, count: int, words: Words) -> npt.NDArray[np.int64]:
    """`count` draws with a whole-number sigma; sigma 0 gives zeros."""
    if sigma < 0:
        raise ValueError(f"sigma must be at least 0, found {sigma}. Use a whole number above 0.")
    if sigma == 0:
        return np.zeros(count, np.int64)
    found = [_some(sigma, min(_CHUNK, count - start), words) for start in range(0, count, _CHUNK)]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _some(sigma: int, count: int, words: Words) -> npt.NDArray[np.int64]:
    """Algorithm 3: a discrete Laplace draw y of scale t is kept with probability exp(-(|y| - sigma^2/t)^2 / (2 sigma^2))."""
    scale = sigma + 1
    kept = np.zeros(0, np.int64)
    while len(kept) < count:
        drawn = _laplace(scale, int(1.6 * (count - len(kept))) + 16, words)
        largest = int(np.abs(drawn).max(initial=0)) * scale + sigma**2
        kind: Any = np.int64 if largest**2 < 2**62 and 2 * (sigma * scale) ** 2 < 2**53 else object
        off = np.abs(drawn).astype(kind) * scale - sigma**2
        kept = np.concatenate([kept, drawn[_bernoulli_exp(off * off, 2 * (sigma * scale) ** 2, words)]])
    return kept[:count]


def _laplace(scale: int, count: int, words: Words) -> npt.NDArray[np.int64]:
    """Algorithm 2: P(x) ~ exp(-|x| / scale)."""
    kept = np.zeros(0, np.int64)
    while len(kept) < count:
        size = int(3.5 * (count - len(kept))) + 16
        below = _uniform(scale, size, words).astype(np.int64)
        below = below[_bernoulli_exp(below, scale, words)]
        whole = np.zeros(len(below), np.int64)
        going = np.arange(len(below))
        while len(going):
            going = going[_bernoulli_exp(np.ones(len(going), np.int64), 1, words)]
            whole[going] += 1
        size_of = below + scale * whole
        negative = _uniform(2, len(below), words).astype(bool)
        signed = np.where(negative, -size_of, size_of)
        kept = np.concatenate([kept, signed[~(negative & (size_of == 0))]])  # zero must not be drawn with both signs
    return kept[:count]


def _bernoulli_exp(numerator: Integers, denominator: int, words: Words) -> npt.NDArray[np.bool_]:
    """Algorithm 1: True with probability exp(-numerator / denominator)."""
    whole = (numerator // denominator).astype(np.int64)
    true = _bernoulli_exp_below_1(numerator % denominator, denominator, words)
    going = np.flatnonzero(true & (whole > 0))
    while len(going):
        success = _bernoulli_exp_below_1(np.ones(len(going), np.int64), 1, words)
        true[going[~success]] = False
        going = going[success]
        whole[going] -= 1
        going = going[whole[going] > 0]
    return true


def _bernoulli_exp_below_1(numerator: Integers, denominator: int, words: Words) -> npt.NDArray[np.bool_]:
    """exp(-g) for g in [0, 1]: count how long Bernoulli(g / 1), Bernoulli(g / 2), ... succeed; an even number is a yes."""
    true = np.zeros(len(numerator), bool)
    going, k = np.arange(len(numerator)), 1
    while len(going):
        success = _uniform(denominator * k, len(going), words) < numerator[going]
        true[going[~success]] = k % 2 == 1
        going, k = going[success], k + 1
    return true


def _uniform(limit: int, count: int, words: Words) -> Integers:
    """Uniform whole numbers from 0 to limit - 1: what would favour some of them is drawn again."""
    parts = 0 if limit < 2**62 else limit.bit_length() // 64 + 1
    top = 2 ** (64 * parts) if parts else 2**63
    last = top - top % limit - 1

    def draw(number: int) -> Integers:
        return _joined(parts, number, words) if parts else (words(number) >> np.uint64(1)).astype(np.int64)

    found = draw(count)
    again = np.flatnonzero(found > last)
    while len(again):
        found[again] = draw(len(again))
        again = again[found[again] > last]
    below: Integers = found % limit
    return below


def _joined(parts: int, count: int, words: Words) -> Integers:
    """Whole numbers of 64 * parts random bits."""
    drawn = words(parts * count).reshape(parts, count).astype(object)
    total = drawn[0]
    for more in drawn[1:]:
        total = total * 2**64 + more
    joined: Integers = total
    return joined
