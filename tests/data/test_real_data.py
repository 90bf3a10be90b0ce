"""The real data sets, where they are: counts, shapes and what their own description states."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from coterie.data import by_column, load, make_population
from coterie.randomness import Key
from coterie.recipes.population import build_population

ROOT = Path(os.environ.get("COTERIE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def need(name: str) -> str:
    if not (ROOT / name).exists():
        pytest.skip(f"no data set '{name}' in {ROOT} (set COTERIE_DATA)")
    if name in ("tiny_imagenet", "cifar10"):
        pytest.importorskip("pyarrow")
    if name not in ("femnist", "ag_news"):
        pytest.importorskip("PIL")
    return str(ROOT)


def test_femnist() -> None:
    table = load("femnist", need("femnist"))
    assert len(table) == 14_044 and len(np.unique(table.column("writer"))) == 154 and table.num_classes == 62
    complete = load("femnist", ROOT / "femnist", writers="complete")
    made = by_column(complete.column("writer"), "writer", key=Key(0))
    assert len(made) == 75 and np.median([len(rows) for rows in made.rows]) == 168
    population = make_population(complete, made, key=Key(0), use_split_column=True)
    tests = sum(len(own.test) for own in population)
    assert tests == (complete.column("split") == "test").sum()
    assert float(complete.columns["x"].float().mean()) > 200  # paper is white


def test_ag_news() -> None:
    table = load("ag_news", need("ag_news"))
    assert np.bincount(table.labels).tolist() == [3187] * 4
    assert table.central_test is not None and np.bincount(table.central_test.labels).tolist() == [1500] * 4


def test_faces_keep_groups_together_and_only_fair_pairs() -> None:
    population = build_population("faces", clients=6, beta=0.5, data_dir=need("faces"), options={"size": 16})
    assert not [finding for finding in population.findings if finding.level == "leak"]
    table = load("faces", ROOT, size=16)
    pairs = set(zip(table.column("domain").tolist(), table.column("method").tolist(), strict=True))
    assert pairs == {("stills", "real"), ("stills", "faceapp"), ("video", "real"), ("video", "deepfacelab")}
    assert len(table) == 1575 + 460 + 264 + 276
    by_method = by_column(table.column("method"), "method", key=Key(0))
    with pytest.raises(ValueError, match=r"values of 'group' are at two clients or more"):
        make_population(table, by_method, key=Key(0))


def test_tiny_imagenet_val_is_the_central_test() -> None:
    table = load("tiny_imagenet", need("tiny_imagenet"), size=8)
    assert np.bincount(table.labels).tolist() == [100] * 200 and table.classes[0] == "goldfish"
    assert table.central_test is not None and np.bincount(table.central_test.labels).tolist() == [10] * 200
