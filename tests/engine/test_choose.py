"""Which backend and device a run uses, why, and when it moves into worker processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from toy import go, net, numbers

from coterie import methods
from coterie.engine import choose
from coterie.engine.choose import Choice, after_a_round, choose_backend, choose_device
from coterie.engine.settings import Settings
from coterie.method import Fixed
from coterie.methods.fedavg import FedAvg
from coterie.tensors import num_elements

PLAN = methods.fedavg(rounds=6)


def chosen(plan: object = PLAN, examples: int = 20, clients: int = 4, **settings: object) -> Choice:
    return choose_backend(Settings(**{"workers": 2, "devices": "cpu", **settings}), plan, net().params, [examples] * clients)  # type: ignore[arg-type]


def test_what_is_asked_for_is_used() -> None:
    assert chosen(backend="loop") == Choice("loop", 1, "asked for")
    assert chosen(backend="pool", workers=3) == Choice("pool", 3, "asked for")
    assert chosen(backend="pool", workers=9).workers == 4  # clients


def test_auto_starts_workers_at_once_for_work_that_surely_pays() -> None:
    needed = choose._WORTH_A_POOL / (num_elements(net().params) * 6 * 4)
    assert chosen(examples=int(needed * 1.1)).backend == "pool"
    small = chosen(examples=int(needed * 0.9))
    assert (small.backend, small.workers, small.could_use) == ("loop", 1, 2)


def test_auto_stays_in_one_process_where_workers_have_nothing_to_share() -> None:
    for one in (chosen(workers=1), chosen(methods.fedavg(rounds=6, cohort=Fixed(1)))):
        assert (one.backend, one.could_use, one.reason) == ("loop", 1, "one core, or one client at a time")
    assert chosen(threads=2).could_use == 1  # two threads give other last digits than one

    class Mine(FedAvg):
        pass

    Mine.__module__, Mine.__qualname__ = "__main__", "Mine"
    (phase,) = methods.fedavg(rounds=6)
    written_here = chosen((type(phase)("train", 6, Mine(training=phase.method.training)),), examples=10**9)
    assert written_here.backend == "loop" and "can't import Mine, which is defined in __main__" in written_here.reason


@pytest.mark.parametrize(
    ("seconds", "left", "backend"),
    [(3.6, 9, "pool"), (0.3, 9, "loop"), (100.0, 0, "loop"), (0.3, 500, "pool")],
)
def test_a_measured_round_decides(seconds: float, left: int, backend: str) -> None:
    """Two workers at 85 % save 41 % of what is left, and 10 seconds must come out."""
    before = Choice("loop", 1, "small", could_use=2)
    assert (0.41 * seconds * left > 10) == (backend == "pool")
    assert after_a_round(before, seconds, left).backend == backend
    for settled in (Choice("loop", 1, "asked for"), Choice("pool", 2, "asked for")):
        assert after_a_round(settled, seconds, left) == settled


def test_a_run_that_moves_into_workers_gives_the_same_numbers_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = go(methods.scaffold(rounds=4), tmp_path / "loop")
    monkeypatch.setattr(choose, "_START_SECONDS", 0.0)
    moved = go(methods.scaffold(rounds=4), tmp_path / "moved", backend="auto", workers=2)
    assert numbers(moved) == numbers(loop) and moved.summary["backend"] == "pool"
    record = json.loads((moved.path / "run.json").read_text())
    assert record["backend"] == "pool" and record["workers"] == 2
    assert record["backend_reason"].startswith("2 one-thread workers, after a round of") and "3 more" in record["backend_reason"]
    for log in ("clients.csv", "wire.jsonl"):
        assert (moved.path / log).read_bytes() == (loop.path / log).read_bytes()


def test_a_run_whose_workers_cannot_start_goes_on_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("Something of this run can't travel.")

    monkeypatch.setattr(choose, "_START_SECONDS", 0.0)
    monkeypatch.setattr("coterie.engine.run.Pool", refuse)
    finish = go(PLAN, tmp_path / "run", backend="auto", workers=2)
    assert numbers(finish) == numbers(go(PLAN, tmp_path / "loop"))
    assert "could not start: Something of this run" in json.loads((finish.path / "run.json").read_text())["backend_reason"]


def test_devices_that_are_not_there_are_refused() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    for name in ("gpu", "cuda:x", "meta"):
        with pytest.raises(ValueError, match=f"Unknown device '{name}'. Use cpu, cuda or cuda:0"):
            choose_device(name)
    with pytest.raises(ValueError, match=r"There is no device 'cuda:7' here, found \d+ CUDA devices. Use --devices"):
        choose_device("cuda:7")
