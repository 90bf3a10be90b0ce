"""What holds for every method, whoever wrote it: the shared checks of docs/architecture.md, on the toy population."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import ROTA, TRAINING, Toy, case_of, cohorts_of, norm_net
from play import Play, StopAfter, again, assert_same, record, replace_methods, tensors_of
from torch import Tensor

from coterie import methods
from coterie.engine import answers
from coterie.engine.graph import Graph
from coterie.engine.recording import track as tracks
from coterie.engine.run import Finish
from coterie.message import Message
from coterie.method import (
    ClientRun,
    Exchange,
    Hub,
    Phase,
    Site,
    Wrapper,
    as_run,
)
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg
from coterie.methods.scaffold import Scaffold
from coterie.tensors import Groups, clone_groups

every_method = pytest.mark.parametrize("name", methods.__all__)


# --- the same numbers whoever computes, in whatever order ------------------------------------------------------------------


@every_method
def test_the_order_of_clients_does_not_matter(name: str, play_of: Callable[[str], Play], tmp_path: Path) -> None:
    assert_same(play_of(name).finish, again(name, tmp_path / "reversed", order="reversed"))


def test_a_pool_of_1_or_2_workers_gives_the_loops_numbers(tmp_path: Path) -> None:
    """One plan of three methods that know each other's groups, so that only two pools must start."""
    plan = (
        Phase("scaffold", 2, Scaffold(FedAvg(training=TRAINING)), ROTA),
        Phase("ditto", 2, Ditto(training=TRAINING), ROTA),
        Phase("fedavg", 1, FedAvg(training=TRAINING), ROTA),
    )
    loop = Toy(net=norm_net).run(plan, tmp_path / "loop", precision="fp64")
    for workers in (1, 2):
        pool = Toy(net=norm_net).run(plan, tmp_path / str(workers), precision="fp64", backend="pool", workers=workers)
        assert_same(loop, pool)
        for log in ("clients.csv", "wire.jsonl"):
            assert (pool.path / log).read_bytes() == (loop.path / log).read_bytes()


@pytest.mark.parametrize("name", ["fable", "fedala", "feddbe", "fl_gap", "fedxds", "privfedtalk"])
def test_a_pool_carries_anchors_server_rows_and_public_content(name: str, play_of: Callable[[str], Play], tmp_path: Path) -> None:
    """What the plan above does not have: sweeps, subsets of groups, content that is published once, training at the server."""
    finish = again(name, tmp_path / "pool", backend="pool", workers=2)
    assert_same(play_of(name).finish, finish)
    for log in ("clients.csv", "wire.jsonl"):
        assert (finish.path / log).read_bytes() == (play_of(name).finish.path / log).read_bytes()


@every_method
def test_clients_side_by_side_give_the_loops_numbers(
    name: str, play_of: Callable[[str], Play], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded, for what can be."""
    monkeypatch.setattr(tracks, "PAYS_AFTER", 1)
    assert_nearly_same(play_of(name).finish, again(name, tmp_path / "stacked", backend="stacked", width=3))


@every_method
def test_recorded_steps_give_the_loops_numbers(
    name: str, play_of: Callable[[str], Play], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And every training of the package can be recorded: nothing falls back to the loop."""
    monkeypatch.setattr(tracks, "PAYS_AFTER", 1)
    told: list[str] = []
    monkeypatch.setattr(Graph, "_remark", lambda self, ask, reason: told.append(f"{ask}: {reason}"))
    assert_nearly_same(play_of(name).finish, again(name, tmp_path / "graph", backend="graph"))
    assert not told


def assert_nearly_same(expected: Finish, found: Finish) -> None:
    """In float64: everything that is remembered to 1e-9, and every result."""
    wanted, values = tensors_of(expected), tensors_of(found)
    assert wanted.keys() == values.keys()
    for where, value in wanted.items():
        torch.testing.assert_close(values[where], value, rtol=1e-9, atol=1e-9, msg=lambda text, where=where: f"{where}: {text}")
    assert flat(found.summary["results"]) == pytest.approx(flat(expected.summary["results"]), rel=1e-9, abs=1e-9, nan_ok=True)
    assert (found.path / "wire.jsonl").read_bytes() == (expected.path / "wire.jsonl").read_bytes()


def flat(results: Mapping[str, Any]) -> dict[str, float]:
    return {f"{m}/{n}/{k}": v for m, metrics in results.items() for n, values in metrics.items() for k, v in values.items() if v is not None}


# --- nobody else is changed ------------------------------------------------------------------------------------------------


@every_method
def test_an_absent_client_finds_its_row_as_it_left_it(name: str, play_of: Callable[[str], Play], tmp_path: Path) -> None:
    """A run stopped after each round: the rows of those who did not take part are the ones of the round before."""
    before: dict[int, bytes] = {}
    for rounds, cohort in enumerate(cohorts_of(play_of(name).plan, case_of(name).toy), 1):
        with pytest.raises(KeyboardInterrupt):
            again(name, tmp_path / "run", resume=rounds > 1, watcher=StopAfter(rounds))
        rows = read_rows(tmp_path / "run", rounds)
        assert set(rows) == set(before) | set(cohort) and not {k for k in before if rows[k] != before[k]} - set(cohort)
        before = rows


def read_rows(folder: Path, rounds: int) -> dict[int, bytes]:
    """Every client's row as the checkpoint of this round holds it."""
    manifest = json.loads((folder / "checkpoint" / f"manifest-{rounds}.json").read_text())["manifest"]
    clients = folder / "checkpoint" / "clients"
    return {int(k): (clients / f"{k}-{version}.safetensors").read_bytes() for k, (version, _) in manifest["clients"].items()}


@every_method
def test_stopped_and_resumed_equals_never_stopped(name: str, play_of: Callable[[str], Play], tmp_path: Path) -> None:
    play = play_of(name)
    for rounds in (1, 2)[: play.finish.summary["rounds"] - 1]:
        with pytest.raises(KeyboardInterrupt):
            again(name, tmp_path / "run", resume=rounds > 1, watcher=StopAfter(rounds))
    resumed = again(name, tmp_path / "run", resume=True)
    assert_same(play.finish, resumed)
    for log in ("clients.csv", "wire.jsonl"):
        assert (resumed.path / log).read_bytes() == (play.finish.path / log).read_bytes()


@dataclass(frozen=True)
class Scribbling(Wrapper):
    """Writes into everything that it received, once it is done with it."""

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from as_run(self.inner.client(mine, down, site))
        row, up = clone_groups(row), replace(up, groups=clone_groups(up.groups))
        for groups in (mine, down.groups):
            for tensors in groups.values():
                for value in tensors.values():
                    value.fill_(1)
        return row, up


@every_method
def test_a_client_that_writes_into_what_it_received_changes_nobody_else(
    name: str, play_of: Callable[[str], Play], tmp_path: Path
) -> None:
    play = play_of(name)
    scribbled = again(name, tmp_path / "scribbled", replace_methods(play.plan, Scribbling))
    assert_same(play.finish, scribbled, models=("global", "personal"))


# --- what crosses ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Travelling(Wrapper):
    """Everything crosses as bytes."""

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        run, answer = as_run(self.inner.client(mine, through_bytes(down), site)), None
        while True:
            try:
                ask = run.send(answer)
            except StopIteration as stop:
                row, up = stop.value
                return row, through_bytes(up)
            if isinstance(ask, Exchange):
                answer = through_bytes((yield replace(ask, message=through_bytes(ask.message))))
            else:
                answer = yield ask


def through_bytes(message: Message) -> Message:
    back = Message.from_bytes(message.to_bytes())
    assert [(g, list(t)) for g, t in back.groups.items()] == [(g, list(t)) for g, t in message.groups.items()]
    assert (back.weight is None) == (message.weight is None) and back.bytes_by_slot() == message.bytes_by_slot()
    return back


@every_method
def test_messages_as_bytes_give_the_same_run(name: str, play_of: Callable[[str], Play], tmp_path: Path) -> None:
    play = play_of(name)
    assert_same(play.finish, again(name, tmp_path / "travelled", replace_methods(play.plan, Travelling)))


@dataclass(frozen=True)
class Watching(Wrapper):
    """Compares what every client sends with what its method declares."""

    seen: list[int] = dataclasses.field(default_factory=list)

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from as_run(self.inner.client(mine, down, site))
        declared = {slot: s for slot, s in self.inner.slots(Hub(site.round, site.net, site.key)).items() if s.spec and "/" not in slot}
        whole = {slot for slot, s in declared.items() if not s.subset}
        assert whole <= set(up.groups) <= set(declared), f"sent {sorted(up.groups)}, declared {sorted(declared)}"
        for slot, tensors in up.groups.items():
            sent = {n: v.dtype for n, v in tensors.items()}
            spec = {n: dtype for n, (_, dtype) in declared[slot].spec.items() if n in sent or not declared[slot].subset}
            assert sent == spec, slot
            for n, value in tensors.items():
                shape = declared[slot].spec[n][0]
                assert len(shape) == value.dim() and all(a in (-1, b) for a, b in zip(shape, value.shape, strict=True)), (slot, n)
        self.seen.append(site.client)
        return row, up


@every_method
def test_sent_slots_are_the_declared_ones(name: str, tmp_path: Path) -> None:
    seen: list[int] = []
    plan = case_of(name).plan(name)
    again(name, tmp_path / "watched", replace_methods(plan, lambda method: Watching(method, seen)))
    assert sorted(seen) == sorted(client for cohort in cohorts_of(plan, case_of(name).toy) for client in cohort)


@every_method
def test_nothing_secret_is_in_any_message(name: str, play_of: Callable[[str], Play]) -> None:
    """No number of a secret group, as any round left it, is in any Message; nor is one of the data."""
    case, play = case_of(name), play_of(name)
    crossed = {number for _, message in play.crossed for number in numbers_in(message.groups)}
    for row in play.rows:
        filled = {group for group, tensors in row.items() if tensors and not group.startswith("memory/")}
        unknown = sorted(filled - {*case.secret, *case.told})
        assert not unknown, f"CASES['{name}'] must say of {unknown}: secret or told?"
        secret = {group: tensors for group, tensors in row.items() if group in case.secret or group.startswith("memory/")}
        assert not crossed & numbers_in(secret)
    for parts in case.toy.population().parts if "data" not in case.told else ():
        columns = {n: v.double() for n, v in parts.train.all_rows().items() if v.is_floating_point()}
        assert not crossed & numbers_in({"data": columns})


def numbers_in(groups: Mapping[str, Mapping[str, Tensor]]) -> set[float]:
    """All numbers but the few that anything may hold (0, 1, counts)."""
    values = [v.double().flatten() for t in groups.values() for v in t.values() if v.is_floating_point()]
    return {number for number in torch.cat(values).tolist() if number != round(number)} if values else set()


# --- every batch-norm statistic is shared, private or frozen, by choice ------------------------------------------------------------


@pytest.mark.parametrize("choice", ["average", "local", "server"])
@pytest.mark.parametrize("name", [n for n in methods.__all__ if "buffers" in inspect.signature(getattr(methods, n)).parameters])
def test_statistics_are_where_the_choice_says(name: str, choice: str, tmp_path: Path) -> None:
    case = case_of(name)
    play = record(replace(case, knobs={**case.knobs, "buffers": choice}), name, tmp_path / "run")
    first = case.toy.net().buffers
    sent = {way for way, message in play.crossed if "buffers" in message.groups}
    rows = [row for row in play.finish.clients.values() if "buffers" in row]
    assert sent == {"average": {"up", "down"}, "local": set(), "server": {"down"}}[choice]
    assert len(rows) == (len(play.finish.clients) if choice == "local" else 0)
    where = rows if choice == "local" else [{"buffers": play.finish.state.shared["buffers"]}]
    moved = [not torch.equal(row["buffers"][n], v.double()) for row in where for n, v in first.items()]
    assert all(moved) if choice != "server" else not any(moved)
    if choice == "server":
        for ask, net, round, key in play.trained:
            after = answers.train(ask, net, round, key).buffers["buffers"]
            assert all(torch.equal(after[n], v) for n, v in ask.buffers["buffers"].items()), ask.name
