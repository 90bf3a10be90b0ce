"""From a table and its partition to clients with train, validation and test parts that never overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.examples import ClientParts, Finding, Population, View
from coterie.data.leaks import check_leaks
from coterie.data.partition import Assignment, Rows, rows_by_value
from coterie.data.table import Column, Table
from coterie.randomness import Key

NOBODY, TRAIN, VALIDATION, TEST = -1, 0, 1, 2
_VALIDATION_NAMES = ("val", "valid", "validation", "dev")
_UNCHECKED = Finding("note", "unchecked", 0, "was turned off (check=False)")


def make_population(
    table: Table,
    assignment: Assignment,
    *,
    key: Key,
    test_fraction: float = 0.2,
    validation_fraction: float = 0.1,
    group_column: str | None = None,
    use_split_column: bool = False,
    check: bool = True,
    names: Sequence[str] | None = None,
    public: Mapping[str, View] | None = None,
) -> Population:
    """Clients as views on `table`: nothing is copied, so ten thousand of them cost only their index lists.

    Each client's rows are shuffled by its own key and cut: `test_fraction` of them test, of the rest
    `validation_fraction` validation (used only for choosing), everything else train. A client with three rows or
    more has at least one in each part (unless the fraction is 0), with two rows one train and one test, with one
    row only train. Rows that share a value of `group_column` (by default the table's own "group" or
    "source_id") move together; then the rule counts groups instead of rows, and sizes are as near as whole
    groups allow. `use_split_column` takes the parts from the data set's own column "split" ("train", "val", "test")
    instead; a client without validation rows there gets some of its training rows.
    """
    for name, fraction in (("test_fraction", test_fraction), ("validation_fraction", validation_fraction)):
        if not 0 <= fraction < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, found {fraction}. Use for example 0.2.")
    client_names = tuple(names) if names is not None else assignment.names
    _check_rows(table, replace(assignment, names=client_names))
    column = group_column or table.together
    groups = None if column is None else np.unique(table.column(column), return_inverse=True)[1]
    official = official_parts(table.column("split")) if use_split_column else None
    parts = np.full(len(table), NOBODY, dtype=np.int8)
    owner = np.full(len(table), -1, dtype=np.int64)
    clients = []
    for client, rows in enumerate(assignment.rows):
        rng = key.fold("split", client).numpy()
        cut = _cut(rows, groups, official, test_fraction, validation_fraction, rng)
        if not len(cut[TRAIN]):
            raise ValueError(
                f"Client '{client_names[client]}' has no training rows in the data set's own split ({len(rows)} test rows). "
                "Leave such clients out, or split at random (use_split_column=False)."
            )
        for part, own in enumerate(cut):
            parts[own] = part
        owner[rows] = client
        clients.append(ClientParts(*(View(table.columns, torch.from_numpy(own), table.decode) for own in cut)))
    findings = check_leaks(table, owner, parts, client_names) if check else (_UNCHECKED,)
    return Population(
        name=table.name,
        names=client_names,
        parts=clients,
        num_classes=table.num_classes,
        classes=table.classes,
        central_test=None if table.central_test is None else table.central_test.whole(),
        public=dict(public or {}),
        partition=assignment.how,
        findings=findings + table.findings + (() if table.central_test is None else table.central_test.findings),
    )


def _check_rows(table: Table, assignment: Assignment) -> None:
    """There are clients, every one has rows, they exist, and each row has one owner."""
    if not assignment.rows:
        raise ValueError(f"The partition of '{table.name}' has no clients. Use one or more.")
    for name, rows in zip(assignment.names, assignment.rows, strict=True):
        if len(rows) == 0:
            raise ValueError(f"Client '{name}' has no samples. Use fewer clients, a larger beta, or min_size.")
        if rows.min() < 0 or rows.max() >= len(table):
            found = rows[(rows < 0) | (rows >= len(table))][0]
            raise ValueError(f"Client '{name}' has row {found} of a table of {len(table)} rows. Give each client rows of the table.")
    owned = np.concatenate(assignment.rows)
    rows, counts = np.unique(owned, return_counts=True)
    if len(rows) < len(owned):
        twice = rows[counts > 1]
        holders = [name for name, own in zip(assignment.names, assignment.rows, strict=True) if twice[0] in own]
        raise ValueError(
            f"Data leak in '{table.name}': {len(twice)} rows are given out more than once, such as row {twice[0]} to {holders}. "
            "Give each row to one client, once."
        )


def hold_out(table: Table, fraction: float, key: Key) -> tuple[Table, Table]:
    """(rest, held): about `fraction` of a table for the server, in whole groups where rows belong together."""
    if not 0 < fraction < 1:
        raise ValueError(f"The held-out fraction must be between 0 and 1, found {fraction}. Use for example 0.1.")
    groups = None if table.together is None else np.unique(table.column(table.together), return_inverse=True)[1]
    rest, held = _split_off(np.arange(len(table)), groups, fraction, 1, key.numpy())
    return table.rows(rest), replace(table.rows(held), central_test=None)


def official_parts(split: Column) -> NDArray[np.int8]:
    """The part of each row by the data set's own words; where only train and validation exist, validation is the test."""
    words = np.char.lower(np.asarray(split).astype(str))
    unknown = sorted(set(words.tolist()) - {"train", "test", *_VALIDATION_NAMES})
    if unknown:
        raise ValueError(f"Column 'split' holds {unknown[:3]}. Use 'train', 'val' and 'test'.")
    test = words == "test"
    validation = np.isin(words, _VALIDATION_NAMES)
    if not test.any():
        test, validation = validation, test
    return np.where(test, TEST, np.where(validation, VALIDATION, TRAIN)).astype(np.int8)


def _cut(
    rows: Rows,
    groups: Column | None,
    official: NDArray[np.int8] | None,
    test_fraction: float,
    validation_fraction: float,
    rng: np.random.Generator,
) -> tuple[Rows, Rows, Rows]:
    """Train, validation and test rows of one client."""
    if official is None:
        rest, test = _split_off(rows, groups, test_fraction, 2 if validation_fraction else 1, rng)
    else:
        rest, validation, test = (rows[official[rows] == part] for part in (TRAIN, VALIDATION, TEST))
        if len(validation):
            return rest, validation, test
    train, validation = _split_off(rest, groups, validation_fraction, 1, rng)
    return train, validation, test


def _split_off(
    rows: Rows, groups: Column | None, fraction: float, keep: int, rng: np.random.Generator
) -> tuple[Rows, Rows]:
    """(kept, taken): about `fraction` of the rows, but at least one unit (row or group), and `keep` units stay.

    With too few units for both, one stays; a single unit is never taken.
    """
    if fraction == 0 or len(rows) < 2:
        return rows, rows[:0]
    if groups is None:
        shuffled = rng.permutation(rows)
        count = _between(round(fraction * len(rows)), len(rows), keep)
        return np.sort(shuffled[count:]), np.sort(shuffled[:count])
    units = [rows[unit] for unit in rows_by_value(groups[rows])]
    if len(units) < 2:
        return rows, rows[:0]
    shuffled_units = [units[i] for i in rng.permutation(len(units))]
    sizes = np.cumsum([len(unit) for unit in shuffled_units])
    count = _between(1 + int(np.abs(sizes - fraction * len(rows)).argmin()), len(units), keep)
    return np.sort(np.concatenate(shuffled_units[count:])), np.sort(np.concatenate(shuffled_units[:count]))


def _between(count: int, units: int, keep: int) -> int:
    return max(1, min(count, units - keep))
