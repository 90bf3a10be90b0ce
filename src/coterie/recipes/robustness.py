"""What poisoned updates do to the mean, and what robust reductions keep: every reduction against every attack."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from rich.console import Console

from coterie import methods as known_methods
from coterie.attacks.poison import Attack, LyingScore
from coterie.attacks.poison.named import AttackName, named_attack
from coterie.data.examples import Population
from coterie.engine.folder import write_json
from coterie.engine.run import Finish, RunError
from coterie.method import SGD, Plan
from coterie.methods.fedavg import Training
from coterie.metrics.classification import Classification
from coterie.models.net import Net
from coterie.models.nets import cnn2
from coterie.recipes.population import build_population
from coterie.recipes.quickstart import digits
from coterie.recipes.scored import scored
from coterie.recipes.session import Session, seeded
from coterie.reduce.named import ReduceName, named_reduce
from coterie.reduce.seam import Reduce
from coterie.report.damage import Cell, damage_svg, damage_tables

CLEAN = "clean"
REDUCTIONS: tuple[str, ...] = get_args(ReduceName)
ATTACKS: tuple[str, ...] = tuple(name for name in get_args(AttackName) if name != "scaled10")


def robustness(
    session: Session, *, reductions: tuple[str, ...] = REDUCTIONS, attacks: tuple[str, ...] = ATTACKS,
    attackers: float = 0.2, data: Literal["digits", "cifar10"] = "digits", clients: int = 20, betas: tuple[float, ...] = (1.0, 0.1),
    seeds: tuple[int, ...] = (0, 1, 2), rounds: int = 20, lr: float = 0.3, epochs: int = 5, batch_size: int = 32, lies: bool = True,
    data_dir: str | None = None, limit: int | None = None,
) -> None:  # fmt: skip
    """Reductions against poisoning: FedAvg with a share of attackers, and how much of its accuracy every reduction keeps.

    Accuracy is the global model's on the test parts of the honest clients, and the same clients' where nobody attacks. Reductions are
    told how many attack (Krum's f, the trimmed fraction). Sign flip 10 and random 100 are meant to break the mean.

    --reductions mean,median,krum     which ones
    --attacks signflip10,backdoor     which ones
    --attackers 0.2                   share of clients that attack, drawn by the seed
    --betas 1,0.1                     Dirichlet label skews, one table each
    --lies                            a lying score under ISFA as well
    """
    training = Training(optim=SGD(lr=lr), epochs=epochs, batch_size=batch_size)
    plan = known_methods.fedavg(rounds=rounds, training=training)
    known: dict[str, Attack | None] = {CLEAN: None, **{name: named_attack(name, share=attackers) for name in attacks}}
    trial = Trial(session, {(b, s): _world(data, clients, b, s, data_dir, limit) for b in betas for s in seeds}, attackers, rounds)
    reduces = {name: named_reduce(name, clients, trial.num_attackers) for name in reductions}
    for (_, seed), (population, net) in trial.worlds.items():
        for reduce in reduces.values():
            for attack in known.values():
                session.check(plan, population, net=net, metric=Classification(10), reduce=reduce, attack=attack, settings=trial.settings(seed))
    cells = [
        trial.cell(beta, seed, name, attack, plan, reduce, known[attack])
        for beta in betas for seed in seeds for name, reduce in reduces.items() for attack in known
    ]  # fmt: skip
    found = [trial.lie(betas[0], seed, scored(rounds, training, _GAMMA, _N_MAX)) for seed in seeds] if lies else []
    facts: dict[str, Any] = {
        "accuracy": "global model, mean over the test parts of the honest clients",
        "attackers": {str(seed): list(trial.attackers(seed)) for seed in seeds},
        "cells": [cell.to_json() for cell in cells],
        "lying_score": found,
    }
    write_json(session.out / "robustness.json", facts)
    (session.out / "damage.svg").write_text(damage_svg(cells, betas), encoding="utf-8")
    if not session.settings.quiet:
        console = Console(highlight=False)
        for table in damage_tables(cells, betas, found):
            console.print(table)
        console.print(f"Picture: {session.out / 'damage.svg'}", soft_wrap=True)


_GAMMA, _N_MAX = 2.0, 64  # of the ISFA that is lied to


@dataclass(frozen=True, eq=False)
class Trial:
    """Everything that the cells of the grid share."""

    session: Session
    worlds: Mapping[tuple[float, int], tuple[Population, Net]]
    share: float
    rounds: int

    def settings(self, seed: int) -> Any:
        return replace(self.session.settings, seed=seed, eval_every=self.rounds)

    @property
    def num_attackers(self) -> int:
        return len(self.attackers(next(iter(self.worlds))[1]))

    def attackers(self, seed: int) -> tuple[int, ...]:
        population = next(iter(self.worlds.values()))[0]
        return named_attack("signflip", share=self.share).attackers(len(population), seed)

    def cell(
        self, beta: float, seed: int, name: str, attack_name: str, plan: Plan, reduce: Reduce, attack: Attack | None
    ) -> Cell:
        """One run, or how far it came before nobody could train any more."""
        population, net = self.worlds[beta, seed]
        folder = f"beta-{beta:g}/{name}/{attack_name}/seed-{seed}"
        first = next(iter(self.worlds))[0]
        try:
            finish = self.session.run(
                plan, population, net=net, metric=Classification(10), method=name, name=folder, reduce=reduce, attack=attack,
                settings=self.settings(seed), listed=attack is None and beta == first,
            )  # fmt: skip
        except RunError:  # every model has overflowed, the attackers' too
            return Cell(beta, seed, name, attack_name, None, None)
        success = (finish.summary["attack"] or {}).get("backdoor_success", {}).get("global")
        return Cell(beta, seed, name, attack_name, honest_accuracy(finish.path, self.attackers(seed)), success)

    def lie(self, beta: float, seed: int, plan: Plan) -> dict[str, Any]:
        """What a lying score gains under ISFA, alone and with an update turned round, and what a norm bound at the server leaves of it."""
        population, net = self.worlds[beta, seed]
        found: dict[str, Any] = {"beta": beta, "seed": seed}
        honest = named_attack("signflip", share=self.share)
        cases: dict[str, tuple[Attack | None, ReduceName]] = {
            "clean": (None, "mean"),
            "lie": (LyingScore(share=self.share, sharpness=_GAMMA, n_max=_N_MAX), "mean"),
            "flip": (honest, "mean"),
            "lie_and_flip": (LyingScore(share=self.share, sharpness=_GAMMA, n_max=_N_MAX, scale=-1.0), "mean"),
            "lie_and_flip10": (LyingScore(share=self.share, sharpness=_GAMMA, n_max=_N_MAX, scale=-10.0), "mean"),
            "lie_and_flip10_bounded": (LyingScore(share=self.share, sharpness=_GAMMA, n_max=_N_MAX, scale=-10.0), "normbound"),
        }
        for name, (attack, reduce) in cases.items():
            finish: Finish | None = None
            try:
                finish = self.session.run(
                    plan, population, net=net, metric=Classification(10), method="isfa", name=f"isfa/{name}/seed-{seed}", attack=attack,
                    reduce=named_reduce(reduce, len(population), self.num_attackers), settings=self.settings(seed), listed=False,
                )  # fmt: skip
            except RunError:
                found[name] = None
            else:
                found[name] = honest_accuracy(finish.path, self.attackers(seed))
            if finish is not None and name == "lie":
                told = finish.summary["attack"]
                found |= {"weight_gain": told["weight_gain"], "weight_gain_bound": told["weight_gain_bound"]}
        return found


def honest_accuracy(path: Path, attackers: tuple[int, ...]) -> float:
    """Mean accuracy of the global model over clients that never attack, at the last evaluation."""
    with (path / "clients.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["model"], row["split"]) == ("global", "test")]
    last = max(int(row["round"]) for row in rows)
    known = [float(row["accuracy"]) for row in rows if int(row["round"]) == last and int(row["client"]) not in attackers]
    return sum(known) / len(known) if known else math.nan


def _world(data: str, clients: int, beta: float, seed: int, data_dir: str | None, limit: int | None) -> tuple[Population, Net]:
    if data == "digits":
        return digits(clients, beta, seed)
    population = build_population(
        data, clients=clients, partition="dirichlet", beta=beta, seed=seed, data_dir=data_dir, limit=limit, merge_test=True, check=False
    )
    return population, seeded(seed, cnn2, 3, 32, 10)
