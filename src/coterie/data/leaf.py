"""LEAF's JSON (Caldas et al. 2018, arXiv 1812.01097), read and written.

A file is {"users": [...], "num_samples": [...], "hierarchies": [...], "user_data": {user: {"x": [...], "y": [...]}}}, of
which "num_samples" and "hierarchies" (what each user belongs to) may be absent; a folder holds such files, or subfolders
`train` and `test` of them. FL-GAP's form of it has x_train, y_train, x_val, y_val, x_test, y_test and "meta" per user.
Numbers become tensors; texts in "x" are paths of pictures below the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.data.examples import Pixels, Population
from coterie.data.files import read_json
from coterie.data.images import decode_images, inside
from coterie.data.labels import numbered, whole_numbers
from coterie.data.table import Column, Table, known_or_alone

_KEYS = {"x": "", "x_train": "train", "x_val": "val", "x_test": "test"}
_FOLDERS = ("train", "val", "test")


@dataclass
class _Rows:
    """What the files hold, row by row."""

    x: list[Any] = field(default_factory=list)
    y: list[Any] = field(default_factory=list)
    user: list[str] = field(default_factory=list)
    split: list[str] = field(default_factory=list)
    further: dict[str, dict[str, str]] = field(default_factory=dict)  # what is said of a user, by column


def leaf(
    folder: Path, shape: Sequence[int] | None = None, size: int | None = None, name: str = "leaf", tokens: bool = False
) -> Table:
    """A table with the column "user", "hierarchy" and those of "meta", and "split" where the files say what is for training.

    `shape` reshapes flat examples, such as (1, 28, 28) for FEMNIST's 784 numbers; `size` resizes pictures. Numbers
    are float32, with `tokens` whole numbers (int64). Labels that are texts are numbered in alphabetical order.
    """
    rows = _Rows()
    users: list[str] = []
    for path, split in _files(folder):
        for user, data in _users(path, rows.further):
            users.append(user)
            _add(rows, path, user, data, split)
    if not rows.x:
        raise ValueError(f"The LEAF files in '{folder}' have no samples. Check that 'user_data' holds 'x' and 'y'.")
    empty = sorted(set(users) - set(rows.user))
    if empty:
        raise ValueError(
            f"The LEAF files in '{folder}' list user '{empty[0]}' ({len(empty)} of {len(set(users))} users) without a single sample. "
            "Remove such users, or add their data."
        )
    columns: dict[str, Column] = {"user": np.array(rows.user)}
    if any(rows.split):
        columns["split"] = np.array(rows.split)
    for column, values in rows.further.items():
        columns.setdefault(column, known_or_alone(column, [values.get(user, "") for user in rows.user]))
    inputs, decode = _inputs(rows.x, folder, shape, size, tokens)
    labels, classes = _labels(rows.y, folder)
    return Table(name, {"x": inputs, "y": torch.from_numpy(labels)}, classes, columns, decode)


def write_leaf(
    population: Population,
    path: Path,
    *,
    parts: bool = True,
    users_per_file: int | None = None,
    hierarchies: Mapping[str, str] | None = None,
) -> Path:
    """Write the decoded examples of every client as LEAF JSON: one file if `path` ends in .json, else a folder.

    With `parts`, a file is in FL-GAP's form (x_train, x_val, x_test), a folder has subfolders `train`, `val` and `test`
    (LEAF's own programs know no `val`: make the population with validation_fraction=0 for them). Without, each user's
    rows are one list (train, validation, test): then who reads it splits again. A folder has `users_per_file` users
    in each file. The central test set is not written.
    """
    if users_per_file is not None and users_per_file < 1:
        raise ValueError(f"users_per_file must be at least 1, found {users_per_file}. Leave it out for one file.")
    content: dict[str, dict[str, dict[str, Any]]] = {}  # folder ("" for none) -> user -> data
    for user, own in zip(population.names, population.parts, strict=True):
        views = dict(zip(_FOLDERS, (own.train, own.validation, own.test), strict=True))
        lists = {part: {c: v.tolist() for c, v in view.all_rows().items() if c in ("x", "y")} for part, view in views.items()}
        if parts and path.suffix == ".json":
            content.setdefault("", {})[user] = {f"{c}_{part}": lists[part][c] for part in lists for c in ("x", "y")}
        elif parts:
            for part in _FOLDERS:
                if lists[part]["y"]:
                    content.setdefault(part, {})[user] = lists[part]
        else:
            content.setdefault("", {})[user] = {c: [row for part in lists.values() for row in part[c]] for c in ("x", "y")}
    if path.suffix == ".json":
        _write(path, content[""], hierarchies)
        return path
    for part, users in content.items():
        names = list(users)
        step = users_per_file or len(names)
        for number, start in enumerate(range(0, len(names), step)):
            chosen = {user: users[user] for user in names[start : start + step]}
            _write(path / part / f"users-{number:04d}.json", chosen, hierarchies)
    return path


def _write(path: Path, user_data: dict[str, dict[str, Any]], hierarchies: Mapping[str, str] | None) -> None:
    sizes = [sum(len(data[key]) for key in _KEYS if key in data) for data in user_data.values()]
    content: dict[str, Any] = {"users": list(user_data), "num_samples": sizes, "user_data": user_data}
    if hierarchies is not None:
        content["hierarchies"] = [hierarchies.get(user, "") for user in user_data]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def _files(folder: Path) -> list[tuple[Path, str]]:
    """JSON files with the split that their folder's name states ("" where it states none)."""
    if folder.is_file():
        return [(folder, "")]
    for base in (folder, folder / "data"):
        split = [(path, part) for part in _FOLDERS for path in sorted((base / part).glob("*.json"))]
        if split:
            return split
    files = [(path, "") for path in sorted(folder.glob("*.json"))]
    if not files:
        raise ValueError(f"Folder '{folder}' has no .json files, and none in 'train' and 'test'. Put LEAF files there.")
    return files


def _users(path: Path, further: dict[str, dict[str, str]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The users of a file that agrees with itself, and their data; their hierarchies are added to `further`."""
    content = read_json(path)
    if not isinstance(content, dict) or not {"users", "user_data"} <= content.keys():
        found = sorted(content)[:5] if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"'{path}' is no LEAF file: found {found}. It needs 'users' and 'user_data'.")
    listed, user_data = content["users"], content["user_data"]
    if not isinstance(listed, list) or not all(isinstance(user, str | int) for user in listed) or not isinstance(user_data, dict):
        raise ValueError(
            f"In LEAF file '{path}' 'users' is {_kind(listed)} and 'user_data' {_kind(user_data)}. Give a list of names, and an object by name."
        )
    users = [str(user) for user in listed]
    missing = [user for user in users if user not in user_data]
    if missing:
        raise ValueError(
            f"LEAF file '{path}' lists user '{missing[0]}' ({len(missing)} of {len(users)} users) without an entry in "
            "'user_data'. Remove such users from 'users', or add their data."
        )
    if sorted(users) != sorted(user_data):  # nobody is missing, so somebody is there twice or not listed
        unlisted = sorted(set(user_data) - set(users))
        found = f"has data of user '{unlisted[0]}' who is not in 'users'" if unlisted else "lists a user twice in 'users'"
        raise ValueError(f"LEAF file '{path}' {found}. List each user with data once.")
    for key in ("num_samples", "hierarchies"):
        said = content.get(key)
        if said and (not isinstance(said, list) or len(said) != len(users)):
            found = f"{len(said)} entries" if isinstance(said, list) else _kind(said)
            raise ValueError(f"'{key}' in LEAF file '{path}' has {found} for {len(users)} users. Give one entry per user, or none.")
    for user, place in zip(users, content.get("hierarchies") or [], strict=False):
        if place is not None:
            further.setdefault("hierarchy", {})[user] = str(place)
    counts = content.get("num_samples") or [None] * len(users)
    for user, count in zip(users, counts, strict=True):
        data = user_data[user]
        _check(path, user, data)
        own = sum(len(data[key]) for key in _KEYS if key in data)
        if count is not None and own != count:
            raise ValueError(f"LEAF file '{path}' states {count} samples for user '{user}', found {own}. Write it again.")
        yield user, data


def _check(path: Path, user: str, data: Any) -> None:
    """A user's entry has inputs, and as many labels."""
    who = f"User '{user}' in LEAF file '{path}'"
    keys = [key for key in _KEYS if key in data] if isinstance(data, dict) else []
    if not keys or not isinstance(data.get("meta", {}), dict):
        found = sorted(data)[:5] if isinstance(data, dict) else _kind(data)
        raise ValueError(f"{who} needs 'x' and 'y' (and 'meta', if any, as an object), found {found}. Write it again.")
    for key in keys:
        inputs, labels = data[key], data.get(_labels_of(key))
        if not isinstance(inputs, list) or not isinstance(labels, list) or len(inputs) != len(labels):
            found = f"{len(inputs)} and {len(labels)}" if isinstance(inputs, list) and isinstance(labels, list) else "no lists"
            raise ValueError(f"{who} needs '{key}' and its labels of one length, found {found}. Write it again.")
        strange = [label for label in labels if not isinstance(label, int | float | str)]
        if strange:
            raise ValueError(f"{who} has a label that is {_kind(strange[0])}. Give one number or text per example.")


def _labels_of(key: str) -> str:
    return key.replace("x", "y", 1)


def _add(rows: _Rows, path: Path, user: str, data: Mapping[str, Any], split: str) -> None:
    for column, value in data.get("meta", {}).items():
        if isinstance(value, str | int):
            rows.further.setdefault(column, {})[user] = str(value)
    for key, part in _KEYS.items():
        if key in data:
            rows.x += data[key]
            rows.y += data[_labels_of(key)]
            rows.user += [user] * len(data[key])
            rows.split += [part or split] * len(data[key])


def _labels(values: list[Any], folder: Path) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    texts = sum(isinstance(value, str) for value in values)
    if texts == len(values):
        return numbered(values, (), f"the LEAF files in '{folder}'")
    if texts:
        raise ValueError(f"{texts} of {len(values)} labels of the LEAF files in '{folder}' are texts. Give all as numbers, or all as texts.")
    return whole_numbers(values, f"the LEAF files in '{folder}'"), ()


def _inputs(
    x: list[Any], folder: Path, shape: Sequence[int] | None, size: int | None, tokens: bool
) -> tuple[Tensor, Pixels | None]:
    texts = sum(isinstance(value, str) for value in x)
    if texts == len(x):
        return decode_images(inside(folder if folder.is_dir() else folder.parent, x), size), Pixels()
    try:
        values = np.array(x)
    except ValueError as error:
        raise ValueError(f"The examples of the LEAF files in '{folder}' differ in length. Pad or cut them to one length.") from error
    if values.dtype.kind not in ("bui" if tokens else "buif"):
        wanted = "whole numbers" if tokens else "numbers, or all paths of pictures"
        raise ValueError(f"The examples of the LEAF files in '{folder}' are not all {wanted}, the first is {str(x[0])[:80]!r}. Write them so.")
    with np.errstate(over="ignore"):  # becomes infinite, which a table refuses and says where
        inputs = torch.from_numpy(values.astype(np.int64 if tokens else np.float32))
    if shape is None:
        return inputs, None
    if inputs[0].numel() != np.prod(shape):
        raise ValueError(
            f"The examples of the LEAF files in '{folder}' have shape {list(inputs.shape[1:])} and cannot become {list(shape)}. "
            "Give a shape of as many numbers."
        )
    return inputs.reshape(len(inputs), *shape), None


def _kind(value: Any) -> str:
    """The JSON word for a value."""
    words = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return words.get(type(value), "null")
