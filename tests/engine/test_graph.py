"""Recorded steps: every kind of training has the reference's answer, or is computed step by step and says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import test_stacked
import torch
from asking import NET, ROUND, ask, curve
from on_meta import step_on_meta
from test_stacked import SETTINGS, assert_close, curved, members

from coterie.engine import answers
from coterie.engine.answers import Context, Question
from coterie.engine.graph import Graph
from coterie.engine.graph.program import Program
from coterie.engine.recording import Unrecordable
from coterie.engine.recording import track as tracks
from coterie.engine.stacked.member import Member
from coterie.method import SGD, Adam, Batch, Loss, Net, Train, Trained
from coterie.randomness import Key
from coterie.tensors import Groups


@pytest.fixture(autouse=True)
def recorded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracks, "PAYS_AFTER", 1)


def answer(program: Program, member: Member) -> Trained:
    with torch.no_grad():
        return program.answer(cast(Train, member.ask), ROUND, member.key)


def assert_as_the_reference(group: list[Member]) -> None:
    """One program for all of them, one after another."""
    first = group[0].ask
    assert isinstance(first, Train)
    program = Program(first, NET)
    for member in group:
        assert isinstance(member.ask, Train)
        expected = answers.train(member.ask, NET, ROUND, member.key)
        got = answer(program, member)
        assert (got.num_steps, got.lr_sum) == (expected.num_steps, expected.lr_sum)
        assert got.metrics == pytest.approx(expected.metrics, rel=1e-12)
        for name in ("params", "buffers", "memory"):
            assert_close(getattr(got, name), getattr(expected, name), name)


@pytest.mark.parametrize("shared_table", [True, False], ids=["one table", "own tables"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_kind_of_training_gives_the_references_numbers(setting: str, shared_table: bool) -> None:
    assert_as_the_reference(members(ask(**{"loss": curved, **SETTINGS[setting]}), shared_table=shared_table))


@pytest.mark.parametrize("optim", [SGD(lr=0.1, momentum=0.9), Adam(lr=0.1)], ids=["sgd", "adam"])
def test_memory_goes_in_and_out_and_a_client_without_one_starts_fresh(optim: Any) -> None:
    group = members(ask(loss=curved, optim=optim, steps=3))
    memories = [answers.train(m.ask, NET, ROUND, m.key).memory if i % 2 else None for i, m in enumerate(group)]  # type: ignore[arg-type]
    assert_as_the_reference([Member(replace(m.ask, memory=kept), m.key) for m, kept in zip(group, memories, strict=True)])


def test_a_program_replays_its_recordings_and_python_runs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second client is computed without a single call of the loss."""
    calls: list[int] = []
    monkeypatch.setattr(test_stacked, "curve", lambda *given: (calls.append(1), curve(*given))[1])
    first, _, second, _ = members(ask(loss=curved, epochs=2, steps=None), sizes=(8, 8, 8, 8))
    program = Program(cast(Train, first.ask), NET)
    answer(program, first)
    known = len(calls)
    expected = answer(Program(cast(Train, second.ask), NET), second)
    calls.clear()
    got = answer(program, second)
    assert known and not calls
    assert_close(got.params, expected.params, "params")


def test_few_steps_are_not_worth_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracks, "PAYS_AFTER", 8)
    recorded: list[int] = []
    record = tracks.record
    monkeypatch.setattr(tracks, "record", lambda *given: (recorded.append(1), record(*given))[1])
    group = members(ask(loss=curved, epochs=1, steps=None), sizes=(12, 9, 11))  # three whole batches, then two and a short one, twice
    program = Program(cast(Train, group[0].ask), NET)
    for member, so_far in zip(group, (0, 0, 0), strict=True):
        answer(program, member)
        assert len(recorded) == so_far
    for expected in (1, 1):  # 3 + 2 + 2 whole ones and 2: the ninth; a short batch of 1 and one of 3 came once or twice
        answer(program, group[1])
        assert len(recorded) == expected


def branching(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    value = params["shared"]["w"].square().sum()
    return Loss(value if value > 1 else 2 * value)


def with_a_python_number(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    return Loss((params["shared"]["w"] * torch.tensor(2.0, dtype=torch.float64)).square().sum())


def drawing(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    w = params["shared"]["w"]
    return Loss((w * torch.rand_like(w)).square().sum())


def of_the_positive(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    x = batch["local"]["x"].flatten()
    return Loss((params["shared"]["w"].sum() * x[x > 0.3]).square().sum())


COUNTED = [0.0]


def counting(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    COUNTED[0] += 1.0
    return Loss((params["shared"]["w"] * COUNTED[0]).square().sum())


def growing(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    return Loss(params["shared"]["w"].square().sum(), {"seen": {"rows": torch.zeros(3)}})


REASONS = {
    branching: "it reads a number back from a tensor",
    with_a_python_number: "it makes a tensor of Python numbers in every step",
    drawing: "it draws random numbers by itself",
    of_the_positive: "the shape of something in it depends on numbers",
    counting: "a replay of its step gives other numbers than the step",
    growing: "it gives a buffer another name, shape or dtype than it had",
}


@pytest.mark.parametrize("loss", REASONS, ids=lambda loss: loss.__name__)
def test_what_cant_be_recorded_is_computed_step_by_step_and_says_why(loss: Any) -> None:
    one = members(ask(loss=loss, steps=4))[0]
    train = replace(cast(Train, one.ask), buffers={"seen": {"rows": torch.zeros(2)}})
    with pytest.raises(Unrecordable, match=REASONS[loss]):
        answer(Program(train, NET), Member(train, one.key))
    backend = Graph(world=cast(Any, None))
    COUNTED[0] = 0.0
    got = backend.reply_to(Question(train, Context(NET, ROUND, one.key)))
    COUNTED[0] = 0.0 if loss is not counting else COUNTED[0] - 4
    expected = answers.reference(Question(train, Context(NET, ROUND, one.key)))
    assert isinstance(got, Trained) and isinstance(expected, Trained)
    assert_close(got.params, expected.params, "params")
    (remark,) = backend.remarks()
    assert remark.startswith(f"The training 'train' is computed step by step: {REASONS[loss]}") and not backend.remarks()


def test_programs_that_rested_longest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracks, "_MOST_KEPT", 2)
    backend = Graph(world=cast(Any, None))
    for size in (4, 5, 4, 6, 4):
        one = members(ask(loss=curved, batch_size=size))[0]
        backend.reply_to(Question(cast(Train, one.ask), Context(NET, ROUND, one.key)))
    assert [program._ask.batch_size for program in backend._programs._programs.values()] == [6, 4]


def elsewhere(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    return Loss(params["shared"]["w"].sum() * torch.ones(()))


def test_a_step_that_leaves_its_device_is_told_from_one_that_stays() -> None:
    everything = SETTINGS["terms, corrections, a second gradient, a projection"]
    one = members(ask(loss=curved, **everything, optim=Adam(lr=0.1)))[0]
    step_on_meta(cast(Train, one.ask), NET, Key(0))
    with pytest.raises(Unrecordable, match=r"it computes on cpu .*ones.*, and the parameters are on meta"):
        step_on_meta(ask(loss=elsewhere), NET, Key(0))
