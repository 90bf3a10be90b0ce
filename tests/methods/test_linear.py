"""FedAvg and FedPer with a linear layer before the head (FABLE, Table 6), against plain loops."""

import pytest
import torch
import toy
from by_hand import B1, B2, W1, W2, batches, cross_entropy, descend, farthest, features, mean
from cases import BUFFER_CHANGES, COMMON_CHANGES, ROTA, Case, clients_of, every_round, weights_of

from coterie import methods
from coterie.method import SGD, Phase
from coterie.methods.fedavg import Training
from coterie.methods.linear import WithLinear
from coterie.methods.scaffold import Scaffold

D = 5
CASES = {
    "fedavg_linear": Case(
        changes={**COMMON_CHANGES, **BUFFER_CHANGES},
        wire=lambda f: every_round(
            f, up={"shared": f.b * (f.P + D * D), "buffers": f.b * f.B, "weight": 8},
            down={"shared": f.b * (f.P + D * D), "buffers": f.b * f.B},
        ),
    ),
    "fedper_linear": Case(
        changes={**COMMON_CHANGES, **BUFFER_CHANGES}, secret=("private",),
        wire=lambda f: every_round(
            f, up={"shared": f.b * f.P_e, "buffers": f.b * f.B, "weight": 8}, down={"shared": f.b * f.P_e, "buffers": f.b * f.B}
        ),
    ),
}  # fmt: skip

W = "linear.weight"
TRAINING = Training(optim=SGD(lr=0.1, momentum=0.9, weight_decay=0.01), epochs=2, batch_size=8)


def loss_through_w(w, x, y):
    return cross_entropy((features(w, x) @ w[W].T) @ w[W2].T + w[B2], y)


@pytest.mark.parametrize(("name", "kept"), [("fedavg_linear", ()), ("fedper_linear", (W2, B2, W))])
def test_methods_with_a_linear_layer_equal_plain_loops(name, kept, go64):
    w, clients = {**weights_of(toy.net()), W: torch.eye(D, dtype=torch.float64)}, clients_of(toy.population())
    own = [{n: w[n] for n in kept} for _ in clients]
    for t, cohort in enumerate(ROTA.rounds):
        found = []
        for k in cohort:
            x, y = clients[k]
            rows = batches(t, k, len(y), 8, epochs=2)
            v, _ = descend({**w, **own[k]}, x, y, rows, 0.1, loss_through_w, momentum=0.9, weight_decay=0.01)
            own[k] = {n: v.pop(n) for n in kept}
            found.append(v)
        w = {**w, **mean(found, [len(clients[k][1]) for k in cohort])}
    finish = go64(getattr(methods, name)(rounds=3, training=TRAINING, cohort=ROTA))
    assert farthest(finish.state.shared["shared"], {n: w[n] for n in (W1, B1, W2, B2, W) if n not in kept}) < 1e-10
    for k, private in enumerate(own):
        assert not kept or farthest(finish.clients[k]["private"], private) < 1e-10
    losses = []
    for k, parts in enumerate(toy.population().parts):
        test = parts.test.all_rows()
        losses.append(float(loss_through_w({**w, **own[k]}, test["x"].double(), test["y"])))
    assert finish.summary["results"]["personal"]["loss"]["last"] == pytest.approx(sum(losses) / 4, abs=1e-10)
    assert ("global" in finish.summary["results"]) is (not kept)


def test_the_identity_is_where_it_starts(go64):
    """Before any step, the net with W is the net: the first loss of a full batch is FedAvg's."""
    plan = {"rounds": 1, "training": Training(optim=SGD(lr=0.0), batch_size=100)}
    one, two = (go64(make(**plan)).summary["results"]["global"] for make in (methods.fedavg, methods.fedavg_linear))
    assert one == two


def test_control_variates_also_correct_the_linear_layer(go64):
    """SCAFFOLD knows of W: its control has W's shape, and is the mean of the clients' displacement per rate (Algorithm 1)."""
    inner = WithLinear(training=Training(optim=SGD(lr=0.1), batch_size=100))
    finish = go64((Phase("train", 1, Scaffold(inner)),))
    w = {**weights_of(toy.net()), W: torch.eye(D, dtype=torch.float64)}
    moved = []
    for x, y in clients_of(toy.population()):
        v, _ = descend(w, x, y, iter([torch.arange(len(y))]), 0.1, loss_through_w)
        moved.append({n: (w[n] - v[n]) / 0.1 for n in w})
    assert farthest(finish.state.shared["control"], mean(moved, [1.0] * 4)) < 1e-12
