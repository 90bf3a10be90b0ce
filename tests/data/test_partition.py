"""Partitions: every row at one client, no empty client, always an end; and what each promises about labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.partition import Assignment, by_column, dirichlet, iid, keeping_together, pathological
from coterie.randomness import Key

labels_and_clients = st.lists(st.integers(0, 5), min_size=1, max_size=120).flatmap(
    lambda labels: st.tuples(st.just(np.array(labels)), st.integers(1, len(labels)))
)
some = settings(max_examples=60, deadline=None)


def all_rows_once(assignment: Assignment, total: int) -> None:
    assert sorted(np.concatenate(assignment.rows).tolist()) == list(range(total))
    assert len(assignment.names) == len(assignment.rows) == len(set(assignment.names))


@some
@given(labels_and_clients, st.integers(0, 3))
def test_iid_sizes_and_class_counts_differ_by_at_most_one(case: tuple[np.ndarray, int], seed: int) -> None:
    labels, clients = case
    made = iid(labels, clients, Key(seed))
    all_rows_once(made, len(labels))
    counts = np.array([[np.sum(labels[rows] == c) for c in range(6)] for rows in made.rows])
    assert np.ptp(counts.sum(1)) <= 1
    assert (np.ptp(counts, axis=0) <= 1).all()


@some
@given(
    labels_and_clients, st.floats(5e-324, 1e12), st.integers(0, 3), st.booleans(), st.integers(1, 10)
)  # from the smallest positive float on: shares underflow there
def test_dirichlet_ends_and_fills_every_client(
    case: tuple[np.ndarray, int], beta: float, seed: int, balanced: bool, wanted: int
) -> None:
    labels, clients = case
    min_size = min(wanted, len(labels) // clients)
    made = dirichlet(labels, clients, beta, Key(seed), min_size=min_size, balanced=balanced)
    all_rows_once(made, len(labels))
    assert min(map(len, made.rows)) >= min_size


@some
@given(labels_and_clients, st.integers(1, 6), st.integers(0, 3))
def test_pathological_holds_at_most_k_classes(case: tuple[np.ndarray, int], k: int, seed: int) -> None:
    labels, clients = case
    classes = len(set(labels.tolist()))
    if k > classes or clients * k < classes or clients * k > len(labels):
        with pytest.raises(ValueError, match=r"classes"):
            pathological(labels, clients, k, Key(seed))
        return
    made = pathological(labels, clients, k, Key(seed))
    all_rows_once(made, len(labels))
    assert all(1 <= len(set(labels[rows].tolist())) <= k for rows in made.rows)


@some
@given(st.lists(st.integers(0, 20), min_size=1, max_size=80), st.integers(1, 8))
def test_whole_groups_stay_on_one_client(groups: list[int], clients: int) -> None:
    labels = np.array(groups) % 3
    clients = min(clients, len(set(groups)))
    made = keeping_together(np.array(groups), labels, lambda units: dirichlet(units, clients, 0.2, Key(1), min_size=1))
    all_rows_once(made, len(groups))
    owners = [{c for c, rows in enumerate(made.rows) if group in np.array(groups)[rows]} for group in set(groups)]
    assert all(len(owner) == 1 for owner in owners)


def test_pathological_gives_exactly_two_even_classes() -> None:
    labels = np.repeat(np.arange(10), 100)
    made = pathological(labels, 10, 2, Key(0))
    counts = np.array([[np.sum(labels[rows] == c) for c in range(10)] for rows in made.rows])
    assert ((counts > 0).sum(axis=1) == 2).all()  # 10 clients x 2 classes = 20 places for 10 classes: two holders each
    assert set(counts[counts > 0].tolist()) == {50}


def test_dirichlet_shares_have_the_stated_mean_and_variance() -> None:
    """A share of Dirichlet(beta) over K clients is Beta(beta, (K-1) beta): variance (1/K)(1-1/K)/(K beta + 1)."""
    k, beta, per_class = 5, 0.5, 1000
    labels = np.repeat(np.arange(200), per_class)
    made = dirichlet(labels, k, beta, Key(3), min_size=1)
    shares = np.array([np.bincount(labels[rows], minlength=200) for rows in made.rows]).T / per_class
    assert shares.mean() == pytest.approx(1 / k)
    assert shares.var() == pytest.approx((1 / k) * (1 - 1 / k) / (k * beta + 1), rel=0.1)


def test_balanced_gives_full_clients_nothing_more() -> None:
    """A client stops at N/K plus at most the one class that carried it over; unbalanced draws do not."""
    labels = np.repeat(np.arange(20), 50)
    plain, balanced = (dirichlet(labels, 10, 0.05, Key(5), min_size=1, balanced=flag) for flag in (False, True))
    assert max(map(len, balanced.rows)) < 1000 / 10 + 50 < max(map(len, plain.rows))


def test_repair_is_named_and_takes_from_the_largest() -> None:
    labels = np.zeros(100, dtype=int)  # one class and a tiny beta: everything goes to one client
    made = dirichlet(labels, 4, 1e-9, Key(0), min_size=10)
    assert sorted(map(len, made.rows)) == [10, 10, 10, 70]
    assert "30 rows moved to reach 10 per client" in made.how


def test_same_key_same_clients() -> None:
    labels = np.arange(300) % 7
    first, again, other = (dirichlet(labels, 6, 0.3, Key(seed)) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first.rows, again.rows, strict=True))
    assert any(len(a) != len(b) for a, b in zip(first.rows, other.rows, strict=True))


def test_by_column_one_client_per_writer() -> None:
    writers = np.array(["b", "a", "b", "c", "a", "b"])
    made = by_column(writers, "writer", key=Key(0))
    assert made.names == ("a", "b", "c")
    assert [rows.tolist() for rows in made.rows] == [[1, 4], [0, 2, 5], [3]]
    kept = by_column(writers, "writer", key=Key(0), min_size=2)
    assert kept.names == ("a", "b") and kept.how == "one client per writer, 2 of 3"
    assert len(by_column(writers, "writer", key=Key(0), clients=2)) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda y: dirichlet(y, 2, 0.0, Key(0)), r"beta must be above 0 and finite, found 0.0. Use 0.1"),
        (lambda y: dirichlet(y, 2, float("nan"), Key(0)), r"beta must be above 0 and finite, found nan"),
        (lambda y: iid(y, 0, Key(0)), r"clients must be at least 1, found 0"),
        (lambda y: iid(y, 31, Key(0)), r"31 clients with at least 1 samples each need 31 samples, found 30. Use at most 30"),
        (lambda y: dirichlet(y, 5, 0.1, Key(0), min_size=7), r"5 clients with at least 7 samples each need 35 .* at most 4"),
        (lambda y: dirichlet(y, 5, 0.1, Key(0), min_size=0), r"min_size must be at least 1, found 0"),
        (lambda y: pathological(y, 3, 4, Key(0)), r"from 1 to the 3 classes of the data, found 4"),
        (lambda y: pathological(y, 1, 2, Key(0)), r"1 clients with 2 classes each cannot hold all 3 classes. Use at least 2"),
        (lambda y: by_column(y, "writer", key=Key(0), clients=4), r"column 'writer' has only 3 values .* Use at most 3"),
        (lambda y: by_column(y, "writer", key=Key(0), min_size=11), r"No writer has 11 samples, the largest has 10"),
    ],
)
def test_bad_input_is_one_clear_sentence(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        make(np.arange(30) % 3)
