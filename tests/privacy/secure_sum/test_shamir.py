"""Shamir's sharing: published shares, arithmetic by hand in a small field, and what too few shares say."""

from __future__ import annotations

import itertools
import secrets

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from coterie.privacy.secure_sum.shamir import PRIME, reconstruct, share

PUBLISHED = {1: 1494, 2: 329, 3: 965, 4: 176, 5: 1188, 6: 775}
"""Of the secret 1234 with 166 x + 94 x^2 modulo 1613, the example of the literature on Shamir's scheme."""


def test_any_three_of_the_published_shares_give_the_secret() -> None:
    for places in itertools.combinations(PUBLISHED, 3):
        assert reconstruct({place: PUBLISHED[place] for place in places}, 1613) == 1234


def test_lagrange_by_hand() -> None:
    """p(x) = 5 + 3x modulo 17 has p(1) = 8 and p(4) = 0: l_1(0) = 4/3 = 7 and l_4(0) = 1/(1-4) = 11, so 8*7 + 0 = 56 = 5."""
    assert reconstruct({1: 8, 4: 0}, 17) == 5


def test_the_prime_is_prime_and_holds_256_bits() -> None:
    """Fermat for several bases; 2^256 - 189 is the largest prime below 2^256."""
    assert PRIME == 2**256 - 189
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13))


@given(secret=st.integers(0, PRIME - 1), holders=st.integers(2, 12), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_threshold_of_shares_gives_the_secret_and_one_less_does_not(secret: int, holders: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(2, holders))
    places = data.draw(st.lists(st.integers(1, 10**9), min_size=holders, max_size=holders, unique=True))
    shares = share(secret, threshold, places)
    chosen = data.draw(st.permutations(places))
    assert reconstruct({place: shares[place] for place in chosen[:threshold]}) == secret
    assert reconstruct(shares) == secret
    assert reconstruct({place: shares[place] for place in chosen[: threshold - 1]}) != secret  # but for 1 in 2^256


def test_one_share_of_two_is_uniform_whatever_the_secret() -> None:
    """In a field of 31, 6200 draws: the same distribution for two secrets, and each uniform (p-value far above one in a million)."""
    for secret in (0, 19):
        drawn = [share(secret, 2, [5], prime=31)[5] for _ in range(6200)]
        assert chisquare(np.bincount(drawn, minlength=31)).pvalue > 1e-6


def test_places_and_secrets_that_break_the_scheme_are_refused() -> None:
    with pytest.raises(ValueError, match=r"place must not be 0"):
        share(5, 2, [0])
    with pytest.raises(ValueError, match=r"must lie in \[0, "):
        share(PRIME, 2, [1])
    shares = share(secrets.randbelow(PRIME), 3, range(1, 6))
    assert all(value < 2**256 for value in shares.values())
