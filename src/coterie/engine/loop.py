"""The reference backend: one client after another in this process, with its own traceback."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from coterie.engine.answers import Asking, Question, Reply, answering, conclude, reference
from coterie.engine.backend import AnswerExchange, EvaluateJob, Outcome, Scores, TrainJob, World
from coterie.engine.client import Failure, Finished, drive, failure
from coterie.engine.evaluate import evaluate_models
from coterie.message import Message
from coterie.method import Exchange, Trained
from coterie.states import ClientId
from coterie.tensors import Tensors, clone_groups

Order = Literal["forward", "reversed"]

Runs: TypeAlias = Mapping[ClientId, Generator[Any, Any, Any]]
GoOn: TypeAlias = Callable[[Runs, Mapping[ClientId, Message]], Iterator[tuple[ClientId, Any]]]
"""Drive runs, with the server's answers to those that wait for one, each to its next Exchange or to its result."""


class Loop:
    """`order` changes the order in which clients are computed, and never a number."""

    name = "loop"

    def __init__(self, world: World, order: Order = "forward") -> None:
        self._world = world
        self._order = order

    def train(self, jobs: Iterable[TrainJob], answer: AnswerExchange) -> Iterator[Outcome]:
        ordered = jobs if self._order == "forward" else reversed(list(jobs))
        return converse(({job.client: start(self._world, job, self.reply_to)} for job in ordered), _one_by_one, answer)

    def evaluate(self, jobs: Iterable[EvaluateJob]) -> Iterator[tuple[ClientId, Scores | Failure]]:
        for job in jobs:
            try:
                found: Scores | Failure = conclude(evaluation(self._world, job), self.reply_to)
            except Exception as error:
                found = failure(error)
            yield job.client, found

    def reply_to(self, asked: Question) -> Trained | Tensors:
        return reference(asked)

    def remarks(self) -> list[str]:
        return []

    def close(self) -> None:
        pass


def converse(waves: Iterable[Runs], go_on: GoOn, answer: AnswerExchange) -> Iterator[Outcome]:
    """Every wave to its end; then those who ask the server, all together, until nobody asks any more."""
    asking: dict[ClientId, tuple[Generator[Any, Any, Any], Exchange]] = {}
    for runs in waves:
        for client, found in go_on(runs, {}):
            if isinstance(found, Exchange):
                asking[client] = runs[client], found
            else:
                yield client, found
    while asking:
        # copies, as over a wire: the run still holds what it asked with
        replies = answer({c: Exchange(asked.name, asked.message.copied()) for c, (_, asked) in sorted(asking.items())})
        runs = {client: run for client, (run, _) in asking.items()}
        asking.clear()
        for client, reply in replies.items():
            if isinstance(reply, Failure):
                runs.pop(client).close()
                yield client, reply
        for client, found in go_on(runs, {c: r.copied() for c, r in replies.items() if isinstance(r, Message)}):
            if isinstance(found, Exchange):
                asking[client] = runs[client], found
            else:
                yield client, found


def _one_by_one(runs: Runs, replies: Mapping[ClientId, Message]) -> Iterator[tuple[ClientId, Any]]:
    for client, run in runs.items():
        yield client, advance(run, replies.get(client))


def start(world: World, job: TrainJob, reply_to: Reply = reference) -> Generator[Exchange, Any, Finished | Failure]:
    """A run that asks nothing but the server."""
    return answering(client_run(world, job), reply_to)


def client_run(world: World, job: TrainJob) -> Asking:
    """The client gets copies, as it would over a wire: a run that writes into what it received changes nobody else."""
    site = world.site(job.client, job.round, job.public, job.attempt)
    row, down = clone_groups(job.row), job.down.copied()
    return drive(world.method(job.round.phase), row, down, site, world.metric if job.evaluate else None, job.kinds)


def advance(run: Generator[Any, Any, Any], reply: Any) -> Any:
    """The run's next question, or how it ended."""
    try:
        return run.send(reply)
    except StopIteration as stop:
        return stop.value


def evaluation(world: World, job: EvaluateJob) -> Asking:
    site = world.site(job.client, job.round, job.public)
    return evaluate_models(world.method(job.round.phase), job.predictor, job.row, job.down, site, world.metric)
