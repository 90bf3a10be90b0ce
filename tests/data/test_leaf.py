"""LEAF's JSON in three forms, round trips, and files that contradict themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.data import Assignment, Table, load, make_population, write_leaf
from coterie.data.clients import official_parts
from coterie.randomness import Key


def write(path: Path, users: list[str], user_data: dict[str, Any], **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"users": users, "user_data": user_data, **more}))
    return path


def test_leafs_own_form_with_train_and_test_folders(tmp_path: Path) -> None:
    write(tmp_path / "train/a.json", ["u", "v"], {"u": {"x": [[0.0] * 4], "y": [3]}, "v": {"x": [[1.0] * 4] * 2, "y": [0, 1]}}, num_samples=[1, 2])
    write(tmp_path / "test/a.json", ["u"], {"u": {"x": [[2.0] * 4], "y": [2]}}, num_samples=[1])
    table = load("leaf", tmp_path, shape=(1, 2, 2))
    assert table.columns["x"].shape == (4, 1, 2, 2) and table.num_classes == 4
    assert table.column("user").tolist() == ["u", "v", "v", "u"]
    assert table.column("split").tolist() == ["train", "train", "train", "test"]
    assert table.labels.tolist() == [3, 0, 1, 2]
    write(tmp_path / "test/a.json", ["u", "v"], {"u": {"x": [[2.0] * 4], "y": [2]}, "v": {"x": [], "y": []}}, num_samples=[1, 0])
    assert load("leaf", tmp_path).labels.tolist() == [3, 0, 1, 2]  # nothing for test, but something to train on


def test_fl_gaps_form_with_parts_and_meta(tmp_path: Path) -> None:
    data = {"x_train": [[1], [2]], "y_train": [0, 1], "x_val": [[3]], "y_val": [1], "x_test": [[4]], "y_test": [0]}
    path = write(tmp_path / "all.json", ["k"], {"k": {**data, "meta": {"domain": "FF", "methods": ["swap"]}}})
    table = load("leaf", path)
    assert table.columns["x"].flatten().tolist() == [1, 2, 3, 4]
    assert table.column("domain").tolist() == ["FF"] * 4
    assert official_parts(table.column("split")).tolist() == [0, 0, 1, 2]


def test_paths_in_x_are_pictures_below_the_folder(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (4, 4), (7, 8, 9)).save(tmp_path / "p.png")
    path = write(tmp_path / "all.json", ["k"], {"k": {"x": ["p.png"], "y": [1]}})
    assert load("leaf", path).columns["x"][0, :, 0, 0].tolist() == [7, 8, 9]
    write(path, ["k"], {"k": {"x": ["../p.png"], "y": [1]}})
    with pytest.raises(ValueError, match=r"leave the data folder .*'../p.png'"):
        load("leaf", path)


@pytest.mark.parametrize("parts", [True, False])
def test_what_is_written_is_read_again(tmp_path: Path, parts: bool) -> None:
    x = torch.arange(40, dtype=torch.float32).reshape(20, 2) / 7
    table = Table("toy", {"x": x, "y": torch.arange(20) % 4})
    clients = Assignment((np.arange(5), np.arange(5, 20)), ("ann", "bob"), "by hand")
    population = make_population(table, clients, key=Key(0))
    again = load("leaf", write_leaf(population, tmp_path / "out" / "all.json", parts=parts))
    assert sorted(map(tuple, again.columns["x"].tolist())) == sorted(map(tuple, x.tolist()))  # float32 survives JSON exactly
    assert np.unique(again.column("user"), return_counts=True)[1].tolist() == [5, 15]
    assert ("split" in again.meta) is parts
    if parts:
        kept = again.columns["x"][torch.from_numpy((again.meta["user"] == "bob") & (again.meta["split"] == "test"))]
        assert torch.equal(kept, population.parts[1].test.all_rows()["x"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"users": ["a", "b"], "user_data": {"a": {"x": [[1]], "y": [0]}}}, r"lists user 'b' \(1 of 2 users\) without an entry in 'user_data'. Remove"),
        ({"users": ["a"], "user_data": {"a": {"x": [[1]], "y": [0, 1]}}}, r"User 'a' .*of one length, found 1 and 2"),
        ({"users": ["a"], "user_data": {"a": {"x": [[1]], "y": [0]}}, "num_samples": [3]}, r"states 3 samples for user 'a', found 1"),
        ({"users": ["a"], "user_data": {"a": {"x": [[1], [1, 2]], "y": [0, 1]}}}, r"differ in length"),
        ({"users": [], "user_data": {}}, r"have no samples"),
        ({"users": ["a", "b"], "user_data": {"a": {"x": [[1]], "y": [0]}, "b": {"x": [], "y": []}}},
         r"list user 'b' \(1 of 2 users\) without a single sample. Remove"),
        ({"clients": []}, r"is no LEAF file: found \['clients'\]"),
    ],
)
def test_contradictions_are_one_clear_sentence(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        load("leaf", path)


def test_no_json_at_all(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no .json files"):
        load("leaf", tmp_path)
    (tmp_path / "half.json").write_text('{"users": [')
    with pytest.raises(ValueError, match=r"half.json' is no JSON file"):
        load("leaf", tmp_path)
