"""Train, validation and test parts never overlap, groups stay whole, and leaks are found."""

from __future__ import annotations

import time
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data import Assignment, Population, Table, by_column, hold_out, iid, make_population
from coterie.randomness import Key


def table(rows: int, **meta: list[object] | np.ndarray) -> Table:
    x = torch.arange(rows, dtype=torch.float32)[:, None]
    return Table("toy", {"x": x, "y": torch.arange(rows) % 3}, meta={name: np.array(v) for name, v in meta.items()})


def one_client(rows: int) -> Assignment:
    return Assignment((np.arange(rows),), ("only",), "all")


def sizes(population: Population) -> list[tuple[int, int, int]]:
    return [(len(own.train), len(own.validation), len(own.test)) for own in population.parts]


def indices(population: Population) -> list[list[int]]:
    return [view.index.tolist() for own in population.parts for view in (own.train, own.validation, own.test)]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 6), st.floats(0.01, 0.95), st.floats(0.01, 0.95))
def test_parts_are_disjoint_complete_and_not_empty(rows: int, clients: int, test: float, validation: float) -> None:
    clients = min(clients, rows)
    made = make_population(
        table(rows), iid(np.arange(rows) % 3, clients, Key(0)), key=Key(1), test_fraction=test, validation_fraction=validation
    )
    assert sorted(chain(*indices(made))) == list(range(rows))
    for counts in sizes(made):
        assert all(counts) or sum(counts) < 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=60))
def test_a_group_is_in_one_part_only(groups: list[int]) -> None:
    made = make_population(table(len(groups), group=groups), one_client(len(groups)), key=Key(2))
    parts = [{groups[i] for i in part} for part in indices(made)]
    assert sum(map(len, parts)) == len(set(groups))
    assert sorted(chain(*indices(made))) == list(range(len(groups)))
    assert all(parts) or len(set(groups)) < 3


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(1, (1, 0, 0)), (2, (1, 0, 1)), (3, (1, 1, 1)), (10, (7, 1, 2)), (100, (72, 8, 20)), (1000, (720, 80, 200))],
)
def test_the_stated_rule_for_small_and_large_clients(rows: int, expected: tuple[int, int, int]) -> None:
    assert sizes(make_population(table(rows), one_client(rows), key=Key(0))) == [expected]


def test_no_test_part_and_no_validation_part_when_asked() -> None:
    made = make_population(table(10), one_client(10), key=Key(0), test_fraction=0.0, validation_fraction=0.0)
    assert sizes(made) == [(10, 0, 0)]


def test_a_clients_split_does_not_depend_on_the_others() -> None:
    rows = np.arange(30)
    alone = make_population(table(60), Assignment((rows,), ("a",), ""), key=Key(0))
    together = make_population(table(60), Assignment((rows, rows + 30), ("a", "b"), ""), key=Key(0))
    assert indices(alone) == indices(together)[:3]


def test_official_split_is_kept_and_validation_comes_from_train() -> None:
    split = ["train"] * 8 + ["test"] * 2
    made = make_population(table(10, split=split), one_client(10), key=Key(0), use_split_column=True)
    assert sizes(made) == [(7, 1, 2)] and made.parts[0].test.index.tolist() == [8, 9]
    three = make_population(
        table(6, split=["train", "val", "test"] * 2), one_client(6), key=Key(0), use_split_column=True
    )
    assert indices(three) == [[0, 3], [1, 4], [2, 5]]
    only_test = Assignment((np.arange(8), np.array([8, 9])), ("a", "b"), "")
    with pytest.raises(ValueError, match=r"Client 'b' has no training rows in the data set's own split \(2 test rows\)"):
        make_population(table(10, split=split), only_test, key=Key(0), use_split_column=True)


def test_a_source_at_two_clients_is_refused_and_named() -> None:
    toy = table(8, source_id=["v1", "v1", "v2", "v3", "v1", "v4", "v5", "v6"])
    halves = Assignment((np.arange(4), np.arange(4, 8)), ("left", "right"), "")
    with pytest.raises(ValueError, match=r"at two clients or more: 1 of 6 values of 'source_id', such as 'v1' at 'left' and 'right'"):
        make_population(toy, halves, key=Key(0))
    assert "check=False" in make_population(toy, halves, key=Key(0), check=False).findings[0].text


def test_a_group_in_train_and_test_is_refused() -> None:
    toy = table(40, group=np.arange(40) // 20, other=np.arange(40))
    with pytest.raises(ValueError, match=r"Data leak in 'toy': in train and in test: 2 of 2 values of 'group', such as '0', '1'"):
        make_population(toy, one_client(40), key=Key(0), group_column="other")


def test_an_identity_in_train_and_test_is_only_a_warning() -> None:
    made = make_population(table(20, identity=["ann"] * 20), one_client(20), key=Key(0))
    assert [(f.level, f.kind, f.count) for f in made.findings] == [("warning", "identity", 1)]


def pictures(copies: int) -> Table:
    """200 random pictures; the last `copies` rows are the first ones again."""
    x = torch.randint(0, 256, (200, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    x[200 - copies :] = x[:copies]
    return Table("pictures", {"x": x, "y": torch.zeros(200, dtype=torch.int64)}, ("one",), {"split": np.repeat(["train", "test"], 100)})


def test_equal_and_nearly_equal_pictures_are_counted() -> None:
    toy = pictures(5)
    x = toy.columns["x"]
    x[100] = (x[0].float() * 0.8 + 20).round().byte()  # darker and with less contrast
    x[101] = x[1].flip(0)  # colours exchanged: the same grey picture
    made = make_population(toy, one_client(200), key=Key(0), use_split_column=True)
    assert [(f.level, f.kind, f.count) for f in made.findings] == [("warning", "exact", 5), ("warning", "near", 2)]
    first, second = (finding.text for finding in made.findings)
    assert first.startswith("5 of 100 examples in the clients' own test parts are also in a train part, such as row 195 of ")
    assert first.endswith(", equal to row 0 of 'only'") and ", such as row 100 of 'only', like row 0 of 'only'" in second


def test_copies_in_the_central_test_set_are_counted() -> None:
    toy = pictures(0)
    central = Table("pictures", {"x": toy.columns["x"][:150], "y": toy.columns["y"][:150]})
    toy = Table("pictures", toy.columns, toy.classes, toy.meta, central_test=central)
    made = make_population(toy, one_client(200), key=Key(0), use_split_column=True)
    assert [(f.kind, f.count) for f in made.findings] == [("exact", 100)]  # rows 100-149 are own test rows, trained by nobody
    assert "the central test" in made.findings[0].text and made.findings[0].text.endswith("such as row 0, equal to row 0 of 'only'")


def test_near_copies_in_the_central_test_set_are_named() -> None:
    toy = pictures(0)
    x = toy.columns["x"][:100].clone()
    x[:50] = 255 - x[:50]  # negatives look like nothing in the table
    x[50:] = (x[50:].float() * 0.8 + 20).round().byte()
    train = toy.rows(np.arange(100))
    made = make_population(
        Table("pictures", train.columns, ("one",), central_test=Table("pictures", {"x": x, "y": train.columns["y"]}, ("one",))),
        one_client(100), key=Key(0), test_fraction=0, validation_fraction=0,
    )  # fmt: skip
    assert [(f.kind, f.count) for f in made.findings] == [("near", 50)]
    assert ", such as row 50, like row 50 of 'only'" in made.findings[0].text


def test_ten_thousand_clients_are_quick_and_share_one_table() -> None:
    toy = table(50_000)
    start = time.process_time()
    made = make_population(toy, iid(toy.labels, 10_000, Key(0)), key=Key(0), check=False)
    assert time.process_time() - start < 10
    assert len(made.tables()) == 1 and made.tables()[0] is toy.columns


def test_hold_out_takes_whole_groups() -> None:
    rest, held = hold_out(table(100, group=np.arange(100) // 5), 0.2, Key(0))
    assert len(rest) == 80 and len(held) == 20
    assert not set(rest.meta["group"].tolist()) & set(held.meta["group"].tolist())


def test_writers_become_clients_with_their_names() -> None:
    toy = table(9, writer=["ann", "bob", "cy"] * 3)
    made = make_population(toy, by_column(toy.column("writer"), "writer", key=Key(0)), key=Key(0))
    assert made.names == ("ann", "bob", "cy") and sizes(made) == [(1, 1, 1)] * 3
    with pytest.raises(ValueError, match=r"no column 'writter', only \['writer'\]. Did you mean 'writer'"):
        toy.column("writter")


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_fractions_are_checked(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"test_fraction must be at least 0 and below 1, found"):
        make_population(table(9), one_client(9), key=Key(0), test_fraction=fraction)
