"""Waves of clients whose runs go side by side; what they ask alike is answered as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch

from coterie.engine.answers import Asking, Question, reference
from coterie.engine.backend import AnswerExchange, EvaluateJob, Outcome, Remarks, Scores, TrainJob, World
from coterie.engine.client import Failure, failure
from coterie.engine.loop import Runs, advance, client_run, converse, evaluation
from coterie.engine.recording import Kept
from coterie.engine.signature import Signature, signature
from coterie.engine.stacked.member import Member
from coterie.engine.stacked.padding import num_rows, padding_matters
from coterie.engine.stacked.program import StackedProgram
from coterie.engine.stacked.sweep import sweep_stacked
from coterie.engine.stacked.train import train_stacked
from coterie.message import Message
from coterie.method import Train, Trained
from coterie.states import ClientId
from coterie.tensors import Tensors

_Job = TypeVar("_Job")


@dataclass(frozen=True, eq=False)
class _Waiting:
    """A run's question, and what it shares with others that can be answered together with it."""

    question: Question
    kind: Signature | None


class Stacked:
    """`width` clients at once, with the reference's results to rounding."""

    name = "stacked"

    def __init__(self, world: World, width: int) -> None:
        self._world = world
        self._width = width
        self._before: defaultdict[str, set[str]] = defaultdict(set)  # of an ask's name: what some run asked before it
        self._alone: set[Signature] = set()  # what can't be answered together
        self._checked: set[Signature] = set()  # what gives the same numbers with padding as without, in this round
        self._programs: Kept[StackedProgram] = Kept()
        self._remarks = Remarks()

    def train(self, jobs: Iterable[TrainJob], answer: AnswerExchange) -> Iterator[Outcome]:
        self._checked.clear()  # a term that forgets its mask may get a weight later
        waves = ({job.client: client_run(self._world, job) for job in wave} for wave in _waves(jobs, self._width))
        return converse(waves, self._side_by_side, answer)

    def evaluate(self, jobs: Iterable[EvaluateJob]) -> Iterator[tuple[ClientId, Scores | Failure]]:
        for wave in _waves(jobs, self._width):
            runs = {job.client: _kept(evaluation(self._world, job)) for job in wave}
            yield from self._side_by_side(runs, {})

    def reply_to(self, asked: Question) -> Trained | Tensors:
        return reference(asked)

    def remarks(self) -> list[str]:
        return self._remarks.take()

    def close(self) -> None:
        self._programs.clear()

    def _side_by_side(self, runs: Runs, replies: Mapping[ClientId, Message]) -> Iterator[tuple[ClientId, Any]]:
        """Each run to its next Exchange or to its result; their Questions are answered in groups."""
        pending: dict[ClientId, _Waiting] = {}
        asked: defaultdict[ClientId, set[str]] = defaultdict(set)

        def wait(client: ClientId, question: Question) -> None:
            pending[client] = _Waiting(question, self._kind(question))
            self._before[question.ask.name] |= asked[client] - {question.ask.name}
            asked[client].add(question.ask.name)

        for client, run in runs.items():
            found = advance(run, replies.get(client))
            if isinstance(found, Question):
                wait(client, found)
            else:
                yield client, found
        while pending:
            group = self._next_group(pending)
            replied = self._answers([pending.pop(client) for client in group])
            for client, reply in zip(group, replied, strict=True):
                found = _thrown(runs[client], reply) if isinstance(reply, Exception) else advance(runs[client], reply)
                if isinstance(found, Question):
                    wait(client, found)
                else:
                    yield client, found

    def _next_group(self, pending: Mapping[ClientId, _Waiting]) -> list[ClientId]:
        """Those who ask the same, of what comes first in a run: so runs that parted meet again."""
        names = {waiting.question.ask.name for waiting in pending.values()}
        ready = (client for client, waiting in pending.items() if not names & self._before[waiting.question.ask.name])
        first = next(ready, next(iter(pending)))  # two names that came before each other: any of them
        kind = pending[first].kind
        if kind is None or kind in self._alone:
            return [first]
        # `in` and not `==`: functions that hold tensors are told apart by their hash, their equality is no single truth
        alike = [client for client, waiting in pending.items() if waiting.kind in {kind}]
        return sorted(alike)[: self._width]

    def _kind(self, question: Question) -> Signature | None:
        """What it shares with questions that can be answered together with it; None where it has to stand alone."""
        try:
            for name, spec in question.ask.noise.items():
                if "batch" in spec.shape[1:]:
                    raise TypeError(f"the noise '{name}' has the batch on an axis other than the first, so padding would shift it")
            return signature(question.ask)
        except TypeError as error:
            self._remark(question, str(error))
            return None

    def _answers(self, group: list[_Waiting]) -> list[Any]:
        """Together where it can be, and one by one where it can't: then an error is thrown into the run that caused it."""
        if len(group) == 1:
            return [_tried(group[0].question)]
        try:
            return self._together(group)
        except torch.OutOfMemoryError:
            half = -(-len(group) // 2)
            self._fit(half)
            return [*self._answers(group[:half]), *self._answers(group[half:])]
        except Exception as error:
            replies = [_tried(waiting.question) for waiting in group]
            if not any(isinstance(reply, Exception) for reply in replies):  # else a client is at fault, not the stacking
                assert group[0].kind is not None
                self._alone.add(group[0].kind)
                self._remark(group[0].question, f"{type(error).__name__}: {error}".splitlines()[0])
            return replies

    def _fit(self, width: int) -> None:
        """No more than so many clients at once from here on."""
        self._programs.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self._width = min(self._width, width)
        self._remarks.say(f"The device's memory holds {width} clients at once, not twice as many; from here on it is {self._width}.")

    def _together(self, group: list[_Waiting]) -> list[Any]:
        first, context, kind = group[0].question, group[0].question.context, group[0].kind
        assert kind is not None, "who has no kind stands alone"
        members = [Member(waiting.question.ask, waiting.question.context.key) for waiting in group]
        replies: list[Any]
        if isinstance(first.ask, Train):
            replies = list(
                train_stacked(
                    members, context.net, context.round, self._programs,
                    remark=lambda reason: self._remarks.say(f"The steps of '{first.ask.name}' are not recorded: {reason}"),
                )
            )  # fmt: skip
        else:
            replies = list(sweep_stacked(members, context.net))
        if kind not in self._checked:  # afterwards: a net that draws by itself is told by its own reason
            if padding_matters(max(members, key=num_rows), context.net):
                raise ValueError("it reads padded rows; weigh rows with the batch's mask, as masked_mean does")
            self._checked.add(kind)
        return replies

    def _remark(self, question: Question, reason: str) -> None:
        self._remarks.say(f"The ask '{question.ask.name}' is answered client by client: {reason}")


def _kept(run: Asking) -> Asking:
    """An evaluation that fails says so, instead of ending the round."""
    try:
        return (yield from run)
    except Exception as error:
        return failure(error)


def _tried(question: Question) -> Any:
    try:
        return reference(question)
    except Exception as error:
        return error


def _thrown(run: Any, error: Exception) -> Any:
    """An error while answering is thrown into the run, so that the traceback names the method's own line."""
    try:
        return run.throw(error)
    except StopIteration as stop:
        return stop.value


def _waves(jobs: Iterable[_Job], width: int) -> Iterator[list[_Job]]:
    pending = iter(jobs)
    while wave := list(islice(pending, width)):
        yield wave
