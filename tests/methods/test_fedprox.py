"""FedProx against plain loops; without the pull it is the inner method bit for bit."""

import pytest
import torch
import toy
from by_hand import batches, descend, farthest, mean
from cases import BUFFER_CHANGES, COMMON_CHANGES, ROTA, Case, Toy, clients_of, norm_net, weights_of
from test_fedavg import CASES as FEDAVG

from coterie import methods
from coterie.engine.run import RunError
from coterie.method import SGD, Phase
from coterie.methods.fedavg import Training
from coterie.methods.fedper import FedPer
from coterie.methods.fedprox import Proximal
from coterie.methods.local import Local

CASES = {"fedprox": Case(changes={**COMMON_CHANGES, **BUFFER_CHANGES, "mu": (0.5, {})}, wire=FEDAVG["fedavg"].wire)}

TRAINING = Training(optim=SGD(lr=0.1, momentum=0.9), epochs=2, batch_size=8)


def test_fedprox_equals_plain_loops(go64):
    w, clients, mu = weights_of(toy.net()), clients_of(toy.population()), 0.3
    for t, cohort in enumerate(ROTA.rounds):
        received, found = w, []

        def pull(v, received=received):
            return {name: mu * (v[name] - received[name]) for name in v}

        for k in cohort:
            x, y = clients[k]
            found.append(descend(received, x, y, batches(t, k, len(y), 8, epochs=2), 0.1, momentum=0.9, extra=pull)[0])
        w = mean(found, [len(clients[k][1]) for k in cohort])
    finish = go64(methods.fedprox(rounds=3, training=TRAINING, cohort=ROTA, mu=mu))
    assert farthest(finish.state.shared["shared"], w) < 1e-10


def test_mu_0_is_fedavg_bit_for_bit(tmp_path):
    """Batch norm, float32 and all logs included."""
    common = {"rounds": 3, "training": Training(optim=SGD(lr=0.1, momentum=0.9), epochs=2, batch_size=10), "cohort": ROTA}
    one = Toy(net=norm_net).run(methods.fedavg(**common), tmp_path / "fedavg")
    two = Toy(net=norm_net).run(methods.fedprox(**common, mu=0.0), tmp_path / "fedprox")
    for group, tensors in one.state.shared.items():
        for name, value in tensors.items():
            assert torch.equal(value, two.state.shared[group][name])
    for log in ("clients.csv", "wire.jsonl"):
        assert (one.path / log).read_bytes() == (two.path / log).read_bytes()
    assert one.summary["results"] == two.summary["results"]


def test_only_what_is_shared_is_pulled(go64):
    """With lr mu = 1 every step starts again from the received encoder; the head goes on as if nothing were there."""
    strong = Training(optim=SGD(lr=1e-4), epochs=2, batch_size=8)
    finish = go64((Phase("train", 1, Proximal(1e4, FedPer(training=strong)), ROTA),))
    free = go64((Phase("train", 1, FedPer(training=strong), ROTA),))
    start = weights_of(toy.net())

    def moved(values):
        return max(float((values[name] - start[name]).abs().max()) for name in values)

    assert moved(finish.state.shared["shared"]) < 0.5 * moved(free.state.shared["shared"])
    assert moved(finish.clients[0]["private"]) > 0.9 * moved(free.clients[0]["private"])


def test_bad_values_are_refused_with_a_cure(go64):
    for mu in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=rf"mu must be a number >= 0, found {mu}\. Use"):
            methods.fedprox(rounds=1, mu=mu)
    with pytest.raises(RunError, match="An edit of asks that move 'shared' matched none"):
        go64((Phase("train", 1, Proximal(0.1, Local())),))
