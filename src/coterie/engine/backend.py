"""The seam between a round and who computes it: jobs in, outcomes out, whatever runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from coterie.attacks.poison import Attack
from coterie.data.examples import ClientParts, Population
from coterie.engine.answers import Question
from coterie.engine.client import Failure, Finished
from coterie.message import Kind, Message
from coterie.method import Exchange, Method, Net, Phase, Plan, Poisson, Predictor, Round, Site, Trained
from coterie.metrics.metric import Metric
from coterie.randomness import Key
from coterie.reduce.mean import Mean
from coterie.reduce.seam import Reduce
from coterie.states import ClientId, Content
from coterie.tensors import Groups, Tensors


@dataclass(frozen=True, eq=False)
class World:
    """What every worker knows before the first round."""

    plan: Plan
    population: Population
    net: Net
    metric: Metric
    seed: int
    reduce: Reduce = Mean()
    attack: Attack | None = None

    def phase(self, name: str) -> Phase:
        return next(phase for phase in self.plan if phase.name == name)

    def method(self, phase: str) -> Method:
        return self.phase(phase).method

    def expected(self, round: Round) -> float:
        """How many clients a round counts on, whoever was drawn: a Poisson cohort may be empty."""
        cohort = self.phase(round.phase).cohort
        return cohort.rate * len(self.population) if isinstance(cohort, Poisson) else len(round.cohort)

    @property
    def attackers(self) -> frozenset[ClientId]:
        return frozenset() if self.attack is None else frozenset(self.attack.attackers(len(self.population), self.seed))

    def parts(self, client: ClientId, round: Round) -> ClientParts:
        """A client's data; of an attacker that has begun, with what it trains on instead."""
        parts = self.population.parts[client]
        if self.attack is None or parts.tainted is None or not self.attack.active(round.index):
            return parts
        return replace(parts, train=parts.tainted)

    def site(self, client: ClientId, round: Round, public: Mapping[str, Content], attempt: int = 0) -> Site:
        key = Key(self.seed, ("round", round.index, "client", client))
        return Site(
            client=client,
            round=round,
            data=self.parts(client, round),
            net=self.net,
            key=key.fold("attempt", attempt) if attempt else key,
            public={name: content.tensors for name, content in public.items()},
        )


@dataclass(frozen=True, eq=False)
class TrainJob:
    """One client's round; with `evaluate` also its own model afterwards ("local")."""

    client: ClientId
    round: Round
    row: Groups
    down: Message
    public: Mapping[str, Content]
    attempt: int = 0
    evaluate: bool = False
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # of the groups that it sends


@dataclass(frozen=True, eq=False)
class EvaluateJob:
    """The server's model, where it has one, and what this client would deploy now, on this client's parts."""

    client: ClientId
    round: Round
    public: Mapping[str, Content]
    row: Groups
    down: Message
    predictor: Predictor | None = None


Outcome: TypeAlias = tuple[ClientId, Finished | Failure]
Scores: TypeAlias = dict[str, dict[str, dict[str, float]]]
"""model -> split -> metric -> value"""
AnswerExchange: TypeAlias = Callable[[Mapping[ClientId, Exchange]], Mapping[ClientId, Message | Failure]]


class Remarks:
    """What a user should know of how a run goes, each sentence once."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._told: set[str] = set()

    def say(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._waiting.append(text)

    def take(self) -> list[str]:
        told, self._waiting = self._waiting, []
        return told


class Backend(Protocol):
    """Runs jobs in any order it likes. Jobs are pulled one by one, so only those under way are in memory."""

    name: str

    def train(self, jobs: Iterable[TrainJob], answer: AnswerExchange) -> Iterator[Outcome]: ...
    def evaluate(self, jobs: Iterable[EvaluateJob]) -> Iterator[tuple[ClientId, Scores | Failure]]: ...
    def reply_to(self, asked: Question) -> Trained | Tensors: ...  # in this process: a client's of `loop`, and the server's
    def remarks(self) -> list[str]: ...  # what a user should know of how it went, once each
    def close(self) -> None: ...
