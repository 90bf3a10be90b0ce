"""Personalised methods on CIFAR-10 with skewed labels: a learning rate for each, then several seeds."""

from __future__ import annotations

from functools import partial
from typing import Literal

from coterie.data.examples import Population
from coterie.method import SGD, Plan
from coterie.methods.fedavg import Training
from coterie.models.net import Net
from coterie.models.nets import cnn2, resnet8, resnet18
from coterie.recipes.by_seed import BySeed, check_methods, plan_of
from coterie.recipes.poisoned import Poisoning
from coterie.recipes.population import build_population
from coterie.recipes.private import Privacy, told
from coterie.recipes.session import Session, seeded

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
    check_methods(methods, METHODS)
    training = Training(optim=SGD(lr=lrs[0], momentum=momentum, weight_decay=weight_decay), epochs=epochs, batch_size=batch_size)
    worlds = {seed: _world(net, seed, clients, beta, data_dir, limit) for seed in (selection_seed, *seeds)}
    who = privacy.cohort(cohort, clients)
    guarded = {seed: privacy.guards(who, population, rounds, session.settings) for seed, (population, _) in worlds.items()}
    session.tell(told(guarded[selection_seed]))

    def plan(method: str, lr: float) -> Plan:
        return plan_of(method, training, lr, rounds, anchors, who, (3, 32, 32))

    BySeed(session, worlds, plan, guarded, poisoning.options(who, clients)).run(methods, lrs, seeds, selection_seed)


def _world(net: str, seed: int, clients: int, beta: float, data_dir: str | None, limit: int | None) -> tuple[Population, Net]:
    population = build_population(
        "cifar10", clients=clients, partition="dirichlet", beta=beta, seed=seed, data_dir=data_dir, limit=limit, merge_test=True,
        check=False,  # one picture file, cut by rows: nothing that could be in two parts
    )  # fmt: skip
    nets = {"cnn2": partial(cnn2, 3, 32, 10), "resnet8": partial(resnet8, 3, 10), "resnet18": partial(resnet18, 3, 10)}
    return population, seeded(seed, nets[net])
