"""FedAS against plain loops: prototypes, alignment, training, Fisher weights."""

import pytest
import torch
import toy
from by_hand import B1, B2, W1, W2, batches, descend, farthest, features, gradient, mean, plain_loss
from cases import BUFFER_CHANGES, COMMON_CHANGES, ROTA, Case, Rota, Toy, clients_of, every_round, norm_net, weights_of

from coterie import methods
from coterie.method import SGD
from coterie.methods.fedavg import Training

CASES = {
    "fedas": Case(
        changes={**COMMON_CHANGES, **BUFFER_CHANGES, "align_lr": (0.5, {}), "align_epochs": (3, {})},
        secret=("private",), told=("previous", "previous_buffers"),  # the encoder that was sent
        wire=lambda f: every_round(
            f, up={"shared": f.b * f.P_e, "buffers": f.b * f.B, "weight": 8}, down={"shared": f.b * f.P_e, "buffers": f.b * f.B}
        ),
    )
}  # fmt: skip

TRAINING = Training(optim=SGD(lr=0.1, momentum=0.9, weight_decay=0.01), epochs=2, batch_size=8)


def prototypes_of(encoder, x, y):
    z = features(encoder, x)
    return {int(c): z[y == c].mean(0) for c in y.unique()}


def alignment(prototypes):
    """sum_c MSE(f(x_c), P_c): per class the mean over its examples in the batch and over features."""

    def loss(w, x, y):
        z = features(w, x)
        return sum(((z[y == c] - prototypes[int(c)]) ** 2).mean() for c in y.unique())

    return loss


def fisher(w, x, y, size):
    """The squared gradient of each batch's mean loss, in the order of the data, over all parameters."""
    found = 0.0
    for start in range(0, len(y), size):
        g = gradient(plain_loss, w, x[start : start + size], y[start : start + size])
        found += sum(float(v.square().sum()) for v in g.values())
    return found


@pytest.mark.parametrize("align_lr", [0.3, 0.01])
def test_fedas_equals_plain_loops(align_lr, go64):
    start, clients = weights_of(toy.net()), clients_of(toy.population())
    w = {name: start[name] for name in (W1, B1)}
    heads, previous = [{name: start[name] for name in (W2, B2)} for _ in clients], [w for _ in clients]
    for t, cohort in enumerate(ROTA.rounds):
        encoders, weights = [], []
        for k in cohort:
            x, y = clients[k]
            rows = batches(t, k, len(y), 8, epochs=2, ask="align")
            aligned, _ = descend(w, x, y, rows, align_lr, alignment(prototypes_of(previous[k], x, y)))
            rows = batches(t, k, len(y), 8, epochs=2)
            v, _ = descend({**aligned, **heads[k]}, x, y, rows, 0.1, momentum=0.9, weight_decay=0.01)
            weights.append(fisher(v, x, y, 8))
            previous[k], heads[k] = {name: v[name] for name in (W1, B1)}, {name: v[name] for name in (W2, B2)}
            encoders.append(previous[k])
        w = mean(encoders, weights)
    finish = go64(methods.fedas(rounds=3, training=TRAINING, cohort=ROTA, align_lr=align_lr, align_epochs=2))
    assert farthest(finish.state.shared["shared"], w) < 1e-10
    for k in range(4):
        assert farthest(finish.clients[k]["private"], heads[k]) < 1e-10
        assert farthest(finish.clients[k]["previous"], previous[k]) < 1e-10


def test_without_alignment_one_client_is_fedper(go64):
    """Alone, weights do not matter; with align_lr = 0 nothing is aligned."""
    alone = {"rounds": 3, "training": TRAINING, "cohort": Rota(((2,),))}
    fedas, fedper = go64(methods.fedas(**alone, align_lr=0.0)), go64(methods.fedper(**alone))
    assert farthest(fedas.state.shared["shared"], fedper.state.shared["shared"]) < 1e-12
    assert farthest(fedas.clients[2]["private"], fedper.clients[2]["private"]) < 1e-12


def test_with_batch_norm_both_trainings_move_the_statistics_and_prototypes_are_in_evaluation_mode(go64):
    """One client, one full-batch step of each kind, by hand."""
    plan = methods.fedas(rounds=1, training=Training(optim=SGD(lr=0.1), batch_size=100), cohort=Rota(((0,),)), align_lr=0.5)
    finish = go64(plan, Toy(net=norm_net))
    w, (x, y) = weights_of(norm_net()), clients_of(toy.population())[0]
    linear, norm = "encoder.layer1.0", "encoder.layer1.1"

    def encoded(v, raw, m, s):
        return ((raw - m) / (s + 1e-5).sqrt() * v[f"{norm}.weight"] + v[f"{norm}.bias"]).clamp(min=0)

    z = encoded(w, x @ w[f"{linear}.weight"].T, torch.zeros(5), torch.ones(5, dtype=torch.float64))
    prototypes = {int(c): z[y == c].mean(0) for c in y.unique()}
    first = x @ w[f"{linear}.weight"].T
    m, s = 0.1 * first.mean(0), 0.9 + 0.1 * first.var(0)

    def align(v, x, y):
        raw = x @ v[f"{linear}.weight"].T
        z = encoded(v, raw, raw.mean(0), raw.var(0, correction=0))
        return sum(((z[y == c] - prototypes[int(c)]) ** 2).mean() for c in y.unique())

    body = {n: v for n, v in w.items() if n.startswith("encoder")}
    g = gradient(align, body, x, y)
    second = x @ (body[f"{linear}.weight"] - 0.5 * g[f"{linear}.weight"]).T
    expected = {f"{norm}.running_mean": 0.9 * m + 0.1 * second.mean(0), f"{norm}.running_var": 0.9 * s + 0.1 * second.var(0)}
    assert farthest(finish.state.shared["buffers"], expected) < 1e-12


def test_bad_values_are_refused_with_a_cure():
    with pytest.raises(ValueError, match=r"align_lr must be a number >= 0, found -1\. Use"):
        methods.fedas(rounds=1, align_lr=-1)
    with pytest.raises(ValueError, match=r"align_epochs must be at least 1, found 0\. Use"):
        methods.fedas(rounds=1, align_epochs=0)
