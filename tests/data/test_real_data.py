"""The real data sets, where they are: counts, shapes and what their own description states."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.data import by_column, dirichlet, keeping_together, load, make_population
from coterie.data.images import decode_images
from coterie.randomness import Key

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
    table = load("faces", need("faces"), size=16)
    pairs = set(zip(table.column("domain").tolist(), table.column("method").tolist(), strict=True))
    assert pairs == {("stills", "real"), ("stills", "faceapp"), ("video", "real"), ("video", "deepfacelab")}
    assert len(table) == 1575 + 460 + 264 + 276  # from the description of the data
    groups = table.column("group")
    made = keeping_together(groups, table.labels, lambda units: dirichlet(units, 6, 0.5, Key(0)))
    parts = [set(groups[view.index.numpy()]) for own in make_population(table, made, key=Key(0)) for view in own.views()]
    assert sum(map(len, parts)) == len(set(groups.tolist()))
    by_method = by_column(table.column("method"), "method", key=Key(0))
    with pytest.raises(ValueError, match=r"at two clients or more: \d+ of \d+ values of 'group'"):
        make_population(table, by_method, key=Key(0))


@pytest.mark.parametrize(
    ("name", "per_class", "per_class_test", "classes", "first"),
    [("cifar10", 5000, 1000, 10, "airplane"), ("tiny_imagenet", 100, 10, 200, "goldfish")],
)
def test_parquet_folders(
    name: str, per_class: int, per_class_test: int, classes: int, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = need(name)
    decoded: list[tuple[int, ...]] = []

    def only_the_first(files: list[bytes], size: int | None = None, where: str = "") -> torch.Tensor:  # all of them would take seconds
        decoded.append(tuple(decode_images(files[:3], size).shape))
        return torch.zeros(len(files), 3, 1, 1, dtype=torch.uint8)

    monkeypatch.setattr("coterie.data.parquet.decode_images", only_the_first)
    table = load(name, folder)
    assert np.bincount(table.labels).tolist() == [per_class] * classes and table.classes[0] == first
    assert table.central_test is not None and np.bincount(table.central_test.labels).tolist() == [per_class_test] * classes
    side = {"cifar10": 32, "tiny_imagenet": 64}[name]
    assert decoded == [(3, 3, side, side)] * 2
