"""What holds on a CUDA device. Machines without one skip this file; the same recordings are tested on a CPU by a tape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import Case, case_of
from torch import Tensor

from coterie import methods
from coterie.data.examples import ClientParts, Population, View
from coterie.engine.recording import track as tracks
from coterie.engine.run import Finish, Silent, run
from coterie.engine.settings import Settings
from coterie.method import SGD
from coterie.methods.fedavg import Training
from coterie.metrics.classification import Classification
from coterie.models.nets import cnn2

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Notes(Silent):
    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


@pytest.fixture(autouse=True)
def recorded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracks, "PAYS_AFTER", 1)


def go(case: Case, name: str, out: Path, backend: str, where: str = "cuda", **settings: Any) -> tuple[Finish, Notes]:
    notes = Notes()
    return case.toy.run(case.plan(name), out, watcher=notes, devices=where, backend=backend, **settings), notes


def shared(finish: Finish) -> dict[str, Tensor]:
    groups = {**finish.state.shared, **{f"row {client}": {} for client in finish.clients}}
    return {f"{group}/{name}": value.cpu() for group, values in groups.items() for name, value in values.items()}


@pytest.mark.parametrize("name", methods.__all__)
@pytest.mark.parametrize("backend", ["graph", "stacked"])
def test_float64_equals_the_loop(name: str, backend: str, tmp_path: Path) -> None:
    case = case_of(name)
    (loop, _), (found, notes) = (go(case, name, tmp_path / b, b, precision="fp64") for b in ("loop", backend))
    expected, values = shared(loop), shared(found)
    assert expected.keys() == values.keys()
    for where, value in expected.items():
        torch.testing.assert_close(values[where], value, rtol=1e-9, atol=1e-9, msg=lambda text, where=where: f"{where}: {text}")
    if backend == "graph":
        assert not [note for note in notes.told if "step by step" in note]


def pictures(clients: int, train: int = 40, test: int = 10) -> Population:
    generator = torch.Generator().manual_seed(0)
    size = train + test
    x = torch.randn(clients * size, 1, 28, 28, generator=generator)
    columns = {"x": x, "y": torch.randint(0, 10, (clients * size,), generator=generator)}
    rows = torch.arange(clients * size).split(size)
    parts = [ClientParts(View(columns, own[:train]), View(columns, own[:0]), View(columns, own[train:])) for own in rows]
    return Population("pictures", tuple(map(str, range(clients))), parts, num_classes=10)


def train(out: Path, backend: str, *, rounds: int, clients: int = 4, steps_of_one: bool = False, **settings: Any) -> Finish:
    torch.manual_seed(0)
    training = Training(optim=SGD(lr=0.05, momentum=0.9), batch_size=40 if steps_of_one else 10)
    return run(
        methods.fedavg(rounds=rounds, training=training), pictures(clients), net=cnn2(1, 28, 10), metric=Classification(10), out=out,
        settings=Settings(backend=backend, devices="cuda", quiet=True, **settings),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["graph", "stacked"])
def test_true_float32_equals_the_loop_after_one_local_step(backend: str, tmp_path: Path) -> None:
    loop, found = (train(tmp_path / b, b, rounds=1, steps_of_one=True).state.shared["shared"] for b in ("loop", backend))
    for name, value in loop.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6 * float(value.abs().max()))


@pytest.mark.parametrize("backend", ["graph", "stacked"])
def test_the_loss_of_three_rounds_follows_the_loops(backend: str, tmp_path: Path) -> None:
    curves = [losses(train(tmp_path / b, b, rounds=3).path) for b in ("loop", backend)]
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)


def losses(path: Path) -> list[float]:
    lines: list[Mapping[str, Any]] = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [line["train_loss"] for line in lines if line.get("event") == "round"]


@pytest.mark.parametrize("backend", ["loop", "graph", "stacked"])
def test_memory_is_flat_over_rounds(backend: str, tmp_path: Path) -> None:
    used: dict[int, int] = {}

    class Look(Silent):
        def round(self, index: int, phase: str, seconds: float, value: float | None, bytes_total: int) -> None:
            torch.cuda.synchronize()
            used[index] = torch.cuda.memory_allocated()

    torch.manual_seed(0)
    run(
        methods.fable(rounds=50, training=Training(optim=SGD(lr=0.05), batch_size=10)), pictures(3), net=cnn2(1, 28, 10),
        metric=Classification(10), out=tmp_path / "run", watcher=Look(), settings=Settings(backend=backend, devices="cuda", quiet=True),  # type: ignore[arg-type]
    )  # fmt: skip
    assert used[50] == used[5]


@pytest.mark.parametrize("backend", ["graph", "stacked"])
def test_many_clients_need_no_more_than_few(backend: str, tmp_path: Path) -> None:
    """The data aside, which lie on the device for all of them."""
    peaks = []
    for clients in (10, 1000):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        train(tmp_path / str(clients), backend, rounds=2, clients=clients, eval_clients="10")
        data = clients * 50 * (28 * 28 * 4 + 8)
        peaks.append(torch.cuda.max_memory_allocated() - data)
    assert peaks[1] <= 1.05 * peaks[0]


@pytest.mark.parametrize("name", methods.__all__)
def test_two_workers_share_a_device(name: str, tmp_path: Path) -> None:
    case = case_of(name)
    (one, _), (two, notes) = (
        go(case, name, tmp_path / backend, backend, precision="fp64", where=where)
        for where, backend in (("cuda", "loop"), ("cuda:0,cuda:0", "auto"))
    )
    assert not [note for note in notes.told if "left out" in note]
    for where, value in shared(one).items():
        torch.testing.assert_close(shared(two)[where], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", methods.__all__)
def test_a_stopped_run_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    """Rows and state come back from disk to the device that they lay on."""

    class Stop(Notes):
        def round(self, index: int, phase: str, seconds: float, value: float | None, bytes_total: int) -> None:
            if index == 1:
                raise KeyboardInterrupt

    case = case_of(name)
    whole, _ = go(case, name, tmp_path / "whole", "loop", precision="fp64")
    plan, settings = case.plan(name), {"devices": "cuda", "backend": "loop", "precision": "fp64"}
    with pytest.raises(KeyboardInterrupt):
        case.toy.run(plan, tmp_path / "run", watcher=Stop(), **settings)
    again = case.toy.run(plan, tmp_path / "run", resume=True, **settings)
    for where, value in shared(whole).items():
        torch.testing.assert_close(shared(again)[where], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_lower_precisions_learn_as_the_full_one(precision: str, tmp_path: Path) -> None:
    full, low = (losses(train(tmp_path / p, "graph", rounds=3, precision=p).path) for p in ("fp32", precision))
    assert low == pytest.approx(full, rel=0.02)
