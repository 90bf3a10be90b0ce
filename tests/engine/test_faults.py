"""A client that misbehaves costs itself the round, and the run says who and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import toy
from cases import Toy
from toy import go

from coterie.data.examples import Population
from coterie.engine.check import check
from coterie.engine.run import Finish, RunError
from coterie.message import Message
from coterie.method import ClientRun, Fixed, Phase, Predictor, Site
from coterie.methods.fable import fable
from coterie.methods.fedavg import FedAvg, fedavg
from coterie.tensors import Groups, Tensors


def nan(up: Message) -> Message:
    return up.with_(shared={n: v * float("nan") for n, v in up["shared"].items()})


def infinite(up: Message) -> Message:
    return up.with_(shared={n: v + float("inf") for n, v in up["shared"].items()})


def huge(up: Message) -> Message:
    return up.with_(shared={n: v * 1e8 for n, v in up["shared"].items()})


def wrong_shape(up: Message) -> Message:
    return up.with_(shared={n: v[:1] for n, v in up["shared"].items()})


def wrong_dtype(up: Message) -> Message:
    return up.with_(shared={n: v.double() for n, v in up["shared"].items()})


def missing_name(up: Message) -> Message:
    return up.with_(shared=dict(list(up["shared"].items())[1:]))


def extra_name(up: Message) -> Message:
    return up.with_(shared={**up["shared"], "back.door": torch.zeros(2)})


def extra_group(up: Message) -> Message:
    return up.plus(secret={"x": torch.zeros(3)})


def no_group(up: Message) -> Message:
    return Message(weight=up.weight)


def negative_weight(up: Message) -> Message:
    return replace(up, weight=torch.tensor(-1.0, dtype=torch.float64))


def sparse(up: Message) -> Message:
    return up.with_(shared={n: v.to_sparse() for n, v in up["shared"].items()})


def empty_shell(up: Message) -> Message:
    return up.with_(shared={n: v.to("meta") for n, v in up["shared"].items()})


def raises(up: Message) -> Message:
    raise OSError("the disk of this hospital is full")


@dataclass(frozen=True, kw_only=True)
class Faulty(FedAvg):
    """FedAvg in which some clients misbehave in some rounds."""

    fault: Callable[[Message], Message]
    clients: tuple[int, ...] = (2,)
    rounds: tuple[int, ...] = (1,)

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from super().client(mine, down, site)
        bad = site.client in self.clients and site.round.index in self.rounds
        return row, self.fault(up) if bad else up


REASONS = {
    nan: "NaN or infinite", infinite: "NaN or infinite", huge: "update of norm", wrong_shape: "of shape",
    wrong_dtype: "as torch.float64, expected torch.float32", missing_name: "sent no 'encoder", extra_name: "'back.door'",
    extra_group: "group 'secret'", no_group: "no group 'shared'", negative_weight: "weight -1",
    sparse: "as a torch.sparse_coo tensor. Send an ordinary one", empty_shell: "as a meta tensor. Send an ordinary one",
    raises: "OSError: the disk of this hospital is full",
}  # fmt: skip


@pytest.mark.parametrize("fault", REASONS, ids=lambda fault: fault.__name__)
def test_a_faulty_client_is_left_out_of_that_round(fault: Callable[[Message], Message], tmp_path: Path) -> None:
    go((Phase("train", 3, Faulty(fault=fault)),), tmp_path / "faulty")
    lines = [json.loads(line) for line in (tmp_path / "faulty" / "metrics.jsonl").read_text().splitlines()]
    left_out = [line for line in lines if line.get("event") == "client_left_out"]
    assert [(line["round"], line["client"]) for line in left_out] == [(2, 2)]
    assert REASONS[fault] in left_out[0]["reason"]
    assert [line["returned"] for line in lines if line.get("event") == "round"] == [4, 3, 4]


def with_graph(up: Message) -> Message:
    return up.with_(shared={n: v.clone().requires_grad_() * 1.0 for n, v in up["shared"].items()})


def test_a_graph_does_not_outlive_its_client(tmp_path: Path) -> None:
    """Kept in the server's state, it would grow from round to round."""
    finish = go((Phase("train", 2, Faulty(fault=with_graph, rounds=(0, 1))),), tmp_path)
    assert set(finish.clients) == {0, 1, 2, 3}
    assert not any(value.requires_grad for value in finish.state.shared["shared"].values())


def test_a_faulty_client_leaves_no_trace_in_the_model(tmp_path: Path) -> None:
    """The same rounds without the client: weights of the others only."""
    finish = go((Phase("train", 1, Faulty(fault=nan, rounds=(0,))),), tmp_path / "a")
    from coterie.method import Named

    clean = go((Phase("train", 1, FedAvg(), Named((0, 1, 3))),), tmp_path / "b")
    for name, value in clean.state.shared["shared"].items():
        assert torch.equal(value, finish.state.shared["shared"][name])


def test_too_few_clients_stop_the_run_and_nothing_is_lost(tmp_path: Path) -> None:
    everybody = Faulty(fault=raises, clients=(0, 1, 2, 3), rounds=(2,))
    with pytest.raises(RunError, match=r"Round 3 got 0 of 4 .* Tried 3 times.*disk of this hospital.*2 rounds are saved"):
        go((Phase("train", 4, everybody),), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum(line.get("event") == "round" for line in lines) == 2


def test_a_round_below_the_minimum_is_repeated_with_other_clients(tmp_path: Path) -> None:
    """Clients 0 and 1 always fail: some drawn pair holds none of them."""
    broken = Faulty(fault=raises, clients=(0, 1), rounds=tuple(range(5)))
    finish = go((Phase("train", 5, broken, Fixed(2)),), tmp_path / "run", min_cohort=2, max_attempts=60)
    assert finish.summary["rounds"] == 5
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["returned"] for line in lines if line.get("event") == "round"] == [2] * 5


class Unreadable:
    """Decodes a client's files, one of which is broken."""

    def __call__(self, columns: Tensors) -> Tensors:
        raise OSError("photo 17 is truncated")


def with_unreadable(client: int, *parts: str) -> Population:
    people = toy.population()
    broken = {part: replace(getattr(people.parts[client], part), decode=Unreadable()) for part in parts}
    return replace(people, parts=[replace(p, **broken) if k == client else p for k, p in enumerate(people.parts)])


def told(finish: Finish, event: str) -> list[tuple[int, int, str]]:
    lines = [json.loads(line) for line in (finish.path / "metrics.jsonl").read_text().splitlines()]
    return [(line["round"], line["client"], line["reason"]) for line in lines if line.get("event") == event]


def test_a_client_whose_first_row_can_not_be_made_is_left_out(tmp_path: Path) -> None:
    """FABLE's first row holds anchors, which are read from the client's own files."""
    plan = fable(rounds=2, anchors=5)
    finish = Toy(population=lambda: with_unreadable(2, "train")).run(plan, tmp_path)
    reason = "raised OSError: photo 17 is truncated"
    assert told(finish, "client_left_out") == [(1, 2, reason), (2, 2, reason)]
    assert told(finish, "client_not_evaluated") == [(1, 2, reason), (2, 2, reason)]
    assert set(finish.clients) == {0, 1, 3} and finish.summary["rounds"] == 2


@pytest.mark.parametrize("backend", ["loop", "pool"])
def test_a_client_that_can_not_be_evaluated_is_told_of_and_the_others_count(backend: str, tmp_path: Path) -> None:
    broken = Toy(population=lambda: with_unreadable(1, "test", "validation"))
    finish = broken.run(fedavg(rounds=1), tmp_path, backend=backend, workers=1)
    assert told(finish, "client_not_evaluated") == [(1, 1, "raised OSError: photo 17 is truncated")]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {line["clients"] for line in lines if line.get("model") in ("global", "personal")} == {3}


@dataclass(frozen=True, kw_only=True)
class NothingToDeploy(FedAvg):
    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor:
        raise OSError("no licence")


def test_a_method_that_nobody_can_evaluate_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"No client could be evaluated after round 1: client 0 raised OSError: no licence\. 0 rounds"):
        go((Phase("train", 1, NothingToDeploy()),), tmp_path, eval_clients="2", min_cohort=1)


def test_one_unreadable_client_does_not_refuse_a_plan_before_it_runs() -> None:
    toys = Toy(population=lambda: with_unreadable(0, "train"))
    check(fable(rounds=1, anchors=5), toys.population(), net=toys.net(), metric=toys.metric)
    with pytest.raises(OSError, match="photo 17"):
        check(fable(rounds=1, anchors=5, cohort=Fixed(1)), only(toys.population(), 0), net=toys.net(), metric=toys.metric)


def only(people: Population, client: int) -> Population:
    return replace(people, parts=[people.parts[client]], names=("alone",))
