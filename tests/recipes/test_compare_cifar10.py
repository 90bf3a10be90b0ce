"""A rate is chosen on validation parts of a seed of its own, then the other seeds run with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coterie.data import pack_parquet_as_npz
from coterie.engine.settings import Settings
from coterie.recipes.compare_cifar10 import METHODS, compare_cifar10
from coterie.recipes.dp_cifar10 import dp_cifar10
from coterie.recipes.session import Session

pa = pytest.importorskip("pyarrow", reason="writing a parquet folder needs coterie[vision]")
pq = pytest.importorskip("pyarrow.parquet", reason="writing a parquet folder needs coterie[vision]")


def jpeg(label: int, rng: np.random.Generator) -> bytes:
    """A noisy 32x32 picture whose colour depends on its class."""
    import io

    colour = 40 + 20 * np.array([label % 4, label // 2, 9 - label])
    pixels = np.clip(colour + rng.normal(0, 40, (32, 32, 3)), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=75)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-10's layout with a few drawn pictures, as one .npz."""
    rng, base = np.random.default_rng(0), tmp_path_factory.mktemp("data")
    (base / "parquet").mkdir()
    for split, count in (("train", 150), ("test", 50)):
        labels = [int(label) for label in rng.permutation(np.arange(count) % 10)]
        pictures = [{"bytes": jpeg(label, rng), "path": None} for label in labels]
        pq.write_table(pa.table({"img": pictures, "label": labels}), base / "parquet" / f"{split}.parquet")
    (base / "cifar10").mkdir()
    pack_parquet_as_npz(base / "parquet", base / "cifar10" / "cifar10.npz")
    return base


def compared(out: Path, folder: Path, **values: Any) -> Path:
    values = {"rounds": 1, "clients": 3, "beta": 1.0, "anchors": 8, "data_dir": str(folder), **values}
    session = Session.open("compare_cifar10", values, Settings(backend="loop", quiet=True), out)
    session.perform(compare_cifar10)
    return out


def rate_of(run: Path) -> float:
    rate: float = json.loads((run / "run.json").read_text())["methods"][-1]["knobs"]["training"]["optim"]["lr"]
    return rate


def test_the_rate_is_chosen_by_validation_on_the_selection_seed(folder: Path, tmp_path: Path) -> None:
    """With 1e-9 nothing is learned, so the other rate wins; seeds that report choose nothing."""
    out = compared(tmp_path / "run", folder, methods=("fedavg", "fable_linear"), lrs=(1e-9, 0.03), seeds=(0, 1), rounds=3)
    assert json.loads((out / "summary.json").read_text())["runs"] == [f"{m}/seed-{s}" for m in ("fedavg", "fable_linear") for s in (0, 1)]
    for method in ("fedavg", "fable_linear"):
        score = {}
        for rate in (1e-9, 0.03):
            trial = out / "select" / method / f"lr-{rate:g}"
            assert rate_of(trial) == rate and json.loads((trial / "run.json").read_text())["seed"] == 100
            lines = [json.loads(line) for line in (trial / "metrics.jsonl").read_text().splitlines()]
            score[rate] = [x["accuracy"] for x in lines if (x.get("model"), x.get("split")) == ("personal", "validation")][-1]
        best = max(score, key=lambda rate: score[rate])
        for seed in (0, 1):
            record = json.loads((out / method / f"seed-{seed}" / "run.json").read_text())
            assert rate_of(out / method / f"seed-{seed}") == best and record["seed"] == seed
    starts = {json.dumps(json.loads((out / "fedavg" / f"seed-{s}" / "run.json").read_text())["population"]["clients"]) for s in (0, 1)}
    assert len(starts) == 2  # every seed has clients of its own


def test_all_methods_of_the_table_run(folder: Path, tmp_path: Path) -> None:
    out = compared(tmp_path / "run", folder, lrs=(0.01,), seeds=(0,))
    assert json.loads((out / "summary.json").read_text())["runs"] == [f"{method}/seed-0" for method in METHODS]
    assert not (out / "select").exists()  # one rate needs no choice


def test_accuracy_against_epsilon_runs_on_the_same_pictures(tmp_path: Path, folder: Path) -> None:
    values = {"epsilons": ("4", "inf"), "seeds": (0,), "rounds": 1, "clients": 8, "rate": 0.5, "data_dir": str(folder)}
    session = Session.open("dp_cifar10", values, Settings(backend="loop", quiet=True), tmp_path / "run")
    session.perform(dp_cifar10)
    told = json.loads((tmp_path / "run" / "accuracy_against_epsilon.json").read_text())
    assert [point["epsilon"] for point in told["points"]] == [4.0, None] and "CIFAR-10, 8 clients (IID)" in told["title"]
