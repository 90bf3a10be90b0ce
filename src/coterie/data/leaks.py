"""Looks for material that two parts or two clients share: a model that has seen the test set proves nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
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
                "parts are made (keeping_together, group_column), or turn the check off (check=False) and say so."
            )
        findings += found
    return tuple(findings + _content(table, parts))


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


def _content(table: Table, parts: NDArray[np.int8]) -> list[Finding]:
    """Test examples, own and central, that are also training or validation examples of somebody."""
    x = table.columns["x"].numpy()
    central = None if table.central_test is None else table.central_test.columns["x"].numpy()
    if x.nbytes + (0 if central is None else central.nbytes) > _LIMIT_BYTES:
        return [Finding("note", "content", 0, "copies of test examples were not looked for: more than 1 GB of data")]
    train, test = np.flatnonzero((parts >= 0) & (parts != _TEST)), np.flatnonzero(parts == _TEST)
    digests = _digests(x)
    seen = set(digests[train].tolist())
    findings = []
    copied = np.array([digest in seen for digest in digests[test].tolist()], dtype=bool)
    for where, found in (("the clients' own", copied), ("the central", _known(central, seen))):
        if found.any():
            text = f"{found.sum()} of {len(found)} examples in {where} test parts are also in a train part"
            findings.append(Finding("warning", "exact", int(found.sum()), text))
    return findings + _near(x, train, test[~copied])


def _known(x: NDArray[Any] | None, seen: set[bytes]) -> NDArray[np.bool_]:
    return np.array([digest in seen for digest in _digests(x).tolist()] if x is not None else [], dtype=bool)


def _digests(x: NDArray[Any]) -> NDArray[np.object_]:
    rows = np.ascontiguousarray(x).reshape(len(x), -1)
    return np.array([hashlib.blake2b(row.data, digest_size=8).digest() for row in rows], dtype=object)


def _near(x: NDArray[Any], train: NDArray[np.int64], test: NDArray[np.int64]) -> list[Finding]:
    """Test pictures whose grey thumbnail is nearly that of a training picture: copies, recoloured or saved again."""
    if x.ndim != 4 or x.shape[1] != 3 or min(x.shape[2:]) < _SIDE or not len(train) or not len(test):
        return []  # a few strokes on paper look alike without being copies, so only colour pictures are compared
    if len(train) * len(test) > _PAIR_LIMIT:
        text = f"near duplicates were not looked for: more than {_PAIR_LIMIT:.0e} pairs of pictures"
        return [Finding("note", "near", 0, text)]
    fine = _thumbnails(x)
    coarse = fine.reshape(-1, _SIDE // 2, 2, _SIDE // 2, 2).mean(axis=(2, 4)).reshape(len(x), -1)
    fine, coarse = _standardised(fine), _standardised(coarse)  # then a product of two rows is their correlation
    coarse_train = coarse[train].T
    count = 0
    for start in range(0, len(test), _CHUNK):
        rows = test[start : start + _CHUNK]
        alike, candidate = np.nonzero(coarse[rows] @ coarse_train > _ALIKE)
        same = (fine[rows[alike]] * fine[train[candidate]]).sum(axis=1) > _ALIKE
        count += len(np.unique(alike[same]))
    text = f"{count} of {len(test)} test pictures are nearly the same as one in a train part (correlation above {_ALIKE})"
    return [Finding("warning", "near", count, text)] if count else []


def _thumbnails(x: NDArray[Any]) -> NDArray[np.float32]:
    """Grey pictures of 16x16 means, flat."""
    grey = [F.adaptive_avg_pool2d(part.float().mean(1), _SIDE) for part in torch.split(torch.from_numpy(x), _CHUNK)]
    return torch.cat(grey).flatten(1).numpy()


def _standardised(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    centred = rows - rows.mean(axis=1, keepdims=True)
    out: NDArray[np.float32] = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-6)
    return out
