"""Personalised methods on CIFAR-10 with skewed labels: a learning rate for each, then several seeds."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from coterie import methods as known_methods
from coterie.data.examples import Population
from coterie.method import SGD, Cohort, Plan
from coterie.methods.fedavg import Training
from coterie.metrics.classification import Classification
from coterie.models.net import Net
from coterie.models.nets import cnn2, resnet8, resnet18
from coterie.options import nearest
from coterie.privacy.guards import Guards
from coterie.recipes.compare_digits import build_plan
from coterie.recipes.poisoned import Poisoning
from coterie.recipes.population import build_population
from coterie.recipes.private import Privacy, told
from coterie.recipes.session import Session, seeded

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedper_normalised": ("fedper", {"normalise": True}),
    "fable": ("fable", {"linear": False}),
    "fable_linear": ("fable", {"linear": True}),
}
METHODS = ("local", "fedavg", "fedper", "fedper_normalised", "fedrep", "ditto", "fable", "fable_linear")


def compare_cifar10(
    session: Session, *, methods: tuple[str, ...] = METHODS, rounds: int = 10, clients: int = 20, beta: float = 0.1,
    lrs: tuple[float, ...] = (0.01, 0.03, 0.1), seeds: tuple[int, ...] = (0, 1, 2), selection_seed: int = 100,
    momentum: float = 0.9, weight_decay: float = 5e-4, epochs: int = 1, batch_size: int = 64, anchors: int = 512,
    cohort: int | None = None, data_dir: str | None = None, limit: int | None = None,
    net: Literal["cnn2", "resnet8", "resnet18"] = "cnn2", privacy: Privacy = Privacy(),
    poisoning: Poisoning = Poisoning(),
) -> None:  # fmt: skip
    """Personalised methods on CIFAR-10, 20 clients, Dirichlet 0.1: the learning rate from a seed of its own.

    The rate of every method is the one with the best personal accuracy on validation parts after the last round of
    --selection-seed; then every seed runs with it. Official train and test pictures are pooled and cut 80/20 on
    every client. FABLE is run plain and with its linear scaling, FedPer also with normalised features.
    """
    for method in methods:
        if method not in METHODS and method not in known_methods.__all__:
            raise ValueError(f"Unknown method '{method}'. {nearest(method, [*METHODS, *known_methods.__all__])}")
    training = Training(optim=SGD(lr=lrs[0], momentum=momentum, weight_decay=weight_decay), epochs=epochs, batch_size=batch_size)
    worlds = {seed: _world(net, seed, clients, beta, data_dir, limit) for seed in (selection_seed, *seeds)}
    who = privacy.cohort(cohort, clients)
    guarded = {seed: privacy.guards(who, population, rounds, session.settings) for seed, (population, _) in worlds.items()}
    session.tell(told(guarded[selection_seed]))
    poison = poisoning.options(who, clients)
    for method in methods:
        best = lrs[0]
        if len(lrs) > 1:
            scores = {
                lr: _select(session, method, lr, training, rounds, anchors, who, selection_seed, worlds, guarded[selection_seed], poison) for lr in lrs
            }
            best = max(scores, key=lambda lr: -math.inf if math.isnan(scores[lr]) else scores[lr])
        plan = _plan(method, _with_rate(training, best), rounds, anchors, who)
        for seed in seeds:
            population, model = worlds[seed]
            session.run(
                plan, population, net=model, metric=Classification(10), method=method, name=f"{method}/seed-{seed}",
                settings=replace(session.settings, seed=seed), guards=guarded[seed], **poison,
            )  # fmt: skip


def _select(
    session: Session, method: str, lr: float, training: Training, rounds: int, anchors: int, who: Cohort, seed: int,
    worlds: dict[int, tuple[Population, Net]], guards: Guards, poison: dict[str, Any],
) -> float:  # fmt: skip
    """The validation accuracy after the last round with this rate."""
    population, net = worlds[seed]
    plan = _plan(method, _with_rate(training, lr), rounds, anchors, who)
    settings = replace(session.settings, seed=seed, eval_every=rounds)
    finish = session.run(
        plan, population, net=net, metric=Classification(10), method=method, name=f"select/{method}/lr-{lr:g}",
        settings=settings, listed=False, guards=guards, **poison,
    )  # fmt: skip
    last = [row for row in finish.evaluations if row["model"] == "personal" and row["split"] == "validation"][-1]
    return math.nan if last["accuracy"] is None else float(last["accuracy"])


def _plan(method: str, training: Training, rounds: int, anchors: int, who: Cohort) -> Plan:
    name, own = VARIANTS.get(method, (method, {}))
    own = {**own, "anchors": anchors} if name == "fable" else own
    return build_plan(name, rounds, training, "average", who, own, (3, 32, 32))


def _with_rate(training: Training, lr: float) -> Training:
    return replace(training, optim=replace(training.optim, lr=lr))


def _world(net: str, seed: int, clients: int, beta: float, data_dir: str | None, limit: int | None) -> tuple[Population, Net]:
    population = build_population(
        "cifar10", clients=clients, partition="dirichlet", beta=beta, seed=seed, data_dir=data_dir, limit=limit, merge_test=True,
        check=False,  # one picture file, cut by rows: nothing that could be in two parts
    )  # fmt: skip
    nets = {"cnn2": partial(cnn2, 3, 32, 10), "resnet8": partial(resnet8, 3, 10), "resnet18": partial(resnet18, 3, 10)}
    return population, seeded(seed, nets[net])
