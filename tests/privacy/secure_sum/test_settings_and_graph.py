"""Thresholds and neighbourhoods by hand, and settings that can't protect."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from coterie.privacy.secure_sum import Aborted, InProcess, SecureSum
from coterie.privacy.secure_sum.graph import connected, draw_graph


@pytest.mark.parametrize(("clients", "threshold"), [(3, 3), (4, 3), (6, 5), (7, 5), (10, 7), (99, 67), (100, 67)])
def test_the_threshold_is_more_than_two_thirds(clients: int, threshold: int) -> None:
    assert SecureSum().threshold_among(clients) == threshold
    assert 3 * threshold > 2 * clients >= 3 * (threshold - 1)


def test_the_threshold_counts_within_a_neighbourhood() -> None:
    """40 neighbours and the client itself: 41 holders, of which 28 are more than two thirds."""
    assert SecureSum(neighbours=40).threshold_among(1000) == 28
    assert SecureSum(neighbours=40).threshold_among(20) == SecureSum().threshold_among(20) == 14


def test_two_separate_groups_never_both_reach_the_threshold() -> None:
    """Else one could be told that a client stayed and the other that it did not. A cohort may grow beyond a fixed threshold's reach."""
    for clients in range(3, 60):
        for settings in (SecureSum(), SecureSum(threshold=2), SecureSum(threshold=9), SecureSum(neighbours=10)):
            assert 2 * settings.threshold_among(clients) > settings.holders(clients)


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"bits": 16}, r"counts in 32 or 64 bits, found 16\. Use 32"),
        ({"threshold": 1}, r"threshold of a secure sum must be at least 2, found 1\. Leave it out"),
        ({"neighbours": 2}, r"even number of at least 4, found 2\. Use for example 40"),
        ({"neighbours": 5}, r"even number of at least 4, found 5"),
        ({"range": 0.0}, r"range of a secure sum must be greater than 0, found 0\.0\. Use for example 8"),
        ({"range": math.inf}, r"range .* found inf"),
        ({"dropout": 1.0}, r"dropout must be at least 0 and below 1, found 1\.0"),
        ({"dropout": math.nan}, r"dropout must be at least 0 and below 1, found nan"),
    ],
)
def test_settings_that_can_not_work_are_refused(knobs: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SecureSum(**knobs)


@pytest.mark.parametrize(
    ("settings", "clients", "text"),
    [
        (SecureSum(), 2, r"needs at least 3 clients in a round, found 2\. Use a larger cohort"),
        (SecureSum(threshold=11), 10, r"threshold of the secure sum is 11, but shares are held by 10 clients only\. Use 10 or less"),
        (SecureSum(threshold=12, neighbours=10), 90, r"is 12, but shares are held by a client and its 10 neighbours only\. Use 11 or less"),
        (SecureSum(threshold=5), 10, r"threshold of the secure sum is 5 of 10: two separate groups could .* Use 6 or more, or leave it out for 7"),
    ],
)
def test_cohorts_that_can_not_be_protected_are_refused(settings: SecureSum, clients: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        settings.check_cohort(clients)


def test_cohorts_at_the_edge_are_accepted() -> None:
    for settings, clients in ((SecureSum(), 3), (SecureSum(threshold=10), 10), (SecureSum(threshold=6), 10), (SecureSum(threshold=6, neighbours=10), 90)):
        settings.check_cohort(clients)
    SecureSum(threshold=5).check_cohort(300, at_most=True)  # a Poisson cohort's own size decides, in its round


@pytest.mark.parametrize("clients", [1, 2, 4])
def test_a_drawn_cohort_that_is_too_small_ends_its_round(clients: int) -> None:
    with pytest.raises(Aborted, match=rf"{clients} of {clients} clients advertised keys, fewer than the threshold"):
        InProcess(SecureSum(threshold=5), 0, tuple(range(clients)), 2).open()


def test_everybody_has_k_neighbours_and_is_theirs() -> None:
    graph = draw_graph(range(100, 130), 6)
    assert all(len(near) == 6 and client not in near for client, near in graph.items())
    assert all(client in graph[other] for client, near in graph.items() for other in near)
    assert connected(graph, graph.keys())


def test_the_ring_is_drawn_anew_and_small_cohorts_have_all_pairs() -> None:
    assert draw_graph(range(50), 4) != draw_graph(range(50), 4)  # equal once in 49!/2
    for neighbours in (None, 4, 40):
        assert draw_graph(range(5), neighbours) == {k: frozenset(range(5)) - {k} for k in range(5)}


def test_a_ring_that_falls_apart_is_found() -> None:
    """Of a ring 0 1 2 ... 9 with two neighbours on each side, 1, 2 and 6, 7 gone leave 3 4 5 and 8 9 0."""
    ring = {k: frozenset((k + step) % 10 for step in (-2, -1, 1, 2)) for k in range(10)}
    assert connected(ring, {0, 2, 4, 6, 8}) and connected(ring, set(range(10)) - {1, 2})
    assert not connected(ring, set(range(10)) - {1, 2, 6, 7})
    assert not connected(ring, set())


def test_survivors_that_fall_apart_end_the_round() -> None:
    """Each of the two groups would be a sum of its own, told by the masks that do not reach from one to the other."""
    protocol = InProcess(SecureSum(neighbours=4, threshold=3), 0, tuple(range(10)), 2)
    ring = {k: frozenset((k + step) % 10 for step in (-2, -1, 1, 2)) for k in range(10)}
    protocol.server.graph = ring
    protocol.open()
    for client in (0, 3, 4, 5, 8, 9):
        protocol.add(client, np.zeros(2, np.uint32))
    with pytest.raises(Aborted, match=r"the survivors fall apart into groups whose sums would be told\. Use more neighbours"):
        protocol.close()
