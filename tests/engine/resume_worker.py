"""A process for tests of kill -9: it runs one method on the toy population, slowly enough to be shot."""

from __future__ import annotations

import sys
import time

import torch
from toy import CLASSES, FEATURES, net, population

from coterie import methods
from coterie.engine.run import Silent, run
from coterie.engine.settings import Settings
from coterie.method import SGD, Fixed, Plan
from coterie.methods.fedavg import Training
from coterie.metrics.classification import Classification


class Slow(Silent):
    def round(self, index: int, phase: str, seconds: float, value: float | None, bytes_total: int) -> None:
        print(index, flush=True)
        time.sleep(0.15)


def plan_of(name: str, rounds: int) -> Plan:
    training = Training(optim=SGD(lr=0.1), batch_size=8)
    if name == "fable":
        return methods.fable(rounds=rounds, training=training, cohort=Fixed(3), anchors=12)
    if name == "fl_gap":  # its last two rounds are another phase
        return methods.fl_gap(
            rounds=rounds - 2, input_shape=(FEATURES,), training=training, cohort=Fixed(3), knn=2, personal_rounds=2
        )
    plan: Plan = getattr(methods, name)(rounds=rounds, training=training, cohort=Fixed(3))
    return plan


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, rounds, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    run(
        plan_of(name, rounds), population(), net=net(), metric=Classification(CLASSES), out=out,
        settings=Settings(backend="loop", quiet=True), watcher=Slow(), resume=True,
    )  # fmt: skip
