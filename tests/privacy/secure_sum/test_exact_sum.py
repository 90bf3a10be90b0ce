"""The secure sum is the plain sum of the encoded vectors, to the last bit, whoever drops out and whenever."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.privacy.secure_sum import Aborted, FixedPoint, InProcess, SecureSum
from coterie.privacy.secure_sum.in_process import STEPS, Step

RING = {32: np.uint32, 64: np.uint64}


def vectors(clients: int, length: int, bits: int, seed: int = 0) -> np.ndarray:
    """Any ring elements: exactness must not depend on how they came to be."""
    return np.random.default_rng(seed).integers(0, 2**bits, size=(clients, length), dtype=RING[bits])


def summed(settings: SecureSum, sent: np.ndarray, silent_from: dict[int, Step], cohort: tuple[int, ...] | None = None) -> np.ndarray:
    cohort = tuple(range(len(sent))) if cohort is None else cohort
    protocol = InProcess(settings, 3, cohort, sent.shape[1], silent_from)
    protocol.open()
    for place, client in enumerate(cohort):
        if protocol.sends(client):
            protocol.add(client, sent[place])
    return protocol.close()


def expected(sent: np.ndarray, cohort: tuple[int, ...], silent_from: dict[int, Step]) -> list[int]:
    """Python's whole numbers, modulo 2^bits: of everybody who came as far as sending a vector."""
    came = [row for client, row in zip(cohort, sent, strict=True) if silent_from.get(client) in (None, "unmask")]
    modulus = 2 ** (8 * sent.itemsize)
    return [sum(int(row[place]) for row in came) % modulus for place in range(sent.shape[1])]


@pytest.mark.parametrize(("share", "step"), [(0.0, "keys"), *((share, step) for share in (0.1, 0.3) for step in STEPS)])
@pytest.mark.parametrize("clients", [3, 4, 10, 31, 100])
def test_equal_to_the_plain_sum_with_dropouts_in_every_phase(clients: int, share: float, step: Step) -> None:
    lost = np.random.default_rng(clients).permutation(clients)[: math.floor(share * clients)]
    silent: dict[int, Step] = {int(k): step for k in lost}
    sent = vectors(clients, 5, 32, seed=clients)
    assert summed(SecureSum(), sent, silent).tolist() == expected(sent, tuple(range(clients)), silent)


@pytest.mark.parametrize("bits", [32, 64])
def test_dropouts_in_all_phases_of_one_round(bits: int) -> None:
    """20 clients, threshold 14: six fall silent, in all four phases; 18 numbers take more than one piece of the stream's block."""
    silent: dict[int, Step] = {0: "keys", 3: "shares", 7: "vector", 11: "vector", 12: "unmask", 19: "unmask"}
    sent = vectors(20, 18, bits)
    settings = SecureSum(bits=bits)  # type: ignore[arg-type]
    assert summed(settings, sent, silent).tolist() == expected(sent, tuple(range(20)), silent)


@pytest.mark.parametrize("step", STEPS)
def test_neighbours_give_the_same_sum(step: Step) -> None:
    """60 clients with 30 neighbours each: of 31 holders at least 25 stay, whoever the six are, and 21 are needed."""
    silent: dict[int, Step] = {int(k): step for k in np.random.default_rng(1).permutation(60)[:6]}
    sent = vectors(60, 5, 32)
    assert summed(SecureSum(neighbours=30), sent, silent).tolist() == expected(sent, tuple(range(60)), silent)


def test_vectors_longer_than_one_piece_of_the_stream() -> None:
    sent = vectors(3, 40_001, 32)
    np.testing.assert_array_equal(summed(SecureSum(), sent, {}), sent.sum(0, dtype=np.uint32))


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_cohort_any_dropouts(data: st.DataObject) -> None:
    """Ids of any size, both rings, all pairs or a ring of neighbours: the exact sum of who sent, or no result at all."""
    cohort = tuple(data.draw(st.lists(st.integers(0, 10**6), min_size=3, max_size=14, unique=True)))
    bits = data.draw(st.sampled_from([32, 64]))
    silent = {k: step for k in cohort if (step := data.draw(st.sampled_from([None, None, None, None, *STEPS]))) is not None}
    settings = SecureSum(bits=bits, neighbours=data.draw(st.sampled_from([None, 4, 6])))
    sent = vectors(len(cohort), data.draw(st.integers(1, 9)), bits, seed=len(silent))
    threshold = 2 * len(cohort) // 3 + 1
    try:
        found = summed(settings, sent, silent, cohort)
    except Aborted:
        assert settings.neighbours is not None or len(cohort) - len(silent) < threshold
        return
    assert settings.neighbours is not None or len(cohort) - len(silent) >= threshold
    assert found.tolist() == expected(sent, cohort, silent)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_weighted_mean_from_the_secure_sum(data: st.DataObject) -> None:
    """ISFA: a and a x are summed; their quotient is numpy's weighted average, up to the error of rounding."""
    clients, size = data.draw(st.integers(3, 9)), data.draw(st.integers(1, 6))
    weights = np.array(data.draw(st.lists(st.floats(0.05, 1.0), min_size=clients, max_size=clients)))
    rng = np.random.default_rng(clients)
    values = rng.uniform(-4, 4, size=(clients, size))
    code = FixedPoint(clients, 4.0)
    rows = [code.encode(np.append(a * x, a), rng.random(size + 1))[0] for a, x in zip(weights, values, strict=True)]
    found = code.decode(summed(SecureSum(), np.stack(rows), {}))
    mean = np.average(values, axis=0, weights=weights)
    # |S'/A' - S/A| <= (e + 4 e) / (A - e), for an error below e in every sum and |S/A| <= 4
    allowed = 5 * code.error / (weights.sum() - code.error)
    np.testing.assert_allclose(found[:-1] / found[-1], mean, atol=allowed, rtol=0)
