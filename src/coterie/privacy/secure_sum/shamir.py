"""Shamir's t-of-n sharing of 256-bit secrets: any t shares give the secret, fewer say nothing about it.

A share of the holder at place x is p(x), with p a polynomial of degree t - 1 whose constant is the secret and whose other
coefficients come from the operating system (Shamir, "How to share a secret", Communications of the ACM, 1979).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from functools import lru_cache

PRIME = 2**256 - 189  # the largest below 2^256, so that a share takes 32 bytes
SHARE_BYTES = 32


def share(secret: int, threshold: int, places: Iterable[int], prime: int = PRIME) -> dict[int, int]:
    """place -> share. A place is a whole number above 0, because p(0) is the secret itself."""
    if not 0 <= secret < prime:
        raise ValueError(f"A secret that is shared must lie in [0, {prime}), and this one does not. Draw another one.")
    coefficients = [secrets.randbelow(prime) for _ in range(threshold - 1)]
    return {place: _value(place, secret, coefficients, prime) for place in places}


def reconstruct(shares: Mapping[int, int], prime: int = PRIME) -> int:
    """The secret, from at least as many shares as its threshold; from fewer, some number that says nothing."""
    at_zero = _lagrange_at_zero(tuple(sorted(shares)), prime)
    return sum(factor * shares[place] for place, factor in at_zero.items()) % prime


def _value(place: int, secret: int, coefficients: list[int], prime: int) -> int:
    if place % prime == 0:
        raise ValueError(f"A share's place must not be 0, where the secret itself lies, found {place}. Count places from 1.")
    value = 0
    for coefficient in reversed(coefficients):
        value = (value + coefficient) * place % prime
    return (value + secret) % prime


@lru_cache(maxsize=1024)  # every secret of a round is put together from the same survivors
def _lagrange_at_zero(places: tuple[int, ...], prime: int) -> dict[int, int]:
    """l_x(0) = prod over other places y of y / (y - x)."""
    factors = {}
    for place in places:
        above = below = 1
        for other in places:
            if other != place:
                above = above * other % prime
                below = below * (other - place) % prime
        factors[place] = above * pow(below, -1, prime) % prime
    return factors
