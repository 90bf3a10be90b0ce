"""The first thing to run: three methods on a real data set that needs no download."""

from __future__ import annotations

from coterie import methods
from coterie.data.examples import Population
from coterie.method import SGD
from coterie.methods.fedavg import Training
from coterie.metrics.classification import Classification
from coterie.models.net import Net
from coterie.models.nets import mlp
from coterie.recipes.population import build_population
from coterie.recipes.session import Session, seeded


def quickstart(
    session: Session, *, rounds: int = 30, clients: int = 10, beta: float = 0.1, lr: float = 0.3, epochs: int = 2,
    anchors: int = 64,
) -> None:  # fmt: skip
    """Local, FedAvg and FABLE on handwritten digits: 10 clients with skewed labels, in well under a minute."""
    population, net = digits(clients, beta, session.settings.seed)
    training = Training(optim=SGD(lr=lr), epochs=epochs, batch_size=32)
    plans = {
        "local": methods.local(rounds=rounds, training=training),
        "fedavg": methods.fedavg(rounds=rounds, training=training),
        "fable": methods.fable(rounds=rounds, training=training, anchors=anchors),
    }
    session.run_all(plans, population, net=net, metric=Classification(10))


def digits(clients: int, beta: float, seed: int) -> tuple[Population, Net]:
    """The digits of scikit-learn, spread over clients by Dirichlet(beta), and a small net for them."""
    population = build_population("digits", clients=clients, partition="dirichlet", beta=beta, seed=seed)
    return population, seeded(seed, mlp, 64, 10, hidden=(64,))
