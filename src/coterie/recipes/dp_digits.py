"""Client-level differential privacy on handwritten digits: accuracy against epsilon."""

from __future__ import annotations

from typing import Literal

from coterie.data.examples import Population
from coterie.method import SGD, Cohort, Plan
from coterie.methods.fedavg import Training
from coterie.models.net import Net
from coterie.models.nets import mlp
from coterie.recipes.compare_digits import SHAPE, build_plan
from coterie.recipes.population import build_population
from coterie.recipes.privacy_curve import Curve, read_epsilons, run_curve
from coterie.recipes.private import Privacy
from coterie.recipes.session import Session, seeded

NEED_ENCODER = ("fable", "fedper", "fedrep")  # they share what softmax regression does not have


def dp_digits(
    session: Session, *, methods: tuple[str, ...] = ("fedavg", "scaffold", "fable"), epsilons: tuple[str, ...] = ("1", "2", "4", "8", "inf"),
    seeds: tuple[int, ...] = (0, 1, 2), rounds: int = 100, clients: int = 300, rate: float = 0.1,
    partition: Literal["iid", "dirichlet"] = "dirichlet", beta: float = 1.0, lr: float = 0.5, epochs: int = 3, batch_size: int = 32, hidden: int = 0,
    privacy: Privacy = Privacy(clip=0.5, clip_mode="groups", clip_groups="slots"),
) -> None:  # fmt: skip
    """What client-level privacy costs on handwritten digits: accuracy against epsilon, for several methods and seeds.

    300 clients of about 6 pictures (4 of them to train on), softmax regression (650 parameters). Methods that share an encoder
    get one hidden layer of 16. SCAFFOLD's update and its control variates have half of the squared clip each. Every epsilon has
    its own noise, found by the accountant for these rounds and this rate. Writes a table, a picture and JSON.

    --methods fedavg,scaffold,fable  which ones (coterie list)
    --epsilons 1,8,inf               inf is clipped, without noise
    --seeds 0,1,2                    intervals are over these
    --rate 0.1                       chance of each client to take part in a round
    --hidden 16                      width of a hidden layer; 0 for softmax regression where the method allows it
    """
    training = Training(optim=SGD(lr=lr), epochs=epochs, batch_size=batch_size)

    def plan(method: str, cohort: Cohort) -> Plan:
        return build_plan(method, rounds, training, "average", cohort, {}, SHAPE)

    worlds: dict[int, Population] = {}

    def world(method: str, seed: int) -> tuple[Population, Net]:
        if seed not in worlds:
            worlds[seed] = build_population("digits", clients=clients, partition=partition, beta=beta, seed=seed)
        width = hidden or (16 if method in NEED_ENCODER else 0)
        return worlds[seed], seeded(seed, mlp, 64, 10, hidden=(width,) if width else ())

    how = "IID" if partition == "iid" else f"Dirichlet {beta:g}"
    run_curve(
        session,
        Curve(
            f"Digits, {clients} clients ({how}), {rounds} rounds at rate {rate:g}", methods, read_epsilons(epsilons), seeds, rounds, clients,
            rate, plan, world,
        ),
        privacy,
    )  # fmt: skip
