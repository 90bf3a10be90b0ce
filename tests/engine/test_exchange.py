"""A question to the server in mid-round, and what the server itself may ask: numbers, bytes, guards and faults by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import Toy
from toy import population

from coterie.engine.run import Finish, RunError, run
from coterie.engine.settings import Settings
from coterie.message import Message, Slot
from coterie.method import (
    SGD,
    Batch,
    ClientRun,
    Everyone,
    Exchange,
    Hub,
    Loss,
    Method,
    Named,
    Net,
    Nobody,
    Phase,
    ServerRun,
    Site,
    Sweep,
    Train,
)
from coterie.privacy.guards import Guards
from coterie.states import ClientId, ServerState
from coterie.tensors import Groups, Tensors, add, clone

F64 = torch.float64
SIZE = 6  # features of the toy population


def sums(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    return {"z": batch["local"]["x"].sum(0)}


@dataclass(frozen=True, kw_only=True)
class Poll(Method):
    """Every client tells the sum of its features, hears the mean of all, and sends twice what it heard.

    theta <- theta + mean_k(2 answer_k); "polls" counts the questions, which `answer` remembers.
    """

    change: Callable[[Message, Site], Exchange] | None = None  # what a client asks instead
    silent: tuple[int, ...] = ()  # whom the server does not answer
    scribble: bool = False
    twice: bool = False

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        spec = {"z": ((SIZE,), F64)}
        return {"theta": Slot(spec, kind="change"), "poll/sums": Slot(spec), "again/sums": Slot(spec)}

    def server_state(self, hub: Hub) -> Groups:
        return {"theta": {"z": torch.zeros(SIZE, dtype=F64)}, "polls": {"count": torch.zeros((), dtype=F64)}}

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        told = yield from Sweep(fn=sums, params={}, streams={"local": site.data.train}, gather="sum")
        message = Message({"sums": told})
        heard = yield from (self.change(message, site) if self.change else Exchange("poll", message))
        answer = clone(heard["answer"])
        if self.scribble:
            heard["answer"]["z"].fill_(1e3)
        if self.twice:
            answer = (yield from Exchange("again", Message({"sums": answer})))["answer"]
        return {"heard": answer}, Message({"theta": {"z": 2 * answer["z"]}})

    def answer(
        self, state: ServerState, name: str, messages: Mapping[ClientId, Message], hub: Hub
    ) -> tuple[ServerState, Mapping[ClientId, Message]]:
        mean = Message({"answer": {"z": torch.stack([m["sums"]["z"] for m in messages.values()]).mean(0)}})
        counted = add(state.shared["polls"], {"count": torch.tensor(float(len(messages)), dtype=F64)})
        return state.with_shared(polls=counted), {client: mean for client in messages if client not in self.silent}

    def absorb(
        self, state: ServerState, mean: Message | None, each: Mapping[ClientId, Message], hub: Hub
    ) -> ServerState:
        return state if mean is None else state.with_shared(theta=add(state.shared["theta"], mean["theta"]))

    def personal(self, mine: Groups, down: Message, site: Site) -> None:
        return None


def go(method: Method, out: Path, *, guards: Guards = Guards(), rounds: int = 1, cohort: object = Everyone(), **more: object) -> Finish:
    toy = Toy()
    return run(
        (Phase("talk", rounds, method, cohort),), toy.population(), net=toy.net(), metric=toy.metric, out=out, guards=guards,  # type: ignore[arg-type]
        settings=Settings(**{"backend": "loop", "quiet": True, "precision": "fp64", **more}),  # type: ignore[arg-type]
    )  # fmt: skip


def by_hand() -> np.ndarray:
    return np.stack([parts.train.all_rows()["x"].double().numpy().sum(0) for parts in population().parts])


def theta(finish: Finish) -> np.ndarray:
    return finish.state.shared["theta"]["z"].numpy()


def lines(finish: Finish, log: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (finish.path / log).read_text().splitlines()]


def reasons(finish: Finish) -> dict[int, str]:
    return {line["client"]: line["reason"] for line in lines(finish, "metrics.jsonl") if line.get("event") == "client_left_out"}  # type: ignore[misc]


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_a_question_in_mid_round_is_answered_from_everybodys_messages(order: str, tmp_path: Path) -> None:
    finish = go(Poll(), tmp_path / "run", rounds=2, order=order)
    np.testing.assert_allclose(theta(finish), 2 * 2 * by_hand().mean(0), rtol=1e-12)
    assert float(finish.state.shared["polls"]["count"]) == 8  # what answer changed is kept with the round
    for row in finish.clients.values():
        np.testing.assert_allclose(row["heard"]["z"].numpy(), by_hand().mean(0), rtol=1e-12)


def test_an_exchange_is_booked_under_its_name_in_both_directions(tmp_path: Path) -> None:
    """6 float64 there and back for each of 4 clients; the download is theta and the counter."""
    finish = go(Poll(twice=True), tmp_path / "run")
    found = {(e["exchange"], e["direction"], e["slot"]): (e["bytes"], e["clients"]) for e in lines(finish, "wire.jsonl")}
    vector = 4 * 8 * SIZE
    assert found == {
        (None, "down", "theta"): (vector, 4), (None, "down", "polls"): (4 * 8, 4), (None, "up", "theta"): (vector, 4),
        ("poll", "up", "sums"): (vector, 4), ("poll", "down", "answer"): (vector, 4),
        ("again", "up", "sums"): (vector, 4), ("again", "down", "answer"): (vector, 4),
    }  # fmt: skip
    assert finish.summary["bytes"]["up"] == 3 * vector and finish.summary["bytes"]["down"] == 3 * vector + 32


def test_the_guards_stand_before_an_exchange_too(tmp_path: Path) -> None:
    finish = go(Poll(), tmp_path / "run", guards=Guards(clip=1.5))
    z = by_hand()
    clipped = z * np.minimum(1, 1.5 / np.linalg.norm(z, axis=1, keepdims=True))
    sent = 2 * clipped.mean(0)
    np.testing.assert_allclose(theta(finish), sent * min(1, 1.5 / np.linalg.norm(sent)), rtol=1e-12)


@pytest.mark.parametrize("guards", [Guards(clip=1.0, noise=1.0), Guards(clip=1.0, clip_mode="adaptive")])
def test_an_exchange_is_a_second_release_that_nobody_accounts(guards: Guards, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Poll asks the server in mid-round with 'poll/sums', a second release .* not accounted\. Leave out"):
        go(Poll(), tmp_path / "run", guards=guards)


@dataclass(frozen=True)
class For2:
    """Client 2 asks something else."""

    name: str = "poll"
    factor: float = 1.0
    group: str = "sums"

    def __call__(self, message: Message, site: Site) -> Exchange:
        if site.client != 2:
            return Exchange("poll", message)
        return Exchange(self.name, Message({self.group: {"z": message["sums"]["z"] * self.factor}}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (For2(name="other"), r"asked the exchange 'other' while others asked 'poll'\."),
        (For2(factor=float("nan")), "sent 'sums/z' with NaN or infinite entries."),
        (For2(group="secret"), r"sent the group 'secret', which is not among ['sums']. A method must declare it in slots()."),
        (For2(factor=1e9), "sent an update of norm"),
    ],
    ids=["another name", "nan", "undeclared", "huge"],
)
def test_who_asks_wrongly_is_out_of_the_round_and_the_others_go_on(change: For2, reason: str, tmp_path: Path) -> None:
    finish = go(Poll(change=change), tmp_path / "run")
    assert list(reasons(finish)) == [2] and reason.replace("\\", "") in reasons(finish)[2]
    np.testing.assert_allclose(theta(finish), 2 * by_hand()[[0, 1, 3]].mean(0), rtol=1e-12)
    assert set(finish.clients) == {0, 1, 3} and float(finish.state.shared["polls"]["count"]) == 3
    crossed = [e for e in lines(finish, "wire.jsonl") if e["direction"] == "up" and e["exchange"] is not None]
    assert sum(e["clients"] for e in crossed) == 4  # type: ignore[misc]


def test_who_gets_no_answer_is_out_of_the_round(tmp_path: Path) -> None:
    finish = go(Poll(silent=(0,)), tmp_path / "run")
    assert reasons(finish) == {0: "got no answer to the exchange 'poll'."} and set(finish.clients) == {1, 2, 3}


def test_a_client_that_writes_into_its_answer_changes_nobodys(tmp_path: Path) -> None:
    np.testing.assert_array_equal(theta(go(Poll(scribble=True), tmp_path / "a")), theta(go(Poll(), tmp_path / "b")))


def test_what_answer_remembers_is_dropped_with_the_round(tmp_path: Path) -> None:
    """Client 2 fails after the question, so the round is repeated (for ever); the polls of lost rounds are not counted."""

    finish = go(Poll(silent=(2,)), tmp_path / "one", rounds=1)
    assert float(finish.state.shared["polls"]["count"]) == 4
    with pytest.raises(RunError, match=r"Round 2 got 3 of 4 clients back.*Tried 3 times: client 2 got no answer"):
        run(
            (Phase("talk", 1, Poll()), Phase("talk more", 1, Poll(silent=(2,)))), population(), net=Toy().net(),
            metric=Toy().metric, out=tmp_path / "two", settings=Settings(backend="loop", quiet=True, precision="fp64", min_cohort=4),
        )  # fmt: skip
    resumed = run(
        (Phase("talk", 1, Poll()), Phase("talk more", 1, Poll())), population(), net=Toy().net(), metric=Toy().metric,
        out=tmp_path / "two", settings=Settings(backend="loop", quiet=True, precision="fp64"), resume=True,
    )  # fmt: skip
    assert float(resumed.state.shared["polls"]["count"]) == 8


@dataclass(frozen=True, kw_only=True)
class Deaf(Poll):
    def answer(
        self, state: ServerState, name: str, messages: Mapping[ClientId, Message], hub: Hub
    ) -> tuple[ServerState, Mapping[ClientId, Message]]:
        return Method.answer(self, state, name, messages, hub)


def test_a_method_without_an_answer_is_told_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Deaf asks the exchange 'poll' but has no answer\. Write Deaf\.answer"):
        go(Deaf(), tmp_path / "run")


@dataclass(frozen=True, kw_only=True)
class Smuggler(Poll):
    """Puts an exchange's group into the Message at the end."""

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from super().client(mine, down, site)
        return row, replace(up, groups={**up.groups, "poll/sums": row["heard"]}) if site.client == 1 else up


def test_a_group_of_an_exchange_has_no_place_in_the_last_message(tmp_path: Path) -> None:
    finish = go(Smuggler(), tmp_path / "run")
    assert list(reasons(finish)) == [1] and "'poll/sums', which is not among ['theta']" in reasons(finish)[1]


# --- in worker processes ----------------------------------------------------------------------------------------------------


def test_a_pool_answers_exchanges_as_the_loop_does(tmp_path: Path) -> None:
    """Two questions in a round, one who gets no answer, one who asks something else: runs wait in their workers meanwhile."""
    methods = {"twice": Poll(twice=True), "silent": Poll(silent=(0,)), "wrong": Poll(change=For2(name="other"))}
    plan = tuple(Phase(name, 1, method) for name, method in methods.items())
    toy, found = Toy(), {}
    for backend in ("loop", "pool"):
        settings = Settings(backend=backend, workers=2, quiet=True, precision="fp64")  # type: ignore[arg-type]
        found[backend] = run(plan, toy.population(), net=toy.net(), metric=toy.metric, out=tmp_path / backend, settings=settings)
    loop, pool = found["loop"], found["pool"]
    assert reasons(pool) == reasons(loop) == {0: "got no answer to the exchange 'poll'.", 2: reasons(loop)[2]}
    np.testing.assert_array_equal(theta(pool), theta(loop))
    assert {c: r["heard"]["z"].tolist() for c, r in pool.clients.items()} == {c: r["heard"]["z"].tolist() for c, r in loop.clients.items()}
    assert (pool.path / "wire.jsonl").read_bytes() == (loop.path / "wire.jsonl").read_bytes()


@dataclass(frozen=True, kw_only=True)
class Dying(Poll):
    """Client 2's process dies in the first round, after the answer came."""

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from super().client(mine, down, site)
        if site.client == 2 and site.round.index == 0:
            os._exit(3)
        return row, up


def test_a_worker_that_dies_takes_the_runs_that_wait_in_it_and_no_more(tmp_path: Path) -> None:
    """One worker answers clients in order, so 0 and 1 are through when it dies with 2, and 3 still waits."""
    finish = go(Dying(), tmp_path / "run", rounds=2, backend="pool", workers=1)
    assert reasons(finish) == dict.fromkeys((2, 3), "lost its worker process, which died with exit code 3.")
    returned = [line["returned"] for line in lines(finish, "metrics.jsonl") if line.get("event") == "round"]
    assert returned == [2, 4] and set(finish.clients) == {0, 1, 2, 3}
    np.testing.assert_allclose(theta(finish), 2 * 2 * by_hand().mean(0), rtol=1e-12)


# --- what the server may ask -------------------------------------------------------------------------------------------------------


def pull(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    """(theta - target)^2 / 2 summed, so that one step of SGD moves theta by lr (target - theta)."""
    return Loss((params["theta"]["z"] - refs["target"]["z"]).square().sum() / 2)


@dataclass(frozen=True, kw_only=True)
class Teacher(Poll):
    """In absorb: a sweep over the server's set gives a target, two trainings of 1 and 2 steps move theta towards it."""

    ask: str = "train"

    def absorb(  # type: ignore[override]
        self, state: ServerState, mean: Message | None, each: Mapping[ClientId, Message], hub: Hub
    ) -> ServerRun:
        target = yield from Sweep(fn=sums, params={}, streams={"local": hub.data["public"]}, gather="mean", batch_size=4)
        if self.ask != "train":
            yield Exchange("poll", Message())  # type: ignore[misc]
        theta = state.shared["theta"]
        for steps in (1, 2):
            got = yield from Train(
                params={"theta": theta}, refs={"target": target}, loss=pull, optim=SGD(lr=0.25), streams={}, steps=steps, name="teach"
            )
            theta = got.params["theta"]
        return state.with_shared(theta=theta)


def test_the_server_trains_and_sweeps_in_absorb(tmp_path: Path) -> None:
    """From zero, 3 steps of lr 1/4 go 1 - (3/4)^3 of the way; batch sums of 4, 4 and 2 rows are weighted 4, 4 and 2 to 10."""
    data = population()
    data = replace(data, public={"public": data.parts[0].train.__class__(data.parts[0].train.columns, torch.arange(10))})
    rows = data.public["public"].all_rows()["x"].double().numpy()
    target = (4 * rows[:4].sum(0) + 4 * rows[4:8].sum(0) + 2 * rows[8:].sum(0)) / 10
    plan = (Phase("teach", 1, Teacher(), Nobody()),)
    toy = Toy()
    settings = Settings(backend="loop", quiet=True, precision="fp64")
    finish = run(plan, data, net=toy.net(), metric=toy.metric, out=tmp_path / "run", settings=settings)
    np.testing.assert_allclose(theta(finish), (1 - 0.75**3) * target, rtol=1e-12)
    told = next(line["train"] for line in lines(finish, "metrics.jsonl") if line.get("event") == "round")
    expected = 0.5 * (target**2).sum() * np.array([1, (0.75**2 + 0.75**4) / 2])  # mean loss of each training's steps
    assert told == {"server/teach/objective": pytest.approx(expected.mean())}
    with pytest.raises(ValueError, match=r"A Train or Sweep can be asked here, found Exchange\. Ask with: yield from Train"):
        run(
            (Phase("teach", 1, Teacher(ask="exchange"), Nobody()),), data, net=toy.net(), metric=toy.metric,
            out=tmp_path / "wrong", settings=settings,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Forgetful(Poll):
    def absorb(self, state: ServerState, mean: object, each: object, hub: Hub) -> None:  # type: ignore[override]
        return None


def test_an_absorb_that_returns_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Forgetful\.absorb must return a ServerState, found NoneType\. Return the new state"):
        go(Forgetful(), tmp_path / "run", cohort=Named((0,)))
