"""What holds for every method, whoever wrote it: the shared checks of docs/architecture.md, on the toy population."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import ROTA, TRAINING, Case, Toy, case_of, cohorts_of, norm_net
from torch import Tensor

from coterie import methods
from coterie.engine import answers
from coterie.engine import run as engine_run
from coterie.engine.run import Finish, Silent
from coterie.engine.wire import Ledger
from coterie.message import Message
from coterie.method import (
    SGD,
    Adam,
    ClientRun,
    Cohort,
    Exchange,
    Hub,
    Loss,
    Net,
    Phase,
    Plan,
    Round,
    Site,
    Train,
    Wrapper,
    as_run,
)
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg
from coterie.methods.scaffold import Scaffold
from coterie.randomness import Key, draw
from coterie.tensors import Groups, clone_groups

every_method = pytest.mark.parametrize("name", methods.__all__)


@dataclass(frozen=True)
class Play:
    """One run of a method in float64: what it left behind, everything that crossed, everything that was trained."""

    finish: Finish
    plan: Plan
    crossed: list[tuple[str, Message]]  # direction, Message (exchanges too)
    trained: list[tuple[Train, Net, Round, Key]]
    rows: list[Groups]  # every row that any round left with a client


@pytest.fixture(scope="module")
def play_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Play]:
    """Every method is played once for all checks that only look."""
    known: dict[str, Play] = {}

    def play(name: str) -> Play:
        if name not in known:
            known[name] = record(case_of(name), name, tmp_path_factory.mktemp(name) / "run")
        return known[name]

    return play


def record(case: Case, name: str, out: Path) -> Play:
    crossed: list[tuple[str, Message]] = []
    trained: list[tuple[Train, Net, Round, Key]] = []
    rows: list[Groups] = []
    count, train, commit = Ledger.count, answers.train, engine_run.commit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "count", lambda self, way, up, *a, **k: (crossed.append((way, up)), count(self, way, up, *a, **k))[1])
        patch.setattr(answers, "train", lambda *asked: (trained.append(asked), train(*asked))[1])
        patch.setattr(engine_run, "commit", lambda store, state, new, v: (rows.extend(new.values()), commit(store, state, new, v))[1])
        plan = case.plan(name)
        finish = case.toy.run(plan, out, precision="fp64")
    return Play(finish, plan, crossed, trained, rows)


def again(name: str, out: Path, plan: Plan | None = None, **settings: Any) -> Finish:
    case = case_of(name)
    return case.toy.run(plan or case.plan(name), out, precision="fp64", **settings)


def tensors_of(finish: Finish) -> dict[str, Tensor]:
    """The server's state and everything that it and the clients remember, by one name each."""
    groups = {f"server/{group}": values for group, values in finish.state.shared.items()}
    for table, rows in (("row", finish.clients), ("server row", finish.state.rows)):
        groups |= {f"{table} {client}/{group}": values for client in rows for group, values in rows[client].items()}
    return {f"{group}/{name}": value for group, values in groups.items() for name, value in values.items()}


def assert_same(one: Finish, two: Finish, *, models: tuple[str, ...] = ("global", "personal", "local")) -> None:
    """Bit for bit: state, rows and results."""
    first, second = tensors_of(one), tensors_of(two)
    assert first.keys() == second.keys()
    differ = [name for name, value in first.items() if not torch.equal(value, second[name])]
    assert not differ, f"{len(differ)} of {len(first)} tensors differ, the first is {differ[0]}"
    results = [{m: r for m, r in f.summary["results"].items() if m in models} for f in (one, two)]
    assert results[0] == results[1]


def replace_methods(plan: Plan, wrap: Callable[[Any], Any]) -> Plan:
    return tuple(replace(phase, method=wrap(phase.method)) for phase in plan)


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


@every_method
def test_two_clients_at_once_equal_one_at_a_time(name: str, play_of: Callable[[str], Play]) -> None:
    """Every Train ask's gradient under vmap(grad): what the stacked and captured backends need."""
    asked: dict[tuple[str, str], dict[object, tuple[Train, Net, Round, Key]]] = {}
    for ask, net, round, key in play_of(name).trained:
        who = key.path[3] if key.path[0] == "round" else ("server", round.index)
        asked.setdefault((round.phase, str(key.path[-2])), {}).setdefault(who, (ask, net, round, key))
    for where, by_client in asked.items():
        pair = list(by_client.values())[:2]
        assert len(pair) == 2, f"only one client asks {where}; give the case two rounds or clients"
        (first, net, _, _), (second, _, _, _) = pair
        inputs = [given(ask, key, rows_of(first, second)) for ask, _, _, key in pair]
        step = step_of(first, net)
        alone = [step(*each) for each in inputs]
        stacked = torch.func.vmap(step)(*(stack(parts) for parts in zip(*inputs, strict=True)))
        for i, expected in enumerate(alone):
            for path, value in leaves(expected):
                found = dict(leaves(stacked))[path][i]
                assert (found - value).abs().max() <= 1e-9, f"{where}: {path} of client {i}"


def rows_of(first: Train, second: Train) -> dict[str, int]:
    """As many rows of each stream as both clients have."""
    sizes = ((name, (answers.as_examples(ask.streams[name]) for ask in (first, second))) for name in first.streams)
    return {name: min(first.batch_size, *map(len, streams)) for name, streams in sizes}


def given(ask: Train, key: Key, rows: Mapping[str, int]) -> tuple[Any, ...]:
    """What differs from client to client in one step."""
    batch = {name: answers.with_mask(answers.as_examples(s).rows(torch.arange(rows[name]))) for name, s in ask.streams.items()}
    device, dtype = answers.place_of(ask.params)
    size = next(iter(rows.values()), ask.batch_size)
    batch["noise"] = {n: draw(key.fold("noise", n), 0, spec, size, device, dtype) for n, spec in ask.noise.items()}
    return ask.params, ask.buffers, ask.refs, batch, ask.frozen or {}


def step_of(ask: Train, net: Net) -> Callable[..., Any]:
    """One step as the engine documents it, up to the optimiser: gradient(loss + terms) -> adjusts, and project."""
    turns = [(ask.loss, set(ask.params))] if ask.loss else [(turn.loss, set(turn.moves)) for turn in ask.turns]

    def step(params: Groups, buffers: Groups, refs: Groups, batch: Any, frozen: dict[str, Tensor]) -> Any:
        own = net.freezing(frozen) if frozen else net
        results = []
        for loss_fn, moves in turns:

            def compute(at: Groups, buffers: Groups, loss_fn: Any = loss_fn, moves: set[str] = moves) -> tuple[Groups, Loss]:
                def objective(moving: Groups) -> tuple[Tensor, Any]:
                    point = {**at, **moving}
                    loss = loss_fn(point, buffers, refs, batch, own)
                    total = loss.value + sum(term(point, buffers, refs, batch, own) for term in ask.terms)
                    return total, (total, loss.buffers, loss.metrics)

                moving = {group: at[group] for group in at if group in moves}
                grads, (total, after, metrics) = torch.func.grad(objective, has_aux=True)(moving)
                return grads, Loss(total, after, metrics)

            grads, loss = ask.gradient(compute, params, buffers, refs) if ask.gradient else compute(params, buffers)
            for adjust in ask.adjusts:
                grads = adjust(grads, refs)
            results.append((grads, loss.value, loss.buffers, loss.metrics))
        return results, ask.project(params, refs) if ask.project else {}

    return step


def stack(parts: tuple[Any, ...]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.stack(parts)
    assert all(part.keys() == first.keys() for part in parts), "two clients' asks hold different names"
    return {name: stack(tuple(part[name] for part in parts)) for name in first}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from leaves(item, f"{path}/{name}")
    else:
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}/{i}")


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


class StopAfter(Silent):
    """Presses Ctrl-C when so many rounds are saved."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def round(self, index: int, *rest: object) -> None:
        if index == self.rounds:
            raise KeyboardInterrupt


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
    assert seen == [client for cohort in cohorts_of(plan, case_of(name).toy) for client in cohort]


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


# --- every hyperparameter counts -----------------------------------------------------------------------------------------------


def changes_of() -> list[tuple[str, str]]:
    """(method, field) over the plan functions' parameters, taken apart where they are dataclasses."""
    found = []
    for name in methods.__all__:
        try:
            case = case_of(name)
        except AssertionError:
            continue  # test_every_method_states_its_case says it
        found += [(name, where) for where in fields_of(case.arguments(name), signature_of(name))]
    return found


def signature_of(name: str) -> dict[str, Any]:
    parameters = inspect.signature(getattr(methods, name)).parameters.values()
    return {p.name: None if p.default is p.empty else p.default for p in parameters}


def fields_of(arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name, default in defaults.items():
        value = arguments.get(name, default)
        if dataclasses.is_dataclass(value) and not isinstance(value, SGD | Adam | Cohort | type(ROTA)):
            inner = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            found += [f"{name}.{where}" for where in fields_of(inner, inner)]
        else:
            found.append(name)
    return found


def with_changes(value: Any, changes: Mapping[str, object]) -> Any:
    """Arguments, or a dataclass among them, with fields like "training.epochs" replaced, all at once."""
    new: dict[str, Any] = {where: other for where, other in changes.items() if "." not in where}
    for name in {where.partition(".")[0] for where in changes if "." in where}:
        inner = {where.removeprefix(f"{name}."): other for where, other in changes.items() if where.startswith(f"{name}.")}
        new[name] = with_changes(value[name] if isinstance(value, dict) else getattr(value, name), inner)
    return {**value, **new} if isinstance(value, dict) else replace(value, **new)


@every_method
def test_every_method_states_its_case(name: str) -> None:
    case = case_of(name)
    stated, fields = set(case.changes), fields_of(case.arguments(name), signature_of(name))
    missing = [f for f in fields if not any(f == s or f.startswith(f"{s}.") for s in stated)]
    unknown = [s for s in stated if not any(f == s or f.startswith(f"{s}.") for f in fields)]
    assert not missing, f"CASES['{name}'].changes says nothing of {missing}: another value, and a setting in which it matters"
    assert not unknown, f"CASES['{name}'].changes speaks of {unknown}, which {name} does not have"


@pytest.mark.parametrize(("name", "field"), changes_of())
def test_every_field_changes_the_result(name: str, field: str, tmp_path: Path) -> None:
    case = case_of(name)
    change = next((c for s, c in case.changes.items() if field == s or field.startswith(f"{s}.")), None)
    if change is None:
        pytest.fail(f"CASES['{name}'].changes says nothing of '{field}'")
    if isinstance(change, str):
        return  # the case states why it can't matter
    other, setting = change
    arguments, results = {**signature_of(name), **case.arguments(name)}, []
    for i, changes in enumerate((setting, {**setting, field: other})):
        plan = getattr(methods, name)(**with_changes(arguments, changes))
        finish = case.toy.run(plan, tmp_path / str(i), precision="fp64", eval_every=100, checkpoint_every=100)
        results.append((tensors_of(finish), finish.summary["results"]))
    (one, first), (two, second) = results
    assert one.keys() != two.keys() or first != second or any(not torch.equal(v, two[n]) for n, v in one.items())


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
