"""Counts and skew against arithmetic by hand, and the same population from the command line's words."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

from coterie.data import Assignment, Table, inspection, make_population
from coterie.randomness import Key
from coterie.recipes.population import build_population


def test_counts_and_total_variation_by_hand() -> None:
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 0, 1])
    table = Table("toy", {"x": torch.zeros(10, 1), "y": labels}, ("no", "yes"))
    clients = Assignment((np.array([0, 1, 2, 3]), np.array([4, 5, 6, 7, 8, 9])), ("a", "b"), "by hand")
    found = inspection(make_population(table, clients, key=Key(0), check=False))
    assert found.counts.tolist() == [[4, 0], [1, 5]]
    # everybody: 1/2, 1/2. a: |1 - 1/2| = 1/2; b: |1/6 - 1/2| = 1/3
    assert found.distances.tolist() == pytest.approx([1 / 2, 1 / 3])
    assert found.skew == pytest.approx(5 / 12)
    assert found.sizes.sum() == 10 and found.classes_per_client.tolist() == [1, 2]
    as_json = json.loads(json.dumps(found.as_json()))
    assert as_json["counts"] == [[4, 0], [1, 5]] and as_json["examples"] == {"total": 10, "min": 4, "median": 5.0, "max": 6}


def test_the_terminal_says_what_matters() -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(inspection(build_population(clients=30, beta=0.1)).rendered())
    text = out.getvalue()
    assert "digits: 30 clients, 1,797 examples, 10 classes" in text
    assert "dirichlet(beta=0.1) over 30 clients" in text
    assert "leak check   nothing found" in text and "and 10 more" in text


@pytest.mark.parametrize(("width", "shown"), [(60, 15), (80, 35), (200, 40)])
def test_a_client_is_one_line_in_a_terminal_of_any_width(width: int, shown: int) -> None:
    table = Table("toy", {"x": torch.zeros(400, 1), "y": torch.arange(400) % 200})
    found = inspection(make_population(table, Assignment((np.arange(400),), ("f0014_19",), ""), key=Key(0), check=False))
    out = io.StringIO()
    Console(file=out, width=width).print(found.rendered())
    assert f"classes: the first {shown} of 200" in out.getvalue()
    assert [line.count("█") for line in out.getvalue().splitlines() if line.startswith("f0014_19")] == [shown]
    assert max(map(len, out.getvalue().splitlines())) <= width


def test_skew_falls_as_beta_grows() -> None:
    skews = [inspection(build_population(partition=p, beta=b)).skew for p, b in (("dirichlet", 0.05), ("dirichlet", 1.0), ("iid", 1.0))]
    assert skews[0] > 0.5 > skews[1] > skews[2] and skews[2] < 0.02


def test_build_population_is_decided_by_its_seed() -> None:
    first, again, other = (build_population(seed=seed, limit=500) for seed in (1, 1, 2))
    same = [torch.equal(a.train.index, b.train.index) for a, b in zip(first, again, strict=True)]
    assert all(same) and sum(len(own.train) + len(own.validation) + len(own.test) for own in first) == 500
    assert not torch.equal(first.parts[0].train.index, other.parts[0].train.index)


def test_a_public_part_belongs_to_no_client() -> None:
    made = build_population(clients=4, partition="iid", public_fraction=0.25)
    assert len(made.public["public"]) == 449  # a quarter of 1,797
    assert inspection(made).num_public == 449 and inspection(made).sizes.sum() == 1348


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"partition": "dirichlt"}, r"Unknown partition 'dirichlt'. Did you mean 'dirichlet'\?"),
        ({"beta": 0.0}, r"beta must be above 0"),
        ({"clients": 0}, r"clients must be at least 1, found 0"),
        ({"clients": 1798}, r"1798 clients with at least 1 samples each need 1798 samples, found 1797"),
        ({"partition": "column"}, r"Data set 'digits' has no column 'writer'"),
        ({"limit": 0}, r"limit must be at least 1, found 0"),
        ({"public_fraction": 1.5}, r"between 0 and 1, found 1.5"),
    ],
)
def test_bad_words_are_one_clear_sentence(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_population(**given)  # type: ignore[arg-type]
