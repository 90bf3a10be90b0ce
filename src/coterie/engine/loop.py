"""The reference backend: one client after another in this process, with its own traceback."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Literal

from coterie.engine.backend import AnswerExchange, EvaluateJob, Outcome, Scores, TrainJob, World
from coterie.engine.client import Failure, Finished, drive, failure
from coterie.engine.evaluate import evaluate_client, evaluate_parts
from coterie.message import Message
from coterie.method import Exchange
from coterie.states import ClientId
from coterie.tensors import clone_groups

Order = Literal["forward", "reversed"]


class Loop:
    """`order` changes the order in which clients are computed, and never a number."""

    name = "loop"

    def __init__(self, world: World, order: Order = "forward") -> None:
        self._world = world
        self._order = order

    def train(self, jobs: Iterable[TrainJob], answer: AnswerExchange) -> Iterator[Outcome]:
        waiting: dict[ClientId, tuple[Generator[Exchange, Message, Finished | Failure], Exchange]] = {}
        for job in jobs if self._order == "forward" else reversed(list(jobs)):
            run = start(self._world, job)
            asked, outcome = advance(run, None)
            if asked is not None:
                waiting[job.client] = run, asked
            elif outcome is not None:
                yield job.client, outcome
        while waiting:
            # copies, as over a wire: the run still holds what it asked with
            asking = {client: Exchange(asked.name, asked.message.copied()) for client, (_, asked) in sorted(waiting.items())}
            replies = answer(asking)
            for client, (run, _) in list(waiting.items()):
                reply = replies[client]
                if isinstance(reply, Failure):
                    asked, outcome = None, reply
                else:
                    asked, outcome = advance(run, reply.copied())
                if asked is not None:
                    waiting[client] = run, asked
                    continue
                run.close()
                del waiting[client]
                if outcome is not None:
                    yield client, outcome

    def evaluate(self, jobs: Iterable[EvaluateJob]) -> Iterator[tuple[ClientId, Scores | Failure]]:
        for job in jobs:
            try:
                found: Scores | Failure = evaluate(self._world, job)
            except Exception as error:
                found = failure(error)
            yield job.client, found

    def close(self) -> None:
        pass


def start(world: World, job: TrainJob) -> Generator[Exchange, Message, Finished | Failure]:
    """The client gets copies, as it would over a wire: a run that writes into what it received changes nobody else."""
    site = world.site(job.client, job.round, job.public, job.attempt)
    row, down = clone_groups(job.row), job.down.copied()
    return drive(world.method(job.round.phase), row, down, site, world.metric if job.evaluate else None, job.kinds)


def advance(
    run: Generator[Exchange, Message, Finished | Failure], reply: Message | None
) -> tuple[Exchange | None, Finished | Failure | None]:
    """The run's next question, or how it ended."""
    try:
        return (next(run) if reply is None else run.send(reply)), None
    except StopIteration as stop:
        return None, stop.value


def evaluate(world: World, job: EvaluateJob) -> Scores:
    site = world.site(job.client, job.round, job.public)
    if job.predictor is not None:
        return evaluate_parts(job.predictor, site, world.metric)
    return evaluate_client(world.method(job.round.phase), job.row, job.down, site, world.metric)
