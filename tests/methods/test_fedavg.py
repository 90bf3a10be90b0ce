"""FedAvg against plain loops, and what happens to batch-norm statistics."""

import pytest
import torch
import toy
from by_hand import batches, cross_entropy, descend, farthest, gradient, mean, plain_loss
from cases import BUFFER_CHANGES, COMMON_CHANGES, ROTA, Case, Rota, Toy, clients_of, every_round, norm_net, weights_of
from torch import nn

from coterie import methods
from coterie.method import SGD, Everyone, Phase
from coterie.methods.fedavg import FedAvg, Training, head_names, norm_names
from coterie.models.losses import CrossEntropy
from coterie.models.net import Net

CASES = {
    "fedavg": Case(
        changes={**COMMON_CHANGES, **BUFFER_CHANGES},
        wire=lambda f: every_round(
            f, up={"shared": f.b * f.P, "buffers": f.b * f.B, "weight": 8}, down={"shared": f.b * f.P, "buffers": f.b * f.B}
        ),
    )
}

LINEAR, NORM = "encoder.layer1.0", "encoder.layer1.1"


def test_fedavg_equals_plain_loops(go64):
    w, clients = weights_of(toy.net()), clients_of(toy.population())
    for t, cohort in enumerate(ROTA.rounds):
        found = []
        for k in cohort:
            x, y = clients[k]
            rows = batches(t, k, len(y), 8, epochs=2)
            found.append(descend(w, x, y, rows, 0.1, momentum=0.9, weight_decay=0.01)[0])
        w = mean(found, [len(clients[k][1]) for k in cohort])
    training = Training(optim=SGD(lr=0.1, momentum=0.9, weight_decay=0.01), epochs=2, batch_size=8)
    finish = go64(methods.fedavg(rounds=3, training=training, cohort=ROTA))
    assert farthest(finish.state.shared["shared"], w) < 1e-10


def test_one_full_batch_step_of_everybody_is_a_step_on_all_data(go64):
    """sum_k p_k (w - eta g_k) = w - eta g: the paper's FedSGD."""
    w, clients = weights_of(toy.net()), clients_of(toy.population())
    g = gradient(plain_loss, w, torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients]))
    plan = methods.fedavg(rounds=1, training=Training(optim=SGD(lr=0.1), batch_size=100))
    assert farthest(go64(plan).state.shared["shared"], {name: w[name] - 0.1 * g[name] for name in w}) < 1e-12


def test_momentum_stays_on_the_client_when_asked(go64):
    w, (x, y) = weights_of(toy.net()), clients_of(toy.population())[0]
    velocity = {name: torch.zeros_like(value) for name, value in w.items()}
    for t in range(3):
        for rows in batches(t, 0, len(y), 8, epochs=1):
            for name, g in gradient(plain_loss, w, x[rows], y[rows]).items():
                velocity[name] = 0.9 * velocity[name] + g
                w = {**w, name: w[name] - 0.1 * velocity[name]}
    training = Training(optim=SGD(lr=0.1, momentum=0.9), batch_size=8, keep_memory=True)
    finish = go64(methods.fedavg(rounds=3, training=training, cohort=Rota(((0,),))))
    assert farthest(finish.state.shared["shared"], w) < 1e-12
    assert farthest(finish.clients[0]["memory/shared/momentum"], velocity) < 1e-12


def statistics_after_one_step(w, x):
    """From mean 0 and variance 1: a tenth of the batch's own, its variance unbiased."""
    z = x @ w[f"{LINEAR}.weight"].T
    return {f"{NORM}.running_mean": 0.1 * z.mean(0), f"{NORM}.running_var": 0.9 + 0.1 * z.var(0)}


def one_step(buffers, go64):
    """One full-batch step of everybody, and the statistics that each client's step leaves behind."""
    clients = clients_of(toy.population())
    own = [statistics_after_one_step(weights_of(norm_net()), x) for x, _ in clients]
    plan = methods.fedavg(rounds=1, training=Training(batch_size=100), buffers=buffers)
    return go64(plan, Toy(net=norm_net)), own, clients


def test_average_shares_statistics_like_weights(go64):
    finish, own, clients = one_step("average", go64)
    assert farthest(finish.state.shared["buffers"], mean(own, [len(y) for _, y in clients])) < 1e-12
    assert all("buffers" not in row for row in finish.clients.values())


def test_local_keeps_every_clients_own_statistics(go64):
    finish, own, _ = one_step("local", go64)
    assert "buffers" not in finish.state.shared
    for k, expected in enumerate(own):
        assert farthest(finish.clients[k]["buffers"], expected) < 1e-12


def test_server_uses_the_servers_statistics_and_never_changes_them(go64):
    finish, _, clients = one_step("server", go64)
    first = {f"{NORM}.running_mean": torch.zeros(5), f"{NORM}.running_var": torch.ones(5)}
    assert farthest(finish.state.shared["buffers"], first) == 0
    assert all("buffers" not in row for row in finish.clients.values())

    def loss(w, x, y):  # with mean 0 and variance 1, a norm is z / sqrt(1 + eps) * gamma + beta
        z = (x @ w[f"{LINEAR}.weight"].T) / (1 + 1e-5) ** 0.5
        hidden = (z * w[f"{NORM}.weight"] + w[f"{NORM}.bias"]).clamp(min=0)
        return cross_entropy(hidden @ w["head.weight"].T + w["head.bias"], y)

    w = weights_of(norm_net())
    found = [descend(w, x, y, iter([torch.arange(len(y))]), 0.05, loss)[0] for x, y in clients]
    assert farthest(finish.state.shared["shared"], mean(found, [len(y) for _, y in clients])) < 1e-12


def test_bad_values_are_refused_with_a_cure():
    with pytest.raises(ValueError, match=r"buffers must be average, local or server, found 'averaged'\. Use"):
        FedAvg(buffers="averaged")
    with pytest.raises(ValueError, match=r"epochs or steps, found epochs=1, steps=5\. Give one"):
        Training(steps=5)
    with pytest.raises(ValueError, match=r"batch_size must be at least 1, found 0"):
        Training(batch_size=0)


@pytest.mark.parametrize("private", [norm_names, head_names])
def test_keeping_nothing_back_is_refused(private, tmp_path):
    bare = Toy(net=lambda: Net(nn.Linear(toy.FEATURES, toy.CLASSES), CrossEntropy()))
    with pytest.raises(ValueError, match=rf"FedAvg keeps the {private.__name__.removesuffix('_names')} of a net on the client, but this net has none"):
        bare.run((Phase("train", 1, FedAvg(private=private), Everyone()),), tmp_path)
