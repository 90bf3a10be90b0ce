"""Articles from the file to a table of methods: equal clients for all, texts that are cut are told, variants keep their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.engine.settings import Settings
from coterie.recipes.compare_text import METHODS, compare_text
from coterie.recipes.session import Session


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AG News' original layout: every class has words of its own."""
    rng, base = np.random.default_rng(0), tmp_path_factory.mktemp("data")
    (base / "ag_news").mkdir()
    for split, count in (("train", 180), ("test", 60)):
        lines = [f'"{1 + i % 4}","title {rng.integers(9)}","{" ".join(f"c{i % 4}w{w}" for w in rng.integers(5, size=9))}"' for i in range(count)]
        (base / "ag_news" / f"{split}.csv").write_text("\n".join(lines) + "\n")
    return base


def compared(out: Path, folder: Path, **values: Any) -> Path:
    values = {
        "rounds": 1, "clients": 4, "beta": 1.0, "anchors": 5, "lrs": (0.1,), "seeds": (0,), "vocab": 60, "length": 8, "limit": 200,
        "data_dir": str(folder), **values,
    }  # fmt: skip
    session = Session.open("compare_text", values, Settings(backend="loop", quiet=True, eval_every=100), out)
    session.perform(compare_text)
    return out


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_every_method_of_the_table_runs(folder: Path, tmp_path: Path) -> None:
    out = compared(tmp_path / "run", folder)
    assert {"local", "fedavg", "fedper", "fable", "fable_linear", "scaffold", "moon"} <= set(METHODS)
    assert read(out / "summary.json")["runs"] == [f"{method}/seed-0" for method in METHODS]
    records = [read(out / method / "seed-0" / "run.json") for method in METHODS]
    clients = {json.dumps(record["population"]["clients"]) for record in records}
    assert len(clients) == 1 and not (out / "select").exists()
    kinds = [finding["kind"] for finding in records[0]["leak_check"]]
    assert kinds.count("truncated") == 2  # all texts have 11 words, the window 8


def test_articles_are_learned_and_the_rate_is_chosen(folder: Path, tmp_path: Path) -> None:
    """Classes without a common word: chance is 0.25."""
    values = {"methods": ("fedper_normalised",), "rounds": 12, "lrs": (1e-9, 0.3), "partition": "iid", "vocabulary": "public"}
    out = compared(tmp_path / "run", folder, **values, batch_size=8, momentum=0.0)
    record = read(out / "fedper_normalised" / "seed-0" / "run.json")
    knobs = record["methods"][0]["knobs"]
    assert knobs["normalise"] is True and knobs["training"]["optim"]["lr"] == 0.3
    assert {"vocabulary", "truncated"} <= {finding["kind"] for finding in record["leak_check"]}
    assert read(out / "fedper_normalised" / "seed-0" / "summary.json")["results"]["personal"]["accuracy"]["last"] > 0.6


def test_an_unknown_method_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Unknown method 'fable_lin'\. Did you mean 'fable_linear'\?"):
        compared(tmp_path / "run", folder, methods=("fable_lin",))
