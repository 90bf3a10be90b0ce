"""Methods on news articles: a learning rate for each, then several seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from coterie import methods as known_methods
from coterie.data.examples import Population
from coterie.method import SGD, Plan
from coterie.methods.fedavg import Training
from coterie.models.net import Net
from coterie.models.text import small_transformer, text_transformer, word_mean
from coterie.recipes.by_seed import BySeed, check_methods, plan_of
from coterie.recipes.poisoned import Poisoning
from coterie.recipes.population import build_population
from coterie.recipes.private import Privacy, told
from coterie.recipes.session import Session, seeded

UNSUITED = ("centralized", "fedbn", "fedxds", "fl_gap", "privfedtalk")  # they need pooled data, batch norms, pictures or sound
METHODS = (*(name for name in known_methods.__all__ if name not in UNSUITED), "fable_linear", "fedper_normalised")
_NETS: dict[str, Callable[..., Net]] = {"mean": word_mean, "small": small_transformer, "paper": text_transformer}
_LEAST_CLIENT = 50  # of PFLlib's Dirichlet partition


def compare_text(
    session: Session, *, data: Literal["ag_news", "sogou_news"] = "ag_news", methods: tuple[str, ...] = METHODS,
    rounds: int = 10, clients: int = 20, partition: Literal["dirichlet", "iid"] = "dirichlet", beta: float = 0.1,
    lrs: tuple[float, ...] = (0.1, 0.3), seeds: tuple[int, ...] = (0, 1, 2), selection_seed: int = 100, momentum: float = 0.9,
    weight_decay: float = 5e-4, epochs: int = 1, batch_size: int = 32, anchors: int = 128, cohort: int | None = None,
    net: Literal["mean", "small", "paper"] = "mean", vocab: int = 4096, length: int = 48,
    vocabulary: Literal["hash", "public"] = "hash", data_dir: str | None = None, limit: int | None = None,
    privacy: Privacy = Privacy(), poisoning: Poisoning = Poisoning(),
) -> None:  # fmt: skip
    """Methods on news articles, 20 clients: the learning rate from a seed of its own, as in compare_cifar10.

    Official train and test articles are pooled and cut 80/20 on every client. SCAFFOLD trains without momentum.

    --net         mean of word embeddings, a transformer of one small layer, or FABLE's (2 layers of 512; --vocab 32000 --length 200)
    --length      longer texts are cut, and counted
    --vocabulary  words hashed to --vocab numbers, or the most frequent ones of 5 % of the articles, which no client holds
    """
    check_methods(methods, METHODS)
    training = Training(optim=SGD(lr=lrs[0], momentum=momentum, weight_decay=weight_decay), epochs=epochs, batch_size=batch_size)
    plain = replace(training, optim=SGD(lr=lrs[0], weight_decay=weight_decay))  # SCAFFOLD's correction holds without momentum
    share = 0.05 if vocabulary == "public" else 0.0

    def world(seed: int) -> tuple[Population, Net]:
        population = build_population(
            data, clients=clients, partition=partition, beta=beta, seed=seed, data_dir=data_dir, limit=limit, merge_test=True,
            balanced=True, min_size=_LEAST_CLIENT if limit is None else None, check=False,
            options={"form": "tokens", "vocab": vocab, "length": length, "public_share": share},
        )  # fmt: skip
        return population, seeded(seed, _NETS[net], len(population.classes), vocab, length)

    worlds = {seed: world(seed) for seed in dict.fromkeys((*seeds, *([selection_seed] if len(lrs) > 1 else [])))}
    for finding in next(iter(worlds.values()))[0].findings:
        if finding.kind in ("truncated", "vocabulary"):
            session.tell(f"{finding.text}.")
    who = privacy.cohort(cohort, clients)
    guarded = {seed: privacy.guards(who, population, rounds, session.settings) for seed, (population, _) in worlds.items()}
    session.tell(told(guarded[seeds[0]]))

    def plan(method: str, lr: float) -> Plan:
        return plan_of(method, plain if method == "scaffold" else training, lr, rounds, anchors, who, (length,))

    BySeed(session, worlds, plan, guarded, poisoning.options(who, clients)).run(methods, lrs, seeds, selection_seed)
