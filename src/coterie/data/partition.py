"""Which client owns which rows. Every partition gives each row to exactly one client and always ends.

A partition is a function of labels (or of another column), a number of clients and a key, so the same
key gives the same clients on every machine.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coterie.data.table import Column
from coterie.randomness import Key

Rows = NDArray[np.int64]

_TRIES = 10  # new draws before a Dirichlet partition with too small clients is repaired


@dataclass(frozen=True)
class Assignment:
    """The rows of each client, the clients' names, and in words how it was made."""

    rows: tuple[Rows, ...]
    names: tuple[str, ...]
    how: str

    def __post_init__(self) -> None:
        if len(self.names) != len(self.rows) or len(set(self.names)) < len(self.names):
            distinct = len(set(self.names))
            raise ValueError(f"{len(self.rows)} clients have {distinct} different names. Give each client its own name.")

    def __len__(self) -> int:
        return len(self.rows)


def iid(labels: Column, clients: int, key: Key) -> Assignment:
    """Equal shards with equal classes: sizes and class counts of two clients differ by at most one."""
    _check(len(labels), clients)
    rng = key.numpy()
    by_class = np.concatenate([rng.permutation(rows) for rows in rows_by_value(labels)])
    order = rng.permutation(clients)  # or the first clients would get the remainder of every run
    return _named([by_class[place::clients] for place in order], f"iid over {clients} clients")


def dirichlet(
    labels: Column, clients: int, beta: float, key: Key, *, min_size: int = 10, balanced: bool = False
) -> Assignment:
    """Label skew: every class is cut by shares q_c ~ Dirichlet(beta) over the clients (Hsu et al. 2019, arXiv 1909.06335).

    `balanced`: a client that already has its N/K samples gets no more of the next classes, as PFLlib and the
    FedXDS code do. Draws that leave a client below `min_size` are repeated a few times; what is then still too
    small is filled with random rows of the largest clients, so the function ends for every beta.
    """
    _check(len(labels), clients, min_size)
    if not 0 < beta < float("inf"):
        raise ValueError(f"beta must be above 0 and finite, found {beta}. Use 0.1 for strong label skew, 100 for nearly none.")
    rng = key.numpy()
    classes = rows_by_value(labels)
    best: list[Rows] = []
    for _ in range(_TRIES):
        drawn = _dirichlet_once(classes, clients, beta, balanced, rng)
        if not best or min(map(len, drawn)) > min(map(len, best)):
            best = drawn
        if min(map(len, best)) >= min_size:
            break
    moved = _fill_small(best, min_size, rng)
    repaired = f", {moved} rows moved to reach {min_size} per client" if moved else ""
    return _named(best, f"dirichlet(beta={beta:g}) over {clients} clients{repaired}")


def pathological(labels: Column, clients: int, classes_per_client: int, key: Key) -> Assignment:
    """Each client holds only `classes_per_client` classes, and a class is cut evenly among its holders.

    Classes are handed out so that all have nearly the same number of holders. A class with fewer rows than
    holders takes no more of them, so where classes are tiny a client may hold fewer.
    """
    _check(len(labels), clients)
    classes = rows_by_value(labels)
    if not 1 <= classes_per_client <= len(classes):
        raise ValueError(
            f"classes_per_client must be from 1 to the {len(classes)} classes of the data, found {classes_per_client}. "
            "Use a number in between, usually 2."
        )
    if clients * classes_per_client < len(classes):
        raise ValueError(
            f"{clients} clients with {classes_per_client} classes each cannot hold all {len(classes)} classes. "
            f"Use at least {-(-len(classes) // classes_per_client)} clients, or more classes per client."
        )
    if clients * classes_per_client > len(labels):
        raise ValueError(
            f"{clients} clients with {classes_per_client} classes each need as many samples, found {len(labels)}. "
            "Use fewer clients or fewer classes per client."
        )
    rng = key.numpy()
    sizes = np.array([len(rows) for rows in classes])
    holders: list[list[int]] = [[] for _ in classes]
    for client in rng.permutation(clients):
        order = sorted(range(len(classes)), key=lambda c: (len(holders[c]), rng.random()))
        for chosen in [c for c in order if len(holders[c]) < sizes[c]][:classes_per_client]:
            holders[chosen].append(int(client))
    owned: list[list[Rows]] = [[] for _ in range(clients)]
    for rows, owners in zip(classes, holders, strict=True):
        for client, piece in zip(owners, np.array_split(rng.permutation(rows), len(owners)), strict=True):
            owned[client].append(piece)
    how = f"pathological({classes_per_client} classes per client) over {clients} clients"
    return _named([np.concatenate(pieces) for pieces in owned], how)


def by_column(values: Column, name: str, *, key: Key, clients: int | None = None, min_size: int = 1) -> Assignment:
    """One client per value of a column (a writer, a speaker, a site), with at least `min_size` rows.

    With `clients`, that many of the values, chosen at random. Rows of the others, and rows where the column is
    empty, belong to nobody: this is the one partition that may leave rows out, and its description says how many.
    """
    found, owner = np.unique(np.asarray(values), return_inverse=True)
    groups = rows_by_value(owner)
    blank = [i for i, value in enumerate(found) if not str(value).strip()]
    kept = [i for i, rows in enumerate(groups) if len(rows) >= min_size and i not in blank]
    if not kept:
        largest = max((len(rows) for i, rows in enumerate(groups) if i not in blank), default=0)
        raise ValueError(f"No {name} has {min_size} samples, the largest has {largest}. Use a smaller min_size.")
    if clients is not None:
        _check(len(values), clients)
        if clients > len(kept):
            raise ValueError(
                f"{clients} clients were asked for, but column '{name}' has only {len(kept)} values "
                f"with at least {min_size} samples. Use at most {len(kept)} clients."
            )
        if clients < len(kept):
            kept = sorted(kept[i] for i in key.numpy().choice(len(kept), clients, replace=False))
    total = len(found) - len(blank)
    part = "" if len(kept) == total else f", {len(kept)} of {total}"
    part += "".join(f", {len(groups[i])} rows without one left out" for i in blank)
    return Assignment(tuple(groups[i] for i in kept), tuple(str(found[i]) for i in kept), f"one client per {name}{part}")


def keeping_together(groups: Column, labels: Column, partition: Callable[[Column], Assignment]) -> Assignment:
    """Any partition of whole groups: `partition` sees one label per group, its most frequent one."""
    _, owner = np.unique(np.asarray(groups), return_inverse=True)
    members = rows_by_value(owner)
    units = partition(np.array([_most_frequent(np.asarray(labels)[rows]) for rows in members]))
    rows = tuple(np.sort(np.concatenate([members[unit] for unit in own])) for own in units.rows)
    how = units.how.replace("rows moved", "groups moved")
    return replace(units, rows=rows, how=f"{how}, groups kept together")


def _most_frequent(values: Column) -> int:
    found, counts = np.unique(values, return_counts=True)
    return int(found[counts.argmax()])


def _dirichlet_once(classes: list[Rows], clients: int, beta: float, balanced: bool, rng: np.random.Generator) -> list[Rows]:
    total = sum(map(len, classes))
    given: list[Rows] = []
    owners: list[Rows] = []
    sizes = np.zeros(clients, dtype=np.int64)
    for rows in classes:
        shares = _shares(rng, beta, clients)
        if balanced:
            shares = shares * (sizes < total / clients)
            if not shares.sum() > 0:  # all mass was on full clients; somebody is below N/K until every row is given
                shares = (sizes < total / clients).astype(np.float64)
            shares /= shares.sum()
        cuts = np.minimum((shares.cumsum() * len(rows)).round().astype(np.int64)[:-1], len(rows))
        counts = np.diff(cuts, prepend=0, append=len(rows))
        given.append(rng.permutation(rows))
        owners.append(np.repeat(np.arange(clients), counts))
        sizes += counts
    order = np.argsort(np.concatenate(owners), kind="stable")
    return np.split(np.concatenate(given)[order], sizes.cumsum()[:-1])


def _shares(rng: np.random.Generator, beta: float, clients: int) -> NDArray[np.float64]:
    """Dirichlet(beta) over the clients; its limit, everything on one client, where a tiny beta underflows."""
    shares = rng.dirichlet(np.full(clients, beta))
    if np.isfinite(shares).all() and shares.sum() > 0.5:
        return shares
    shares = np.zeros(clients)
    shares[rng.integers(clients)] = 1.0
    return shares


def _fill_small(owned: list[Rows], min_size: int, rng: np.random.Generator) -> int:
    """Move random rows, one by one, from whoever has most to whoever has less than `min_size`; how many moved."""
    needy = [(client, min_size - len(rows)) for client, rows in enumerate(owned) if len(rows) < min_size]
    if not needy:
        return 0
    donors = {client: rng.permutation(rows).tolist() for client, rows in enumerate(owned) if len(rows) > min_size}
    largest = [(-len(rows), client) for client, rows in donors.items()]
    heapq.heapify(largest)
    for client, wanted in needy:
        given = []
        for _ in range(wanted):
            size, donor = largest[0]
            given.append(donors[donor].pop())
            heapq.heapreplace(largest, (size + 1, donor))
        owned[client] = np.concatenate([owned[client], np.array(given, dtype=np.int64)])
    for client, rows in donors.items():
        owned[client] = np.array(rows, dtype=np.int64)
    return sum(wanted for _, wanted in needy)


def rows_by_value(values: Column) -> list[Rows]:
    """The rows of each value, values in order."""
    values = np.asarray(values)
    order = np.argsort(values, kind="stable").astype(np.int64)
    starts = np.flatnonzero(values[order][1:] != values[order][:-1]) + 1
    return np.split(order, starts) if len(order) else []


def _named(owned: list[Rows], how: str) -> Assignment:
    return Assignment(tuple(np.sort(rows) for rows in owned), tuple(f"client-{i}" for i in range(len(owned))), how)


def _check(samples: int, clients: int, min_size: int = 1) -> None:
    if clients < 1:
        raise ValueError(f"clients must be at least 1, found {clients}. Use 1 or more.")
    if min_size < 1:
        raise ValueError(f"min_size must be at least 1, found {min_size}. A client without samples is no client.")
    if samples < clients * min_size:
        raise ValueError(
            f"{clients} clients with at least {min_size} samples each need {clients * min_size} samples, found {samples}. "
            f"Use at most {samples // min_size} clients, a smaller min_size or more data."
        )
