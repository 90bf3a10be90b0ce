"""FedAvg against plain loops, and what happens to batch-norm statistics."""

import pytest
import toy
import torch
from by_hand import batches, descend, farthest, gradient, mean
from cases import BUFFER_CHANGES, COMMON_CHANGES, ROTA, Case, Toy, every_round, norm_net

from coterie import methods
from coterie.method import SGD, Everyone, Phase
from coterie.methods.fedavg import FedAvg, Training, head_names, norm_names
from coterie.models.nets import mlp

CASES = {
    "fedavg": Case(
        changes={**COMMON_CHANGES, **BUFFER_CHANGES},
        wire=lambda f: every_round(
            f, up={"shared": f.b * f.P, "buffers": f.b * f.B, "weight": 8}, down={"shared": f.b * f.P, "buffers": f.b * f.B}
        ),
    )
}

TRAINING = Training(optim=SGD(lr=0.1, momentum=0.9, weight_decay=0.01), epochs=2, batch_size=8)


def start(net):
    return {name: value.double() for name, value in net.params.items()}


def data():
    return [{name: v.double() if v.is_floating_point() else v for name, v in p.train.all_rows().items()} for p in toy.population()]


def test_fedavg_equals_plain_loops(go64):
    w, clients = start(toy.net()), data()
    for t, cohort in enumerate(ROTA.rounds):
        found = []
        for k in cohort:
            x, y = clients[k]["x"], clients[k]["y"]
            rows = batches(t, k, len(y), 8, epochs=2)
            found.append(descend(w, x, y, rows, 0.1, momentum=0.9, weight_decay=0.01)[0])
        w = mean(found, [len(clients[k]["y"]) for k in cohort])
    finish = go64(methods.fedavg(rounds=3, training=TRAINING, cohort=ROTA))
    assert farthest(finish.state.shared["shared"], w) < 1e-10


def test_one_full_batch_step_with_everybody_is_gradient_descent_on_all_data(go64):
    """sum_k p_k (w - eta g_k) = w - eta g: McMahan's FedSGD, equation by equation."""
    w, clients = start(toy.net()), data()
    x, y = (torch.cat([client[name] for client in clients]) for name in ("x", "y"))
    g = gradient(lambda w, x, y: torch.nn.functional.cross_entropy(oracle_logits(w, x), y), w, x, y)
    plan = methods.fedavg(rounds=1, training=Training(optim=SGD(lr=0.1), batch_size=100))
    expected = {name: w[name] - 0.1 * g[name] for name in w}
    assert farthest(go64(plan).state.shared["shared"], expected) < 1e-12


def oracle_logits(w, x):
    return torch.relu(x @ w["encoder.layer1.1.weight"].T + w["encoder.layer1.1.bias"]) @ w["head.weight"].T + w["head.bias"]


def test_momentum_stays_on_the_client_when_asked(go64):
    w, x, y = start(toy.net()), *(data()[0][name] for name in ("x", "y"))
    velocity = {name: torch.zeros_like(value) for name, value in w.items()}
    for t in range(3):
        for rows in batches(t, 0, len(y), 8, epochs=1):
            for name, g in gradient(plain, w, x[rows], y[rows]).items():
                velocity[name] = 0.9 * velocity[name] + g
                w = {**w, name: w[name] - 0.1 * velocity[name]}
    training = Training(optim=SGD(lr=0.1, momentum=0.9), batch_size=8, keep_memory=True)
    finish = go64(methods.fedavg(rounds=3, training=training, cohort=Only(0)))
    assert farthest(finish.state.shared["shared"], w) < 1e-12
    assert farthest(finish.clients[0]["memory/shared/momentum"], velocity) < 1e-12


def plain(w, x, y):
    return torch.nn.functional.cross_entropy(oracle_logits(w, x), y)


def Only(client):
    return type(ROTA)(((client,),))


@pytest.mark.parametrize("choice", ["average", "local", "server"])
def test_batch_norm_statistics_by_choice(choice, go64):
    """One full-batch step of everybody, with the statistics written out: momentum 0.1, unbiased variance."""
    clients, first = data(), norm_net()
    w = start(first)
    inputs = [c["x"] @ w["encoder.layer1.0.weight"].T + w["encoder.layer1.0.bias"] for c in clients]
    own = [(0.1 * z.mean(0), 0.9 + 0.1 * z.var(0)) for z in inputs]  # from running mean 0, variance 1
    plan = methods.fedavg(rounds=1, training=Training(batch_size=100), buffers=choice)
    finish = go64(plan, Toy(net=norm_net))
    shared, rows = finish.state.shared, finish.clients
    names = ("encoder.layer1.1.running_mean", "encoder.layer1.1.running_var")
    sizes = [len(c["y"]) for c in clients]
    if choice == "average":
        for i, name in enumerate(names):
            expected = sum(n * stats[i] for n, stats in zip(sizes, own, strict=True)) / sum(sizes)
            assert (shared["buffers"][name] - expected).abs().max() < 1e-12
        assert all("buffers" not in row for row in rows.values())
    if choice == "local":
        assert "buffers" not in shared
        for k, stats in enumerate(own):
            for name, expected in zip(names, stats, strict=True):
                assert (rows[k]["buffers"][name] - expected).abs().max() < 1e-12
    if choice == "server":
        assert torch.equal(shared["buffers"][names[0]], torch.zeros(5)) and torch.equal(shared["buffers"][names[1]], torch.ones(5))
        assert all("buffers" not in row for row in rows.values())
        w = frozen_norm_step(w, clients, sizes)
        assert farthest(shared["shared"], w) < 1e-12


def frozen_norm_step(w, clients, sizes):
    """With running mean 0 and variance 1 a frozen norm is z / sqrt(1 + 1e-5) * gamma + beta."""

    def loss(w, x, y):
        z = (x @ w["encoder.layer1.0.weight"].T + w["encoder.layer1.0.bias"]) / (1 + 1e-5) ** 0.5
        hidden = torch.relu(z * w["encoder.layer1.1.weight"] + w["encoder.layer1.1.bias"])
        return torch.nn.functional.cross_entropy(hidden @ w["head.weight"].T + w["head.bias"], y)

    found = [descend(w, c["x"], c["y"], iter([torch.arange(len(c["y"]))]), 0.05, loss)[0] for c in clients]
    return mean(found, sizes)


def test_nobody_came_back_leaves_the_model_as_it_was():
    method, net = FedAvg(), toy.net()
    state = object()
    assert method.absorb(state, None, {}, None) is state
    assert net.params.keys() == {"encoder.layer1.1.weight", "encoder.layer1.1.bias", "head.weight", "head.bias"}


def test_bad_values_are_refused_with_a_cure(tmp_path):
    with pytest.raises(ValueError, match=r"buffers must be average, local or server, found 'averaged'\. Use"):
        FedAvg(buffers="averaged")
    with pytest.raises(ValueError, match=r"epochs or steps, found epochs=1, steps=5\. Give one"):
        Training(steps=5)
    with pytest.raises(ValueError, match=r"batch_size must be at least 1, found 0"):
        Training(batch_size=0)
    for private in (norm_names, head_names):
        method = FedAvg(private=private)
        net = mlp(4, 2) if private is norm_names else headless()
        with pytest.raises(ValueError, match=rf"FedAvg keeps the {private.__name__} .* this net has none"):
            Toy(net=lambda net=net: net).run((Phase("train", 1, method, Everyone()),), tmp_path / private.__name__)


def headless():
    from torch import nn

    from coterie.models.losses import CrossEntropy
    from coterie.models.net import Net

    return Net(nn.Linear(toy.FEATURES, toy.CLASSES), CrossEntropy())
