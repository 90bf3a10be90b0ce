"""LEAF's JSON (Caldas et al. 2018, arXiv 1812.01097), read and written.

A file is {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}; a folder holds such
files, or `train` and `test` subfolders of them. FL-GAP's form of it has x_train, y_train, x_val, y_val, x_test, y_test
and "meta" per user. Numbers become tensors; texts in "x" are paths of pictures below the folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.data.examples import Pixels, Population, View
from coterie.data.images import decode_images, inside
from coterie.data.table import Column, Table

_PARTS = {"x": "", "x_train": "train", "x_val": "val", "x_test": "test"}


def leaf(folder: Path, shape: Sequence[int] | None = None, size: int | None = None, name: str = "leaf") -> Table:
    """A table with the column "user", and "split" where the files say which rows are for training.

    `shape` reshapes flat examples, such as (1, 28, 28) for FEMNIST's 784 numbers; `size` resizes pictures.
    """
    x: list[Any] = []
    y: list[int] = []
    meta: dict[str, list[str]] = {"user": [], "split": []}
    further: dict[str, dict[str, str]] = {}  # what "meta" says of a user, by column
    for path, split in _files(folder):
        for user, data in _users(path):
            for column, value in data.get("meta", {}).items():
                if isinstance(value, str | int):
                    further.setdefault(column, {})[user] = str(value)
            for key, part in _PARTS.items():
                if key in data:
                    inputs, labels = data[key], data.get(key.replace("x", "y", 1), [])
                    _check_lengths(path, user, key, inputs, labels)
                    x += inputs
                    y += labels
                    meta["user"] += [user] * len(inputs)
                    meta["split"] += [part or split] * len(inputs)
    if not x:
        raise ValueError(f"The LEAF files in '{folder}' have no samples. Check that 'user_data' holds 'x' and 'y'.")
    columns: dict[str, Column] = {column: np.array(values) for column, values in meta.items()}
    if not columns["split"].astype(bool).any():
        del columns["split"]
    for column, values in further.items():
        columns.setdefault(column, np.array([values.get(user, "") for user in meta["user"]]))
    root = folder if folder.is_dir() else folder.parent
    inputs, decode = _inputs(x, root, shape, size)
    return Table(name, {"x": inputs, "y": torch.tensor([int(label) for label in y])}, (), columns, decode)


def write_leaf(population: Population, path: Path, *, parts: bool = True) -> Path:
    """Write decoded examples of every client as one JSON file.

    With `parts` in FL-GAP's form (x_train, x_val, x_test); without, in LEAF's own, each user's rows in one list
    (train, validation, test): then who reads it splits again.
    """
    user_data: dict[str, dict[str, Any]] = {}
    sizes = []
    for client, own in zip(population.names, population.parts, strict=True):
        views = {"train": own.train, "val": own.validation, "test": own.test}
        lists = {part: _lists(view) for part, view in views.items()}
        sizes.append(sum(map(len, views.values())))
        if parts:
            user_data[client] = {f"{c}_{part}": lists[part][c] for part in lists for c in ("x", "y")}
        else:
            user_data[client] = {c: [row for part in lists.values() for row in part[c]] for c in ("x", "y")}
    content = {"users": list(population.names), "num_samples": sizes, "user_data": user_data}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def _lists(view: View) -> dict[str, list[Any]]:
    rows = view.all_rows()
    return {"x": rows["x"].tolist(), "y": rows["y"].tolist()}


def _files(folder: Path) -> list[tuple[Path, str]]:
    """JSON files with the split that their folder's name states ("" where it states none)."""
    if folder.is_file():
        return [(folder, "")]
    for base in (folder, folder / "data"):
        split = [(path, part) for part in ("train", "test") for path in sorted((base / part).glob("*.json"))]
        if split:
            return split
    files = [(path, "") for path in sorted(folder.glob("*.json"))]
    if not files:
        raise ValueError(f"Folder '{folder}' has no .json files, and none in 'train' and 'test'. Put LEAF files there.")
    return files


def _users(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"'{path}' is no JSON file ({error}). Write it again.") from error
    if not isinstance(content, dict) or not {"users", "user_data"} <= content.keys():
        found = sorted(content)[:5] if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"'{path}' is no LEAF file: found {found}. It needs 'users' and 'user_data'.")
    users, user_data = [str(user) for user in content["users"]], content["user_data"]
    missing = [user for user in users if user not in user_data]
    if missing:
        raise ValueError(
            f"LEAF file '{path}' lists user '{missing[0]}' ({len(missing)} of {len(users)} users) without an entry in "
            "'user_data'. Remove such users from 'users', or add their data."
        )
    counts = content.get("num_samples", [])
    for user, count in zip(users, counts, strict=False):
        own = sum(len(user_data[user][key]) for key in _PARTS if key in user_data[user])
        if own != count:
            raise ValueError(f"LEAF file '{path}' states {count} samples for user '{user}', found {own}. Write it again.")
    return [(user, user_data[user]) for user in users]


def _check_lengths(path: Path, user: str, key: str, inputs: Any, labels: Any) -> None:
    if not isinstance(inputs, list) or not isinstance(labels, list) or len(inputs) != len(labels):
        found = f"{len(inputs)} and {len(labels)}" if isinstance(inputs, list) and isinstance(labels, list) else "no lists"
        raise ValueError(
            f"User '{user}' in LEAF file '{path}' needs '{key}' and its labels of one length, found {found}. Write it again."
        )


def _inputs(x: list[Any], root: Path, shape: Sequence[int] | None, size: int | None) -> tuple[Tensor, Pixels | None]:
    if isinstance(x[0], str):
        return decode_images(inside(root, x), size), Pixels()
    try:
        values = torch.from_numpy(np.array(x, dtype=np.float32))
    except ValueError as error:
        raise ValueError("The examples of the LEAF files differ in length. Pad or cut them to one length.") from error
    return (values if shape is None else values.reshape(len(values), *shape)), None
