"""Methods over several seeds: each at the learning rate that validation parts of a seed of its own choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coterie import methods as known_methods
from coterie.data.examples import Population
from coterie.method import Cohort, Plan
from coterie.methods.fedavg import Training
from coterie.metrics.classification import Classification
from coterie.models.net import Net
from coterie.options import nearest
from coterie.privacy.guards import Guards
from coterie.recipes.compare_digits import build_plan
from coterie.recipes.session import Session

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedper_normalised": ("fedper", {"normalise": True}),
    "fable": ("fable", {"linear": False}),
    "fable_linear": ("fable", {"linear": True}),
}


@dataclass(frozen=True)
class BySeed:
    """Everything that the runs of a comparison share; a world is a seed's clients and first net."""

    session: Session
    worlds: Mapping[int, tuple[Population, Net]]
    plan: Callable[[str, float], Plan]  # of a method at a rate
    guards: Mapping[int, Guards]
    options: Mapping[str, Any]  # further ones of Session.run

    def run(self, methods: Sequence[str], lrs: Sequence[float], seeds: Sequence[int], selection_seed: int) -> None:
        """With several rates, the one with the best personal accuracy on validation parts after the last round."""
        for method in methods:
            best = lrs[0]
            if len(lrs) > 1:
                scores = {lr: self.score(method, lr, selection_seed) for lr in lrs}
                best = max(scores, key=lambda lr: -math.inf if math.isnan(scores[lr]) else scores[lr])
            for seed in seeds:
                population, net = self.worlds[seed]
                self.session.run(
                    self.plan(method, best), population, net=net, metric=metric_of(population), method=method,
                    name=f"{method}/seed-{seed}", settings=replace(self.session.settings, seed=seed), guards=self.guards[seed],
                    **self.options,
                )  # fmt: skip

    def score(self, method: str, lr: float, seed: int) -> float:
        """The validation accuracy after the last round with this rate."""
        population, net = self.worlds[seed]
        plan = self.plan(method, lr)
        settings = replace(self.session.settings, seed=seed, eval_every=sum(phase.rounds for phase in plan))
        finish = self.session.run(
            plan, population, net=net, metric=metric_of(population), method=method, name=f"select/{method}/lr-{lr:g}",
            settings=settings, listed=False, guards=self.guards[seed], **self.options,
        )  # fmt: skip
        last = [row for row in finish.evaluations if row["model"] == "personal" and row["split"] == "validation"][-1]
        return math.nan if last["accuracy"] is None else float(last["accuracy"])


def metric_of(population: Population) -> Classification:
    assert population.num_classes is not None
    return Classification(population.num_classes)


def check_methods(methods: Sequence[str], known: Sequence[str]) -> None:
    for method in methods:
        if method not in known and method not in known_methods.__all__:
            raise ValueError(f"Unknown method '{method}'. {nearest(method, [*known, *known_methods.__all__])}")


def plan_of(method: str, training: Training, lr: float, rounds: int, anchors: int, who: Cohort, shape: tuple[int, ...]) -> Plan:
    """A method or one of its variants, with this rate."""
    name, own = VARIANTS.get(method, (method, {}))
    own = {**own, "anchors": anchors} if name == "fable" else own
    return build_plan(name, rounds, replace(training, optim=replace(training.optim, lr=lr)), "average", who, own, shape)
