"""Which backend and device a run uses, why, and when it moves into worker processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import go, net, numbers

from coterie import methods
from coterie.engine import choose
from coterie.engine.choose import Choice, after_a_round, choose_backend
from coterie.engine.devices import choose_devices, main_device
from coterie.engine.settings import Settings
from coterie.engine.switch import Switch
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
    monkeypatch.setattr("coterie.engine.switch.Pool", refuse)
    finish = go(PLAN, tmp_path / "run", backend="auto", workers=2)
    assert numbers(finish) == numbers(go(PLAN, tmp_path / "loop"))
    assert "could not start: Something of this run" in json.loads((finish.path / "run.json").read_text())["backend_reason"]


def test_devices_that_are_not_there_are_refused() -> None:
    assert choose_devices("cpu") == [torch.device("cpu")] and choose_devices("cpu, cpu") == [torch.device("cpu")] * 2
    for name in ("gpu", "cuda:x", "meta", "cpu,gpu", ""):
        with pytest.raises(ValueError, match=f"Unknown device '{name.split(',')[-1]}'. Use cpu, cuda or cuda:0"):
            choose_devices(name)
    with pytest.raises(ValueError, match=r"There is no device 'cuda:7' here, found \d+ CUDA devices. Use --devices"):
        choose_devices("cpu,cuda:7")


def test_several_devices_are_a_worker_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(devices="cpu,cpu,cpu", workers=None) == Choice("pool", 3, "a worker for each of the devices cpu,cpu,cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert main_device("cuda", "graph") == torch.device("cuda")
    assert main_device("cuda:0,cuda:0", "auto") == main_device("cuda", "pool") == torch.device("cpu")
    with pytest.raises(ValueError, match="Several devices need the backend pool, found stacked"):
        chosen(devices="cpu,cpu", backend="stacked")
    with pytest.raises(ValueError, match="Every device has one worker, found 3 workers for 2 devices"):
        chosen(devices="cpu,cpu", workers=3)


def test_two_devices_give_the_numbers_of_one(tmp_path: Path) -> None:
    one, two = (go(methods.scaffold(rounds=2), tmp_path / name, backend="auto", devices=name) for name in ("cpu", "cpu,cpu"))
    assert numbers(one) == numbers(two) and two.summary["backend"] == "pool"
    assert json.loads((two.path / "run.json").read_text())["workers"] == 2


# --- on an accelerator: a rule for short runs, a measurement for the others ------------------------------------------------


def on_an_accelerator(cohort: int, parameters: int, rounds: int, width: int | None = None) -> Choice:
    return choose._on_an_accelerator(Settings(width=width), cohort, parameters, rounds)


def test_short_runs_on_an_accelerator_follow_the_size_of_the_net() -> None:
    assert on_an_accelerator(20, 11_000_000, 5).backend == "graph"
    small = on_an_accelerator(20, 80_000, 5)
    assert (small.backend, small.width) == ("stacked", 20)
    assert on_an_accelerator(5, 80_000, 5).width == 5
    assert on_an_accelerator(1, 80_000, 500) == Choice("graph", 1, "recorded steps, one client after another, for 80,000 parameters")


def test_longer_ones_try_what_may_be_fastest() -> None:
    assert on_an_accelerator(30, 80_000, 100).trials == (("graph", 1), ("stacked", 10), ("stacked", 20))
    assert on_an_accelerator(4, 80_000, 100).trials == (("graph", 1), ("stacked", 4))
    assert on_an_accelerator(30, 80_000, 100, width=7).trials == (("graph", 1), ("stacked", 7))


def test_the_fastest_of_those_tried_goes_on_and_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds each; the first of each is warming up and does not count."""
    loop = go(methods.scaffold(rounds=8), tmp_path / "loop", precision="fp64")
    trials = (("graph", 1), ("stacked", 2), ("stacked", 3))
    monkeypatch.setattr("coterie.engine.run.choose_backend", lambda *_: Choice("graph", 1, "the first", trials=trials))
    seconds = iter([9.0, 0.4, 0.1, 0.2, 0.1, 0.8, 5.0, 5.0])
    used: list[tuple[str, int]] = []
    after = Switch.after

    def told(self: Switch, **given: Any) -> str | None:
        used.append((self.backend.name, self.choice.width))
        return after(self, **{**given, "training": next(seconds)})

    monkeypatch.setattr(Switch, "after", told)
    finish = go(methods.scaffold(rounds=8), tmp_path / "run", backend="auto", precision="fp64")
    tried = [trial for trial in trials for _ in range(2)]
    assert used == [*tried, ("stacked", 2), ("stacked", 2)]
    record = json.loads((finish.path / "run.json").read_text())
    assert (record["backend"], record["clients_at_once"]) == ("stacked", 2)
    assert record["backend_reason"].endswith("graph 100 ms, stacked (2 at once) 50 ms, stacked (3 at once) 200 ms")
    for name, value in loop.state.shared["shared"].items():
        torch.testing.assert_close(finish.state.shared["shared"][name], value, rtol=1e-9, atol=1e-9)
