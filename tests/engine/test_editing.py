"""Asks that are refused when they are made, errors that come back to the author's line, and one run inside another."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import F64, ask, assert_close, context, curved, pull_to_zero, ramp, trained
from cases import Toy
from torch import Tensor

from coterie.engine.answers import conclude, conduct
from coterie.engine.run import RunError
from coterie.message import Message
from coterie.method import (
    SGD,
    Adam,
    Batch,
    ClientRun,
    Exchange,
    Loss,
    Net,
    Phase,
    Site,
    Sweep,
    Train,
    Turn,
    Wrapper,
    as_run,
    editing,
    peek,
)
from coterie.methods.fedavg import FedAvg
from coterie.tensors import Groups


@dataclass
class Loose:
    def __call__(self, *parts: Any) -> Loss:
        return Loss(torch.zeros(()))


def bound(self: object, *parts: Any) -> Loss:
    return Loss(torch.zeros(()))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"loss": lambda *parts: Loss(torch.zeros(()))}, r"must be a module-level function or a frozen dataclass.*<lambda>"),
        ({"loss": Loose()}, r"module-level function or a frozen dataclass.*Loose"),
        ({"terms": (bound.__get__(Loose()),)}, r"module-level function.*bound method"),
        ({"loss": None}, r"either a loss or turns"),
        ({"epochs": 2}, r"needs epochs or steps, found epochs=2, steps=10\. Give one"),
        ({"epochs": 1, "steps": None, "streams": {}}, r"without streams has no passes to count.*Give steps"),
        ({"optim": {"head": SGD(lr=1.0)}}, r"has no optimiser for \['shared'\], only for \['head'\]\. Give one"),
        ({"loss": None, "turns": (Turn(loss=curved, moves=frozenset({"hed"})),)}, r"moves \['hed'\], but .* groups \['shared'\]\. Name"),
        ({"loss": None, "turns": (Turn(loss=curved, moves=frozenset()),)}, r"moves nothing, but"),
    ],
    ids=["lambda", "not frozen", "bound", "no loss", "both", "no stream", "no optimiser", "unknown group", "empty turn"],
)
def test_asks_that_cannot_be_answered_are_refused_at_once(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ask(**changes)
    with pytest.raises(ValueError, match=r"passes over data, but found no stream\. Give streams="):
        Sweep(fn=curved, params={}, streams={})  # type: ignore[arg-type]


def test_an_empty_stream_and_an_empty_group() -> None:
    with pytest.raises(ValueError, match=r"given a stream without examples\. Leave this client out, or give it data"):
        trained(ask(streams={"local": {"x": torch.zeros(0, 2, dtype=F64)}}, steps=1))
    got = trained(ask(params={**ask().params, "private": {}}, optim=Adam(lr=0.1)))
    assert_close(got.params["shared"], trained(ask(optim=Adam(lr=0.1))).params["shared"], atol=0)
    assert got.params["private"] == {}


# --- errors come back to the author's line, and editing -------------------------------------------------------------------------------


def broken_loss(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    return Loss(params["shared"]["w"] @ torch.zeros(7, dtype=F64))


def inner_run() -> Generator[Any, Any, str]:
    yield from ask(loss=broken_loss)  # the author's line
    return "never"


def edited_run() -> Generator[Any, Any, Any]:
    run = editing(inner_run(), lambda train: train.adding(pull_to_zero), moves="shared")
    return (yield from run)  # the wrapper's line


@pytest.mark.parametrize(("start", "lines"), [(inner_run, ["inner_run"]), (edited_run, ["edited_run", "inner_run"])])
def test_an_error_while_answering_names_the_methods_line(start: Callable[[], Any], lines: list[str]) -> None:
    with pytest.raises(RuntimeError) as caught:
        conclude(conduct(start(), context(), (Train, Sweep), []))
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert [name for name in frames if name in ("edited_run", "inner_run")] == lines and frames[-1] == "broken_loss"
    text = "".join(traceback.format_exception(caught.value))
    assert "# the author's line" in text


def forgiving_run() -> Generator[Any, Any, str]:
    try:
        yield from ask(loss=broken_loss)
    except RuntimeError:
        got = yield from ask(steps=1)
    return f"{got.num_steps} step"


def test_a_run_that_catches_its_error_goes_on() -> None:
    told: list[Any] = []
    assert conclude(conduct(forgiving_run(), context(), (Train,), told)) == "1 step"
    assert [name for name, _ in told] == ["train"]


def test_what_is_no_ask_is_refused_at_the_line_that_asks() -> None:
    def run() -> Generator[Any, Any, None]:
        yield 3

    with pytest.raises(ValueError, match=r"A Train or Exchange can be asked here, found int\. Ask with: yield from Train") as caught:
        conclude(conduct(run(), context(), (Train, Exchange), []))
    assert "run" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


@dataclass(frozen=True)
class Failing(Wrapper):
    """A client whose loss fails, inside a wrapper: what a run says of it."""

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        run = editing(self.inner.client(mine, down, site), break_it, moves="shared")
        return (yield from run)


def break_it(train: Train) -> Train:
    return replace(train, terms=(wrong_term,))


def wrong_term(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensor:
    raise ArithmeticError("the term of hospital 3")


def test_a_run_tells_the_cause_of_a_clients_failure(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"client 0 raised ArithmeticError: the term of hospital 3") as caught:
        Toy().run((Phase("train", 1, Failing(FedAvg())),), tmp_path / "run")
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_an_edit_that_matches_nothing_is_an_error() -> None:
    def drive(moves: str, named: str | None = None) -> Any:
        def run() -> Generator[Any, Any, Any]:
            return (yield from editing(plain_run(), lambda train: train.adding(pull_to_zero), moves=moves, named=named))

        return conclude(conduct(run(), context(), (Train,), []))

    for moves, named in (("head", None), ("shared", "align")):
        with pytest.raises(ValueError, match=rf"move '{moves}' matched none in this client's run\. Wrap a method that trains"):
            drive(moves, named)
    assert drive("shared", "train") == "done"


def plain_run() -> Generator[Any, Any, str]:
    yield from ask(steps=1)
    return "done"


def two_parts() -> Generator[Any, Any, None]:
    """Head, then body, then the body once more."""
    w = ask().params["shared"]["w"]
    yield from ask(params={"head": {"h": w}}, loss=ramp, steps=1, name="head")
    body = yield from ask(params={"body": {"w": w}}, loss=ramp, steps=2)
    yield from ask(params={"body": body.params["body"]}, loss=ramp, steps=3, optim=SGD(lr=0.2))


def test_editing_tells_of_the_asks_it_changed_only() -> None:
    run = editing(two_parts(), lambda train: train.adding(), moves="body")
    conclude(conduct(iter(run), context(), (Train,), []))
    assert run.lr_sum == {"body": pytest.approx(2 * 0.1 + 3 * 0.2)} and set(run.started) == set(run.trained) == {"body"}
    moved = run.started["body"]["w"] - run.trained["body"]["w"]
    np.testing.assert_allclose(moved.numpy(), [0.8, 0.8], rtol=1e-14)


def test_two_wrappers_may_not_use_one_name_for_their_refs() -> None:
    once = ask().adding(c={"w": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"refs of the same name \['c'\] into one ask\. Give one of them another name"):
        once.adjusting(c={"w": torch.zeros(1)})


def test_closing_a_wrapped_run_closes_the_inner_one() -> None:
    closed = []

    def inner() -> Generator[Any, Any, None]:
        try:
            yield from ask()
        finally:
            closed.append(True)

    run = iter(editing(inner(), lambda train: train, moves="shared"))
    next(run)
    run.close()
    assert closed == [True]


def peeked(run: Any, *, moves: str) -> Train:
    found: Train = conclude(conduct(peek(run, moves=moves), context(), (Train, Sweep, Exchange), []))
    return found


def test_peek_shows_the_first_ask_that_moves_a_group_and_leaves_nothing_running() -> None:
    closed, swept = [], []

    def run(*asks: Any) -> Generator[Any, Any, None]:
        try:
            for each in asks:
                swept.append((yield from each))
        finally:
            closed.append(True)

    assert peeked(run(ask(name="mine")), moves="shared").name == "mine" and closed == [True] and not swept
    look = Sweep(fn=rows_seen, params={}, streams={"local": {"x": torch.ones(3, 2)}}, gather="sum")
    assert peeked(run(look, ask(name="mine")), moves="shared").name == "mine" and float(swept[0]["rows"]) == 3
    with pytest.raises(ValueError, match=r"never moves 'head', so there is no such ask.* Wrap a method that trains it"):
        peeked(run(ask()), moves="head")
    with pytest.raises(ValueError, match=r"asks the server 'who' before it moves 'shared'"):
        peeked(run(Exchange("who", Message()), ask()), moves="shared")
    with pytest.raises(ValueError, match=r"never moves 'shared'"):
        peeked(({}, Message()), moves="shared")
    assert closed == [True] * 4


def rows_seen(params: Groups, buffers: Groups, refs: Groups, batch: Any, net: Any) -> dict[str, Tensor]:
    return {"rows": torch.tensor(float(len(batch["local"]["x"])))}


def test_a_hook_without_asks_is_a_run_all_the_same() -> None:
    assert conclude(conduct(as_run("value"), context(), (), [])) == "value"
