"""Looks for material that two parts or two clients share: a model that has seen the test set proves nothing."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from coterie.data.examples import Finding
from coterie.data.table import KEEP_TOGETHER, Column, Table

_LOOSE = ("identity",)  # one person may rightly be in train and test of a personal model
_LIMIT_BYTES = 1 << 30  # beyond this much data, content is not compared
_PAIR_LIMIT = 1e9  # more pairs of pictures than this are not compared (CIFAR-10 has 4e8, about a second)
_SIDE = 16  # width of a thumbnail
_ALIKE = 0.97  # 76 of CIFAR-10's official test pictures correlate more with a training one: seen by eye, copies
_CHUNK = 256

_TEST = 2


def check_leaks(
    table: Table, owner: NDArray[np.int64], parts: NDArray[np.int8], names: Sequence[str]
) -> tuple[Finding, ...]:
    """What train and test parts (0 train, 1 validation, 2 test, -1 nobody's) or two clients share.

    A shared group or source is refused with an error that names it. Shared identities and equal or nearly equal
    content are findings: data sets contain them, and results should say so.
    """
    findings: list[Finding] = []
    owned = np.flatnonzero(parts >= 0)
    for column in (name for name in (*KEEP_TOGETHER, *_LOOSE) if name in table.meta):
        found = _shared_values(table.column(column)[owned], owner[owned], parts[owned], column, names)
        found += _shared_with_central(table, parts, column)
        strict = found if column in KEEP_TOGETHER else []
        if strict:
            raise ValueError(
                f"Data leak in '{table.name}': {'; '.join(f.text for f in strict)}. Keep the rows of one '{column}' together when clients and "
                "parts are made (keeping_together, group_column), or turn the check off (check=False, on the command line --no-check) and say so."
            )
        findings += found
    return tuple(findings + _content(table, owner, parts, names))


def _shared_values(
    values: Column, owner: NDArray[np.int64], parts: NDArray[np.int8], column: str, names: Sequence[str]
) -> list[Finding]:
    level = _level(column)
    distinct, value = np.unique(values, return_inverse=True)
    total = len(distinct)
    found = []
    both = np.intersect1d(value[parts == _TEST], value[parts != _TEST])
    if len(both):
        text = f"in train and in test: {len(both)} of {total} values of '{column}', such as {_shown(distinct, both)}"
        found.append(Finding(level, column, len(both), text))
    low, high = np.full(total, np.iinfo(np.int64).max), np.full(total, -1)
    np.minimum.at(low, value, owner)
    np.maximum.at(high, value, owner)
    wide = np.flatnonzero(low != high)
    if len(wide):
        first = f"'{names[low[wide[0]]]}' and '{names[high[wide[0]]]}'"
        shown = _shown(distinct, wide[:1])
        text = f"at two clients or more: {len(wide)} of {total} values of '{column}', such as {shown} at {first}"
        found.append(Finding(level, column, len(wide), text))
    return found


def _shared_with_central(table: Table, parts: NDArray[np.int8], column: str) -> list[Finding]:
    """Values that train parts share with the central test set."""
    if table.central_test is None or column not in table.central_test.meta:
        return []
    trained = table.column(column)[(parts >= 0) & (parts != _TEST)]
    both = np.intersect1d(trained.astype(str), table.central_test.column(column).astype(str))
    text = f"in train and in the central test set: {len(both)} values of '{column}', such as {_shown(both, np.arange(len(both)))}"
    return [Finding(_level(column), column, len(both), text)] if len(both) else []


def _level(column: str) -> Literal["leak", "warning"]:
    return "leak" if column in KEEP_TOGETHER else "warning"


def _shown(distinct: Column, chosen: NDArray[np.int64]) -> str:
    return ", ".join(f"'{distinct[c]}'" for c in chosen[:3])


@dataclass(frozen=True)
class _Held:
    """Test examples of one kind: their content, which rows of it count, and how one of them is called."""

    where: str
    x: NDArray[Any]
    rows: NDArray[np.int64]
    name: Callable[[int], str]


def _content(table: Table, owner: NDArray[np.int64], parts: NDArray[np.int8], names: Sequence[str]) -> list[Finding]:
    """Test examples, own and central, that are also training or validation examples of somebody."""
    x = table.columns["x"].numpy()
    central = None if table.central_test is None else table.central_test.columns["x"].numpy()
    if x.nbytes + (0 if central is None else central.nbytes) > _LIMIT_BYTES:
        return [Finding("note", "content", 0, "copies of test examples were not looked for: more than 1 GB of data")]
    train = np.flatnonzero((parts >= 0) & (parts != _TEST))

    def row_name(row: int) -> str:
        return f"row {row} of '{names[owner[row]]}'"

    kinds = [_Held("the clients' own", x, np.flatnonzero(parts == _TEST), row_name)]
    if central is not None:
        kinds.append(_Held("the central", central, np.arange(len(central)), lambda row: f"row {row}"))
    first_of = {digest: int(row) for digest, row in zip(_digests(x[train]), train, strict=True)}
    exact, near = [], []
    for held in kinds:
        twin = np.array([first_of.get(digest, -1) for digest in _digests(held.x[held.rows])], dtype=np.int64)
        copied = twin >= 0
        if copied.any():
            place = int(copied.argmax())
            shown = f"such as {held.name(int(held.rows[place]))}, equal to {row_name(int(twin[place]))}"
            text = f"{copied.sum()} of {len(copied)} examples in {held.where} test parts are also in a train part, {shown}"
            exact.append(Finding("warning", "exact", int(copied.sum()), text))
        near += _near(x, train, replace(held, rows=held.rows[~copied]), row_name)
    return exact + near


def _digests(x: NDArray[Any]) -> list[bytes]:
    rows = np.ascontiguousarray(x).reshape(len(x), math.prod(x.shape[1:]))
    return [hashlib.blake2b(row.data, digest_size=8).digest() for row in rows]


def _near(x: NDArray[Any], train: NDArray[np.int64], held: _Held, row_name: Callable[[int], str]) -> list[Finding]:
    """Test pictures whose grey thumbnail is nearly that of a training picture: copies, recoloured or saved again."""
    if x.ndim != 4 or x.shape[1] != 3 or min(x.shape[2:]) < _SIDE or not len(train) or not len(held.rows):
        return []  # a few strokes on paper look alike without being copies, so only colour pictures are compared
    if len(train) * len(held.rows) > _PAIR_LIMIT:
        text = f"near duplicates in {held.where} test parts were not looked for: more than {_PAIR_LIMIT:.0e} pairs of pictures"
        return [Finding("note", "near", 0, text)]
    fine_train, coarse_train = _thumbnails(x[train])
    fine, coarse = _thumbnails(held.x[held.rows])
    count, shown = 0, ""
    for start in range(0, len(held.rows), _CHUNK):
        alike, candidate = np.nonzero(coarse[start : start + _CHUNK] @ coarse_train.T > _ALIKE)
        same = (fine[start + alike] * fine_train[candidate]).sum(axis=1) > _ALIKE
        count += len(np.unique(alike[same]))
        if same.any() and not shown:
            test, twin = int(held.rows[start + alike[same][0]]), int(train[candidate[same][0]])
            shown = f"such as {held.name(test)}, like {row_name(twin)}"
    text = f"{count} of {len(held.rows)} pictures in {held.where} test parts are nearly the same as one in a train part, {shown}"
    return [Finding("warning", "near", count, f"{text} (correlation above {_ALIKE})")] if count else []


def _thumbnails(x: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Grey pictures of 16x16 and of 8x8 means, flat and standardised: a product of two rows is their correlation."""
    grey = [F.adaptive_avg_pool2d(part.float().mean(1), _SIDE) for part in torch.split(torch.from_numpy(x), _CHUNK)]
    fine = torch.cat(grey).numpy()
    coarse = fine.reshape(-1, _SIDE // 2, 2, _SIDE // 2, 2).mean(axis=(2, 4))
    return _standardised(fine.reshape(len(x), -1)), _standardised(coarse.reshape(len(x), -1))


def _standardised(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    centred = rows - rows.mean(axis=1, keepdims=True)
    out: NDArray[np.float32] = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-6)
    return out
