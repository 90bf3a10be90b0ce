"""A real training with canary clients in it, for audits: through the engine, its guards and its reduction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.data.examples import ClientParts, Population
from coterie.engine.run import run
from coterie.engine.settings import Settings
from coterie.message import Message
from coterie.method import SGD, ClientRun, Cohort, Everyone, Hub, Method, Phase, Poisson, ServerRun, Site, Wrapper, as_run
from coterie.methods.fedavg import FedAvg, Training
from coterie.metrics.classification import Classification
from coterie.models.nets import mlp
from coterie.privacy.audit.bounds import Scores
from coterie.privacy.audit.broken import Fault, broken, push_of
from coterie.privacy.audit.canaries import coins, directions, sign_of
from coterie.privacy.guards import Guards
from coterie.privacy.secure_sum.settings import SecureSum
from coterie.recipes.population import build_population
from coterie.recipes.session import seeded
from coterie.reduce.mean import sums_behind
from coterie.states import ClientId, ServerState
from coterie.tensors import Groups, Tensors, add

Observed = Literal["sums", "final"]
"""What the attacker sees: every round's sum, or the final model alone."""


_NEIGHBOURS = 20  # of each client in a secure sum: pairs of hundreds of canaries would take minutes and show no more


@dataclass(frozen=True)
class WithCanaries(Wrapper):
    """A method whose clients from `first` on are canaries, watched by a server that knows their directions.

    A canary that is included sends `push` times its direction and the weight `weight`; one that is not sends zeros that
    weigh nothing, and its noise. `watched`: directions of which the server keeps score, canaries first.
    """

    seed: int
    first: int
    included: tuple[bool, ...]
    watched: int
    push: float
    weight: float
    observed: Observed
    expected: float

    def server_state(self, hub: Hub) -> Groups:
        scores = torch.zeros(self.watched, dtype=torch.float64)
        start = flat(self.inner.server_state(hub)["shared"]).double()
        return {**self.inner.server_state(hub), "audit": {"scores": scores, "start": start}}

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun | tuple[Groups, Message]:
        canary = site.client - self.first
        return self.inner.client(mine, down, site) if canary < 0 else (mine, self.canary_message(canary, down, site))

    def canary_message(self, canary: int, down: Message, site: Site) -> Message:
        part = 1.0 if self.included[canary] else 0.0
        sign = sign_of(site.round.index) if self.observed == "sums" else 1.0
        update = part * sign * self.push * self.directions_of(down["shared"])[canary]
        # the engine subtracts what it sent, and clips what is left
        return Message({"shared": add(down["shared"], shaped(update, down["shared"]))}, weight=torch.tensor(part * self.weight).double())

    def absorb(
        self, state: ServerState, mean: Message | None, each: Mapping[ClientId, Message], hub: Hub
    ) -> ServerState | ServerRun:
        after = yield from as_run(self.inner.absorb(state, mean, each, hub))
        seen, shared = after.shared["audit"], after.shared["shared"]
        if self.observed == "final":
            # the model moves by means, scores are in units of sums
            scores = self.expected * (self.directions_of(shared) @ (flat(shared).double() - seen["start"]))
        elif mean is None:
            return after
        else:
            total = flat(sums_behind(mean, expected=self.expected)["shared"])
            scores = seen["scores"] + sign_of(hub.round.index) * (self.directions_of(shared) @ total)
        return after.with_shared(audit={**seen, "scores": scores})

    def directions_of(self, like: Tensors) -> Tensor:
        return directions(self.seed, self.watched, sum(value.numel() for value in like.values()))


def flat(tensors: Tensors) -> Tensor:
    return torch.cat([value.reshape(-1) for value in tensors.values()])


def shaped(vector: Tensor, like: Tensors) -> Tensors:
    parts = torch.split(vector, [value.numel() for value in like.values()])
    return {name: part.reshape(value.shape).to(value) for part, (name, value) in zip(parts, like.items(), strict=True)}


@dataclass(frozen=True, kw_only=True)
class AuditedTraining:
    """Digits, softmax regression (more canaries: a larger net) and DP-FedAvg: `clients` honest ones, and canaries that push through the same guards.

    All clients share the noise of one guarantee, so the sum of a round carries noise * clip as claimed. With Poisson
    sampling the shares are those of half the expected cohort; a smaller round would carry too little noise.
    """

    noise: float
    clip: float = 1.0
    clients: int = 20
    rate: float = 1.0
    rounds: int = 2
    fault: Fault = "none"
    observed: Observed = "sums"
    secure_sum: bool = False
    lr: float = 0.1

    def __post_init__(self) -> None:
        if not self.noise > 0:
            raise ValueError(f"An audit needs a claim to hold against it: noise must be greater than 0, found {self.noise:g}. Use for example 1.")
        if self.fault == "seed-reused" and (self.rounds < 2 or self.rounds % 2 or self.observed == "final"):
            raise ValueError(
                f"A reused seed is found by differences of rounds, found {self.rounds} round(s) and observed={self.observed}. "
                "Use an even number of rounds, and observe sums."
            )

    def run(self, included: tuple[bool, ...], watched: int, *, seed: int, repeatable: bool, out: Path) -> tuple[Scores, float]:
        """One training: a score for each watched direction, and the accuracy of the model that it left."""
        net = seeded(seed, mlp, 64, 10, hidden=hidden_for(watched))
        honest = build_population("digits", clients=self.clients, partition="iid", seed=seed)
        population = with_more_clients(honest, len(included))
        largest = float(max(len(parts.train) for parts in population.parts))
        shares = len(population) if self.rate == 1.0 else max(1, int(self.rate * len(population) / 2))
        claimed = Guards(
            clip=self.clip, noise=self.noise, split="share", min_cohort=shares, n_max=largest,
            audit_seed=seed if repeatable else None, secure=SecureSum(neighbours=_NEIGHBOURS) if self.secure_sum else None,
        )  # fmt: skip
        method: Method = FedAvg(training=Training(optim=SGD(lr=self.lr), epochs=1, batch_size=32))
        cohort: Cohort = Everyone() if self.rate == 1.0 else Poisson(self.rate)
        audited = WithCanaries(
            method, seed=seed, first=self.clients, included=included, watched=watched, push=push_of(self.fault) * self.clip,
            weight=largest, observed=self.observed, expected=self.rate * len(population),
        )  # fmt: skip
        finish = run(
            (Phase("train", self.rounds, audited, cohort),), population, net=net, metric=Classification(10), out=out,
            guards=broken(claimed, self.fault, seed), about={"recipe": "audit", "method": "fedavg"},
            settings=Settings(seed=seed, backend="loop", devices="cpu", quiet=True, eval_every=self.rounds, checkpoint_every=self.rounds),
        )  # fmt: skip
        std = claimed.noise_std * math.sqrt(shares * self.rounds)
        scores: Scores = finish.state.shared["audit"]["scores"].numpy() / std
        return scores, accuracy_of(finish.evaluations)

    def canary_scores(self, canaries: int, *, seed: int, repeatable: bool, out: Path) -> tuple[Scores, Scores, float]:
        """Scores of directions that nobody pushed and of canaries, all of which took part."""
        scores, accuracy = self.run((True,) * canaries, 2 * canaries, seed=seed, repeatable=repeatable, out=out)
        return scores[canaries:], scores[:canaries], accuracy

    def one_run_scores(
        self, canaries: int, *, seed: int, repeatable: bool, out: Path
    ) -> tuple[Scores, np.ndarray[tuple[int], np.dtype[np.bool_]], float]:
        """The score and the coin of every canary."""
        included = coins(seed, canaries)
        scores, accuracy = self.run(tuple(map(bool, included)), canaries, seed=seed, repeatable=repeatable, out=out)
        return scores, included, accuracy


def hidden_for(watched: int) -> tuple[int, ...]:
    """Softmax regression (650 parameters), or beyond so many directions a hidden layer as wide as they need."""
    return () if watched <= 650 else (math.ceil((watched - 10) / 75),)


def with_more_clients(population: Population, more: int) -> Population:
    """Canaries hold no data of their own: each gets one example of the first client, which it never trains on, and no test."""
    first = population.parts[0]
    one, none = first.train.index[:1], first.train.index[:0]
    parts = ClientParts(*(replace(first.train, index=index) for index in (one, none, none)))
    names = tuple(f"canary-{number}" for number in range(more))
    return replace(population, names=(*population.names, *names), parts=[*population.parts, *[parts] * more], findings=())


def accuracy_of(lines: list[dict[str, Any]]) -> float:
    """Of the last global model, on the honest clients' test parts."""
    found = [line["accuracy"] for line in lines if line["model"] == "global" and line["split"] == "test"]
    return found[-1] if found else math.nan
