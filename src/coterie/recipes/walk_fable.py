"""FABLE, walking: what anchors do, in half a minute."""

from __future__ import annotations

from coterie import methods
from coterie.method import SGD
from coterie.methods.fedavg import Training
from coterie.metrics.classification import Classification
from coterie.recipes.private import Privacy, told
from coterie.recipes.quickstart import digits
from coterie.recipes.session import Session


def walk_fable(
    session: Session, *, rounds: int = 30, clients: int = 10, beta: float = 0.1, anchors: int = 64, lr: float = 0.3,
    epochs: int = 2, cohort: int | None = None, privacy: Privacy = Privacy(),
) -> None:  # fmt: skip
    """FABLE with and without its linear scaling, beside Local, FedAvg and FedPer, on handwritten digits."""
    population, net = digits(clients, beta, session.settings.seed)
    training = Training(optim=SGD(lr=lr), epochs=epochs, batch_size=32)
    who = privacy.cohort(cohort, len(population))
    guards = privacy.guards(who, population, rounds, session.settings)
    session.tell(told(guards))
    plans = {
        "local": methods.local(rounds=rounds, training=training, cohort=who),
        "fedavg": methods.fedavg(rounds=rounds, training=training, cohort=who),
        "fedper": methods.fedper(rounds=rounds, training=training, cohort=who),
        "fable": methods.fable(rounds=rounds, training=training, cohort=who, anchors=anchors, linear=False),
        "fable_linear": methods.fable(rounds=rounds, training=training, cohort=who, anchors=anchors, linear=True),
    }
    for name, plan in plans.items():
        session.run(plan, population, net=net, metric=Classification(10), method=name, name=name, guards=guards)
