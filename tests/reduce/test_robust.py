"""Robust reductions against slow NumPy in float64, and the properties that make them robust."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from coterie.message import Message, Slot
from coterie.reduce.coordinates import CoordinateMedian, TrimmedMean
from coterie.reduce.geometric_median import GeometricMedian
from coterie.reduce.kept import RobustReduce
from coterie.reduce.krum import Krum, MultiKrum
from coterie.reduce.mean import Mean
from coterie.reduce.norm_bound import NormBound
from coterie.reduce.seam import Reduce

F64 = torch.float64
SLOTS = {
    "shared": Slot({"w": ((2, 2), F64), "b": ((), F64)}),
    "control": Slot({"w": ((3,), F64)}, kind="change", reduce="sum"),
    "own": Slot({"w": ((2,), F64)}, reduce="each"),
}
ROBUST = [CoordinateMedian(), TrimmedMean(0.2), Krum(1), MultiKrum(1), MultiKrum(2, keep=3), NormBound(), NormBound(0.7), GeometricMedian()]


def message(row: np.ndarray, weight: float | None = None) -> Message:
    """Five numbers of "shared" and three of "control", and something of one's own that no reduction sees."""
    x = torch.from_numpy(np.asarray(row, dtype=np.float64).copy())
    groups = {"shared": {"w": x[:4].reshape(2, 2), "b": x[4]}, "control": {"w": x[5:]}, "own": {"w": x[:2] * 1e9}}
    return Message(groups, weight=None if weight is None else torch.tensor(weight, dtype=F64))


def reduced(reduce: Reduce, rows: np.ndarray, weights: list[float] | None = None, order: list[int] | None = None) -> np.ndarray:
    """The mean of the averaged group, and the sum divided by the number of clients."""
    fold = reduce.fold(SLOTS, premultiplied=False, expected=len(rows))
    for client in order or range(len(rows)):
        fold.add(message(rows[client], None if weights is None else weights[client]), client)
    found = fold.result()
    assert found is not None and set(found.groups) == {"shared", "control"}
    shared = np.concatenate([found["shared"]["w"].numpy().ravel(), found["shared"]["b"].numpy().ravel()])
    return np.concatenate([shared, found["control"]["w"].numpy() / len(rows)])


def updates(clients: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(clients, 8))


# --- the definitions, written out ---------------------------------------------------------------------------------------------


def slow_krum(rows: np.ndarray, attackers: int, keep: int) -> np.ndarray:
    scores = []
    for i, row in enumerate(rows):
        others = sorted(sum((a - b) ** 2 for a, b in zip(row, other, strict=True)) for j, other in enumerate(rows) if j != i)
        scores.append(sum(others[: len(rows) - attackers - 2]))
    best = sorted(range(len(rows)), key=lambda i: (scores[i], i))[:keep]
    return np.mean([rows[i] for i in best], axis=0)


def slow_trimmed(rows: np.ndarray, cut: int) -> np.ndarray:
    return np.array([np.mean(sorted(column)[cut : len(rows) - cut]) for column in rows.T])


def slow_norm_bound(rows: np.ndarray, weights: list[float], bound: float | None) -> np.ndarray:
    norms = [np.sqrt(sum(x * x for x in row)) for row in rows]
    limit = float(np.median(norms)) if bound is None else bound
    shortened = [w * row / max(1.0, size / limit) for w, row, size in zip(weights, rows, norms, strict=True)]
    return np.sum(shortened, axis=0) / sum(weights)


@given(clients=st.integers(5, 12), seed=st.integers(0, 50))
@hypothesis_settings(max_examples=40, deadline=None)
def test_medians_and_trimmed_means_are_those_of_numpy(clients: int, seed: int) -> None:
    rows = updates(clients, seed)
    np.testing.assert_allclose(reduced(CoordinateMedian(), rows), np.median(rows, axis=0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(reduced(TrimmedMean(0.2), rows), slow_trimmed(rows, clients // 5), rtol=1e-12, atol=1e-15)
    weights = list(np.random.default_rng(seed).uniform(0.1, 100, clients))
    for reduce in (CoordinateMedian(), TrimmedMean(0.2), Krum(1), MultiKrum(1)):  # unweighted by definition
        np.testing.assert_array_equal(reduced(reduce, rows, weights), reduced(reduce, rows))


@given(clients=st.integers(7, 12), attackers=st.integers(0, 2), keep=st.integers(1, 7), seed=st.integers(0, 50))
@hypothesis_settings(max_examples=40, deadline=None)
def test_krum_picks_what_its_definition_picks(clients: int, attackers: int, keep: int, seed: int) -> None:
    rows = updates(clients, seed)
    np.testing.assert_allclose(reduced(Krum(attackers), rows), slow_krum(rows, attackers, 1), rtol=1e-12)
    np.testing.assert_allclose(reduced(MultiKrum(attackers, keep), rows), slow_krum(rows, attackers, keep), rtol=1e-12)
    np.testing.assert_allclose(reduced(MultiKrum(attackers), rows), slow_krum(rows, attackers, clients - attackers), rtol=1e-12)


@given(clients=st.integers(1, 9), bound=st.one_of(st.none(), st.floats(0.1, 10)), seed=st.integers(0, 50))
@hypothesis_settings(max_examples=40, deadline=None)
def test_a_norm_bound_shortens_what_is_longer_and_keeps_weights(clients: int, bound: float | None, seed: int) -> None:
    rows, weights = updates(clients, seed), list(np.random.default_rng(seed).uniform(0.1, 9, clients))
    np.testing.assert_allclose(reduced(NormBound(bound), rows, weights), slow_norm_bound(rows, weights, bound), rtol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_the_geometric_median_is_where_the_weighted_distances_are_smallest(seed: int) -> None:
    """Against a general minimiser from scipy, and its first condition: the weighted unit vectors to all points cancel."""
    rows, weights = updates(9, seed), np.random.default_rng(seed).uniform(0.5, 3, 9)
    found = reduced(GeometricMedian(iterations=2000), rows, list(weights))
    best = minimize(lambda v: (weights * np.linalg.norm(rows - v, axis=1)).sum(), rows.mean(0), method="BFGS", tol=1e-12)
    np.testing.assert_allclose(found, best.x, atol=2e-4)
    away = rows - found
    pull = (weights[:, None] * away / np.linalg.norm(away, axis=1)[:, None]).sum(0)
    assert np.linalg.norm(pull) < 1e-3 * weights.sum()


def test_on_a_line_the_geometric_median_is_the_median() -> None:
    rows = np.outer([0.0, 1.0, 2.0, 10.0, 1e6], np.ones(8))
    np.testing.assert_allclose(reduced(GeometricMedian(), rows), 2 * np.ones(8), rtol=1e-4)
    np.testing.assert_allclose(reduced(GeometricMedian(), np.ones((4, 8))), np.ones(8), rtol=1e-12)  # a point that all are at


# --- what makes them robust ---------------------------------------------------------------------------------------------------


@given(clients=st.integers(7, 12), size=st.floats(1e3, 1e12), seed=st.integers(0, 30))
@hypothesis_settings(max_examples=40, deadline=None)
def test_one_huge_update_moves_the_mean_and_no_robust_reduction(clients: int, size: float, seed: int) -> None:
    rows = updates(clients, seed)
    rows[3] = size
    honest = np.delete(rows, 3, axis=0)
    assert np.linalg.norm(reduced(Mean(), rows)[:5]) > size / clients
    for reduce in (CoordinateMedian(), TrimmedMean(0.2), Krum(1), MultiKrum(1)):
        found = reduced(reduce, rows)
        assert (found >= honest.min(0) - 1e-12).all() and (found <= honest.max(0) + 1e-12).all(), reduce
    longest = np.linalg.norm(honest, axis=1).max()
    assert np.linalg.norm(reduced(NormBound(), rows)) <= longest
    share = 1 / clients  # the median is at most 2 (1 - a) / (1 - 2 a) times as long as the longest honest update
    assert np.linalg.norm(reduced(GeometricMedian(), rows)) <= 2 * (1 - share) / (1 - 2 * share) * longest


@pytest.mark.parametrize("reduce", ROBUST, ids=str)
@given(order=st.permutations(range(9)), seed=st.integers(0, 9))
@hypothesis_settings(max_examples=15, deadline=None)
def test_the_order_in_which_clients_finish_changes_no_bit(reduce: RobustReduce, order: list[int], seed: int) -> None:
    rows, weights = updates(9, seed), [1.0, 2, 3, 4, 5, 6, 7, 8, 9]
    rows[5] = rows[2]  # equal scores: the smallest id, whoever came first
    np.testing.assert_array_equal(reduced(reduce, rows, weights, order), reduced(reduce, rows, weights))


def test_krum_decides_once_for_all_groups() -> None:
    """Client 2 sends an ordinary "shared" and hides in "control": nothing of it counts."""
    rows = updates(7, 1) * 0.01
    rows[2, :5] = 0.0  # nearer to the middle than anybody
    rows[2, 5:] = 1e3
    assert np.abs(reduced(Krum(1), rows)).max() < 1 and np.abs(reduced(MultiKrum(1), rows)).max() < 1


def test_scalars_are_reduced_with_everything_else() -> None:
    slots = {"shared": SLOTS["shared"]}
    fold = CoordinateMedian().fold(slots, premultiplied=False, expected=3)
    for client, score in enumerate((1.0, 2.0, 500.0)):
        fold.add(Message({"shared": message(np.ones(8))["shared"]}, {"score": torch.tensor(score)}), client)
    found = fold.result()
    assert found is not None and float(found.scalars["score"]) == 2.0


def test_types_are_kept_and_a_mean_of_whole_numbers_is_not_whole() -> None:
    slots = {"shared": Slot({"w": ((2,), torch.float32), "steps": ((), torch.int64)})}
    fold = CoordinateMedian().fold(slots, premultiplied=False, expected=2)
    for client, value in enumerate((1, 2)):
        fold.add(Message({"shared": {"w": torch.full((2,), float(value)), "steps": torch.tensor(value)}}), client)
    found = fold.result()
    assert found is not None and found["shared"]["w"].dtype == torch.float32 and float(found["shared"]["steps"]) == 1.5


def test_who_counts_for_nothing_is_left_out_and_nobody_is_none() -> None:
    rows = updates(4)
    rows[3] = 1e6
    np.testing.assert_allclose(reduced(CoordinateMedian(), rows, [1, 1, 1, 0])[:5], np.median(rows[:3], axis=0)[:5])
    fold = NormBound().fold(SLOTS, premultiplied=False, expected=1)
    assert fold.result() is None
    fold.add(message(rows[0], 0.0))
    assert fold.counted == 0 and fold.result() is None


def test_what_is_kept_is_counted_and_is_a_copy() -> None:
    fold = CoordinateMedian().fold(SLOTS, premultiplied=False, expected=2)
    first = message(np.ones(8))
    fold.add(first, 0)
    first["shared"]["b"].fill_(99.0)
    assert fold.kept_bytes == 8 * 8  # five numbers and three, in float64; "own" is no business of it
    found = fold.result()
    assert found is not None and float(found["shared"]["b"]) == 1.0
    assert Mean().fold(SLOTS, premultiplied=False, expected=2).kept_bytes == 0


def test_how_many_clients_are_needed() -> None:
    assert [reduce.fewest for reduce in (Krum(0), Krum(4), MultiKrum(1), MultiKrum(1, keep=9))] == [3, 11, 5, 9]
    assert [TrimmedMean(fraction).fewest for fraction in (0.1, 0.2, 0.25, 0.3, 0.49)] == [10, 5, 4, 4, 3]
    assert [TrimmedMean(0.29).cut(100), TrimmedMean(0.1).cut(10), TrimmedMean(0.2).cut(9)] == [29, 1, 1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TrimmedMean(0.5), r"fraction between 0 and 0\.5 at either end, found 0\.5\. Use for example 0\.2"),
        (lambda: TrimmedMean(0.0), r"Mean\(\) to cut nothing"),
        (lambda: Krum(-1), r"attackers must be at least 0, found -1"),
        (lambda: MultiKrum(1, keep=0), r"keep must be at least 1, found 0"),
        (lambda: NormBound(0.0), r"bound must be greater than 0, found 0\.0"),
        (lambda: GeometricMedian(smoothing=0.0), r"smoothing must be greater than 0"),
        (lambda: GeometricMedian(iterations=0), r"iterations must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_a_large_layer_is_sorted_in_pieces_with_the_same_result() -> None:
    values = np.random.default_rng(0).normal(size=(5, 70_000)).astype(np.float32)
    slots = {"shared": Slot({"w": ((7, 10_000), torch.float32)})}
    fold = CoordinateMedian().fold(slots, premultiplied=False, expected=5)
    for client, row in enumerate(values):
        fold.add(Message({"shared": {"w": torch.from_numpy(row).reshape(7, 10_000)}}), client)
    found = fold.result()
    assert found is not None
    np.testing.assert_array_equal(found["shared"]["w"].numpy().ravel(), np.median(values, axis=0))


@pytest.mark.parametrize(("reduce", "clients"), [(Krum(1), 4), (MultiKrum(0, keep=6), 5), (TrimmedMean(0.2), 4)])
def test_fewer_clients_than_a_definition_needs_are_refused(reduce: RobustReduce, clients: int) -> None:
    with pytest.raises(ValueError, match=rf"needs at least {clients + 1} clients that count, found {clients}\. Use a larger cohort"):
        reduced(reduce, updates(clients))
    reduced(reduce, updates(clients + 1))
