"""Client-level differential privacy on CIFAR-10: accuracy against epsilon, with a net small enough for the noise."""

from __future__ import annotations

from typing import Literal

from coterie.data.examples import Population
from coterie.method import SGD, Cohort, Plan
from coterie.methods.fedavg import Training
from coterie.models.net import Net
from coterie.models.nets import cnn3
from coterie.recipes.compare_digits import build_plan
from coterie.recipes.population import build_population
from coterie.recipes.privacy_curve import Curve, read_epsilons, run_curve
from coterie.recipes.private import Privacy
from coterie.recipes.session import Session, seeded


def dp_cifar10(
    session: Session, *, methods: tuple[str, ...] = ("fedavg",), epsilons: tuple[str, ...] = ("1", "2", "4", "8", "inf"),
    seeds: tuple[int, ...] = (0, 1, 2), rounds: int = 30, clients: int = 1000, rate: float = 0.2,
    partition: Literal["iid", "dirichlet"] = "iid", beta: float = 1.0, lr: float = 0.2, epochs: int = 1, batch_size: int = 16,
    data_dir: str | None = None, limit: int | None = None, privacy: Privacy = Privacy(clip=0.5),
) -> None:  # fmt: skip
    """What client-level privacy costs on CIFAR-10: accuracy against epsilon, over several seeds.

    1,000 clients of 60 pictures (official train and test together, cut 80/20 on every client), a net of three convolutions
    without batch norm (20,234 parameters). Every epsilon has its own noise, found by the accountant for these rounds and this rate.
    Writes a table, a picture and JSON.

    --epsilons 1,8,inf  inf is clipped, without noise
    --seeds 0,1,2       intervals are over these
    --rate 0.2          chance of each client to take part in a round
    """
    training = Training(optim=SGD(lr=lr), epochs=epochs, batch_size=batch_size)

    def plan(method: str, cohort: Cohort) -> Plan:
        return build_plan(method, rounds, training, "average", cohort, {}, (3, 32, 32))

    worlds: dict[int, Population] = {}

    def world(method: str, seed: int) -> tuple[Population, Net]:
        if seed not in worlds:
            worlds.clear()  # one copy of the pictures at a time
            worlds[seed] = build_population(
                "cifar10", clients=clients, partition=partition, beta=beta, seed=seed, data_dir=data_dir, limit=limit, merge_test=True,
                check=False,  # one picture file, cut by rows: nothing that could be in two parts
            )  # fmt: skip
        return worlds[seed], seeded(seed, cnn3, 3, 10)

    how = "IID" if partition == "iid" else f"Dirichlet {beta:g}"
    run_curve(
        session,
        Curve(
            f"CIFAR-10, {clients:,} clients ({how}), {rounds} rounds at rate {rate:g}", methods, read_epsilons(epsilons), seeds, rounds,
            clients, rate, plan, world,
        ),
        privacy,
    )  # fmt: skip
