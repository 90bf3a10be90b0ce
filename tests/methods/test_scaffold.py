"""SCAFFOLD (option II) against plain loops."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
import toy
from by_hand import batches, farthest, gradient, mean, plain_loss
from cases import BUFFER_CHANGES, COMMON_CHANGES, ROTA, Case, Toy, clients_of, every_round, weights_of

from coterie import methods
from coterie.engine.run import RunError
from coterie.method import SGD, Adam, Everyone, Phase, Train
from coterie.methods.fedavg import FedAvg, Supervised, Training
from coterie.methods.local import Local
from coterie.methods.scaffold import Scaffold

CASES = {
    "scaffold": Case(
        changes={
            **COMMON_CHANGES, **BUFFER_CHANGES,
            "training.keep_memory": "only momentum and Adam have a memory, and both are refused",
        },
        told=("control",),  # c_i^+ - c_i is sent, by Algorithm 1
        wire=lambda f: every_round(
            f, up={"shared": f.b * f.P, "control": f.b * f.P, "buffers": f.b * f.B},
            down={"shared": f.b * f.P, "control": f.b * f.P, "buffers": f.b * f.B},
        ),
    )
}  # fmt: skip


@pytest.mark.parametrize("schedule", ["constant", "cosine_step"])
def test_scaffold_equals_plain_loops(schedule, go64):
    """Algorithm 1, lines 10, 12 (option II), 16 and 17; with a schedule, K eta_l is the sum of the rates."""
    x, clients = weights_of(toy.net()), clients_of(toy.population())
    zero = {name: torch.zeros_like(value) for name, value in x.items()}
    c, own = zero, [zero] * len(clients)
    for t, cohort in enumerate(ROTA.rounds):
        found, changes = [], []
        for k in cohort:
            data, labels = clients[k]
            rows = list(batches(t, k, len(labels), 8, epochs=2))
            cosine = [0.05 * (1 + math.cos(math.pi * s / len(rows))) for s in range(len(rows))]
            rates = cosine if schedule == "cosine_step" else [0.1] * len(rows)
            y = x
            for chosen, rate in zip(rows, rates, strict=True):
                g = gradient(plain_loss, y, data[chosen], labels[chosen])
                y = {n: y[n] - rate * (g[n] + c[n] - own[k][n]) for n in y}
            new = {n: own[k][n] - c[n] + (x[n] - y[n]) / sum(rates) for n in y}
            found.append(y)
            changes.append({n: new[n] - own[k][n] for n in new})
            own[k] = new
        x = mean(found, [1.0] * len(cohort))
        c = {n: c[n] + sum(change[n] for change in changes) / len(clients) for n in c}
    training = Training(optim=SGD(lr=0.1, schedule=schedule), epochs=2, batch_size=8)
    finish = go64(methods.scaffold(rounds=3, training=training, cohort=ROTA))
    assert farthest(finish.state.shared["shared"], x) < 1e-10
    assert farthest(finish.state.shared["control"], c) < 1e-10
    for k, control in enumerate(own):
        assert farthest(finish.clients[k]["control"], control) < 1e-10


def test_the_servers_control_is_the_mean_of_the_clients(go64):
    """True at any time in Algorithm 1: everybody starts at zero, and c moves by |S|/N of the mean change."""
    for cohort in (Everyone(), ROTA):
        finish = go64(methods.scaffold(rounds=3, training=Training(epochs=2), cohort=cohort))
        rows = [finish.clients[k]["control"] for k in range(4)]
        assert farthest(finish.state.shared["control"], mean(rows, [1.0] * 4)) < 1e-12


def test_a_population_of_one_is_fedavg(go64):
    """Null case: with N = 1 always c = c_i, so nothing is corrected."""
    alone = Toy(population=lambda: toy.population(sizes=(20,)))
    common = {"rounds": 3, "training": Training(optim=SGD(lr=0.1), batch_size=8)}
    one, two = (go64(make(**common), alone) for make in (methods.scaffold, methods.fedavg))
    assert farthest(one.state.shared["shared"], two.state.shared["shared"]) < 1e-12
    assert farthest(one.state.shared["control"], one.clients[0]["control"]) < 1e-12


@pytest.mark.parametrize("optim", [SGD(lr=0.1, momentum=0.9), Adam(lr=0.01)])
def test_momentum_is_refused_with_a_cure(optim, go64):
    with pytest.raises(RunError, match=r"SCAFFOLD's correction holds for plain SGD .* Use SGD\(lr=\.\.\.\) without momentum"):
        go64(methods.scaffold(rounds=1, training=Training(optim=optim)))


@dataclass(frozen=True, kw_only=True)
class Polished(FedAvg):
    """FedAvg whose server trains a step on data of its own."""

    def absorb(self, state, mean, each, hub):
        after = super().absorb(state, mean, each, hub)
        ask = Train(
            params={"shared": after.shared["shared"]}, loss=Supervised(), optim=SGD(lr=0.1), steps=1,
            streams={"local": hub.data["public"]},
        )  # fmt: skip
        got = yield from ask
        return after.with_shared(shared=got.params["shared"])


def test_a_rate_of_zero_is_refused_with_a_cure(go64):
    with pytest.raises(RunError, match="divide by the learning rate, found 0"):
        go64(methods.scaffold(rounds=1, training=Training(optim=SGD(lr=0.0))))


def test_it_wraps_a_method_whose_server_trains(go64):
    """With N = 1 nothing is corrected, so the wrapped method is the method, its server's own training included."""
    people = toy.population(sizes=(20,))
    alone = Toy(population=lambda: replace(people, public={"public": people.parts[0].validation}))
    one, two = (go64((Phase("train", 2, m),), alone) for m in (Scaffold(Polished()), Polished()))
    assert farthest(one.state.shared["shared"], two.state.shared["shared"]) < 1e-12


def test_a_method_that_shares_nothing_is_refused_with_a_cure(go64):
    with pytest.raises(ValueError, match=r"corrects what is shared and averaged, but Local sends nothing\. Wrap a method with a 'shared'"):
        go64((Phase("train", 1, Scaffold(Local())),))
