"""The data protocol of spec/fable.md section 6, against its own words: whole data set, shards, Dirichlet rule, 80/20."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.data.partition import dirichlet, iid
from coterie.randomness import Key
from coterie.recipes.population import build_population

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
CLIENTS = 20


def counts_of(rows: tuple[np.ndarray, ...], labels: np.ndarray = LABELS) -> np.ndarray:
    return np.array([np.bincount(labels[own], minlength=10) for own in rows])


def test_iid_shards_are_equal_and_class_balanced() -> None:
    counts = counts_of(iid(LABELS, CLIENTS, Key(0)).rows)
    assert (counts == 600 // CLIENTS).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_client_above_its_share_gets_nothing_of_later_classes(seed: int) -> None:
    """[C] shares of clients that hold N/K samples or more already are set to zero, class after class."""
    made = dirichlet(LABELS, CLIENTS, 0.1, Key(seed), min_size=1, balanced=True)
    counts, full = counts_of(made.rows), len(LABELS) / CLIENTS
    assert "moved" not in made.how
    free = counts_of(dirichlet(LABELS, CLIENTS, 0.1, Key(seed), min_size=1).rows)
    for found, holds in ((counts, True), (free, False)):
        beyond = sum(int(found[found[:, :c].sum(axis=1) >= full, c].sum()) for c in range(1, 10))
        assert (beyond == 0) == holds


def test_the_first_class_is_a_plain_dirichlet_draw() -> None:
    """Nobody is full yet: shares of one class have the mean and variance of Dirichlet(beta) also under the rule."""
    beta, shares = 0.5, []
    for seed in range(400):
        counts = counts_of(dirichlet(LABELS, 5, beta, Key(seed), min_size=1, balanced=True).rows)
        shares.append(counts[:, 0] / 600)
    found = np.array(shares)
    assert found.mean() == pytest.approx(0.2)
    assert found.var() == pytest.approx(0.2 * 0.8 / (5 * beta + 1), rel=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_every_client_has_the_least_size(seed: int) -> None:
    made = dirichlet(LABELS, CLIENTS, 0.1, Key(seed), min_size=50, balanced=True)
    assert min(map(len, made.rows)) >= 50 and sorted(np.concatenate(made.rows).tolist()) == list(range(len(LABELS)))


def test_the_whole_set_is_partitioned_and_each_client_is_cut_80_20(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Train and test files are one set (merge_test); 20 % of a client are its test part, 10 % of the rest its validation part."""
    lines = [f'"{1 + i % 4}","","text number {i}"' for i in range(1000)]
    (tmp_path / "train.csv").write_text("\n".join(lines[:800]) + "\n")
    (tmp_path / "test.csv").write_text("\n".join(lines[800:]) + "\n")
    population = build_population(
        "ag_news", clients=5, partition="dirichlet", beta=0.5, balanced=True, min_size=50, merge_test=True, data_dir=str(tmp_path),
    )  # fmt: skip
    parts = population.parts
    assert sum(len(p.train) + len(p.validation) + len(p.test) for p in parts) == 1000 and population.central_test is None
    every = np.concatenate([view.index.numpy() for p in parts for view in (p.train, p.validation, p.test)])
    assert sorted(every.tolist()) == list(range(1000))
    for p in parts:
        total = len(p.train) + len(p.validation) + len(p.test)
        assert total >= 50 and len(p.test) == round(0.2 * total) and len(p.validation) == round(0.1 * (total - len(p.test)))
    assert min(int(p.test.index.max()) for p in parts) > 799 or any(int(p.train.index.max()) > 799 for p in parts)  # mixed, not by file
