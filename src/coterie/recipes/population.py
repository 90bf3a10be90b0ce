"""From names and numbers on the command line to a population: what every recipe starts with."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np

from coterie.data import (
    Assignment,
    Population,
    Table,
    by_column,
    dirichlet,
    hold_out,
    iid,
    keeping_together,
    load,
    make_population,
    pathological,
)
from coterie.data.table import Column
from coterie.randomness import Key

Partition = Literal["iid", "dirichlet", "pathological", "column"]


def build_population(
    data: str = "digits",
    clients: int = 10,
    partition: str = "dirichlet",
    beta: float = 0.1,
    classes_per_client: int = 2,
    column: str = "writer",
    data_dir: str | None = None,
    seed: int = 0,
    test_fraction: float = 0.2,
    check: bool = True,
    limit: int | None = None,
    *,
    validation_fraction: float = 0.1,
    min_size: int | None = None,
    balanced: bool = False,
    merge_test: bool = False,
    use_split_column: bool = False,
    public_fraction: float = 0.0,
    options: Mapping[str, Any] | None = None,
) -> Population:
    """Load a data set, give its rows to clients, and cut each client's rows into train, validation and test.

    `limit` keeps that many random rows (whole groups where rows belong together). `merge_test` adds the official
    test split to what is partitioned, as PFLlib does. `min_size` is the smallest client of a Dirichlet partition
    (by default 10, less where the data cannot give that) or the smallest value of a column that becomes a client.
    `public_fraction` of the rows goes to the server as the public part "public" and to no client.
    `options` go to the loader of the data set.
    """
    if partition not in get_args(Partition):
        near = difflib.get_close_matches(partition, get_args(Partition), 1)
        hint = f"Did you mean '{near[0]}'?" if near else f"Use one of {', '.join(get_args(Partition))}."
        raise ValueError(f"Unknown partition '{partition}'. {hint}")
    key = Key(seed, ("data",))
    table = load(data, data_dir, **dict(options or {}))
    table = table.with_test_rows() if merge_test else table
    if limit is not None:
        table = _limited(table, limit, key.fold("limit"))
    public = {}
    if public_fraction:
        table, held = hold_out(table, public_fraction, key.fold("public"))
        public = {"public": held.whole()}
    assignment = _assign(table, partition, clients, beta, classes_per_client, column, min_size, balanced, key.fold("partition"))
    return make_population(
        table, assignment, key=key, test_fraction=test_fraction, validation_fraction=validation_fraction,
        use_split_column=use_split_column, check=check, public=public,
    )  # fmt: skip


def _assign(
    table: Table, partition: str, clients: int, beta: float, classes_per_client: int, column: str,
    min_size: int | None, balanced: bool, key: Key,
) -> Assignment:  # fmt: skip
    if partition == "column":
        return by_column(table.column(column), column, clients=clients, min_size=min_size or 1, key=key)

    def choose(labels: Column) -> Assignment:
        if partition == "iid":
            return iid(labels, clients, key)
        if partition == "pathological":
            return pathological(labels, clients, classes_per_client, key)
        possible = len(labels) // max(clients, 1) // 2
        smallest = min(10, max(1, possible)) if min_size is None else min_size
        return dirichlet(labels, clients, beta, key, min_size=smallest, balanced=balanced)

    if table.together is None:
        return choose(table.labels)
    return keeping_together(table.column(table.together), table.labels, choose)


def _limited(table: Table, limit: int, key: Key) -> Table:
    if limit < 1:
        raise ValueError(f"limit must be at least 1, found {limit}. Use the number of examples to keep.")
    if limit >= len(table):
        return table
    order = key.numpy().permutation(len(table))
    if table.together is not None:
        groups: Column = np.unique(table.column(table.together), return_inverse=True)[1]
        first_seen = np.argsort(key.numpy().random(int(groups.max()) + 1))
        order = np.argsort(np.argsort(first_seen)[groups], kind="stable")
    return table.rows(np.sort(order[:limit]))
