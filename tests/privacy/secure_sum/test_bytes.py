"""Bytes of the four phases against spec/wire.md 2.2 (SA_up, SA_down; W7), with and without dropouts."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.privacy.secure_sum import InProcess, SecureSum
from coterie.privacy.secure_sum.in_process import Step

KEYS: tuple[Step, ...] = ("keys", "shares", "unmask")
LENGTH = 7


def sa_up(m: int, answered: int) -> int:
    """Two public keys, a sealed pair of shares for every other client, one share for each client that is asked about."""
    return 64 + (m - 1) * 100 + 40 * answered


def sa_down(m: int, answered: int) -> int:
    return 64 * m + (m - 1) * 100 + 8 * answered


def went(m: int, silent_from: dict[int, Step], **settings: int) -> InProcess:
    protocol = InProcess(SecureSum(**settings), 0, tuple(range(m)), LENGTH, silent_from)  # type: ignore[arg-type]
    protocol.open()
    for client in range(m):
        if protocol.sends(client):
            protocol.add(client, np.zeros(LENGTH, protocol.server._total.dtype))
    protocol.close()
    return protocol


def test_ten_clients_without_dropouts_send_what_the_specification_prints() -> None:
    """1,364 B up; down 1,620 B, and 84 that it leaves out: an id beside each of ten keys, and the count of survivors in the request."""
    traffic = went(10, {}).traffic
    assert sa_up(10, 10) == 1364 and traffic.total("up", KEYS) == 10 * 1364
    assert sa_down(10, 10) == 1620 and traffic.total("down", KEYS) == 10 * (1620 + 10 * 8 + 4)


def test_two_dropouts_after_their_shares() -> None:
    """Eight are asked about ten, the two by another kind of share; the two have sent keys and shares, and no vector."""
    traffic = went(10, {3: "vector", 8: "vector"}).traffic
    assert traffic.total("up", KEYS) == 8 * sa_up(10, 10) + 2 * (64 + 900)
    assert traffic.total("up", ("vector",)) == 8 * 4 * LENGTH
    assert traffic.total("down", KEYS) == 10 * (72 * 10 + 900) + 8 * (4 + 8 * 10)


def test_two_dropouts_before_their_shares() -> None:
    """Everybody seals nine pairs; each of the eight gets seven, and is asked about eight."""
    traffic = went(10, {3: "shares", 8: "shares"}).traffic
    assert traffic.total("up", KEYS) == 10 * 64 + 8 * (900 + 40 * 8)
    assert traffic.total("down", KEYS) == 10 * 72 * 10 + 8 * (100 * 7 + 4 + 8 * 8)


@pytest.mark.parametrize(("bits", "width"), [(32, 4), (64, 8)])
def test_a_masked_number_takes_4_or_8_bytes(bits: int, width: int) -> None:
    assert went(3, {}, bits=bits).traffic.total("up", ("vector",)) == 3 * LENGTH * width


def test_neighbours_bound_the_key_traffic_whatever_the_cohort() -> None:
    """Six neighbours: as in a cohort of seven, for 40 clients and for 20."""
    for m in (20, 40):
        traffic = went(m, {}, neighbours=6).traffic
        assert traffic.total("up", KEYS) == m * sa_up(7, 7)
        assert traffic.total("down", KEYS) == m * (sa_down(7, 7) + 7 * 8 + 4)
