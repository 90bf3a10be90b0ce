"""FedDBE against plain loops: the round of means, the bias memory and the mean regularisation."""

import pytest
import torch
import toy
from by_hand import B2, W2, batches, cross_entropy, farthest, features, mean
from cases import BUFFER_CHANGES, COMMON_CHANGES, ROTA, Case, clients_of, every_round, weights_of

from coterie import methods
from coterie.method import SGD
from coterie.methods.fedavg import Training

D = 5


def wire(f):
    """Wire 4: FedAvg's, and once bd + 8 up and bd down; the round of means also brings the model that they are taken of."""
    model = {"shared": f.b * f.P, "buffers": f.b * f.B}
    later = [t for t, _ in enumerate(f.cohorts, 1) if t > 1]
    entries = every_round(f, up={"mean": f.b * D, "weight": 8}, down=model, rounds=[1])
    entries += every_round(f, up={**model, "weight": 8}, down=model, rounds=later)
    known = set()
    for cohort in f.cohorts[1:]:
        new = set(cohort) - known
        known |= new
        entries.append((-1, "down", "global_mean", f.b * D * len(new), len(new)))
    return [entry for entry in entries if entry[3]]


CASES = {
    "feddbe": Case(
        changes={**COMMON_CHANGES, **BUFFER_CHANGES, "kappa": (5.0, {}), "mean_momentum": (0.4, {})},
        secret=("private",), wire=wire,
    )
}  # fmt: skip

U = "dbe.bias"


def steps_by_hand(w, u, x, y, rows, lr, momentum, decay, *, kappa, mu, z_g=None):
    """SGD on w and u together; the running mean of earlier batches is a number, that of this batch is differentiated."""
    w = {**w, **({U: u} if u is not None else {})}
    speed = {name: torch.zeros_like(value) for name, value in w.items()}
    running = torch.zeros(D, dtype=torch.float64)
    for chosen in rows:
        own = {name: value.clone().requires_grad_() for name, value in w.items()}
        f = features(own, x[chosen])
        now = (1 - mu) * running + mu * f.mean(0)
        loss = cross_entropy((f + own.get(U, 0.0)) @ own[W2].T + own[B2], y[chosen])
        if z_g is not None:
            loss = loss + kappa * (0.5 * (now - z_g) ** 2).mean()
        running = now.detach()
        grads = dict(zip(own, torch.autograd.grad(loss, list(own.values())), strict=True))
        for name, g in grads.items():
            speed[name] = momentum * speed[name] + g + decay * w[name]
            w[name] = w[name] - lr * speed[name]
    return w, running


@pytest.mark.parametrize(("kappa", "mu"), [(50.0, 1.0), (3.0, 0.4)])
def test_feddbe_equals_plain_loops(kappa, mu, go64):
    w, clients = weights_of(toy.net()), clients_of(toy.population())
    sizes, lr = [len(y) for _, y in clients], 0.02
    measured = []
    for k, (x, y) in enumerate(clients):  # one epoch, whatever the later rounds do
        rows = batches(0, k, sizes[k], 8, epochs=1, ask="measure")
        measured.append({"z": steps_by_hand(w, None, x, y, rows, lr, 0.9, 0.01, kappa=0.0, mu=mu)[1]})
    z_g = mean(measured, sizes)["z"]
    u = [torch.zeros(D, dtype=torch.float64) for _ in clients]
    for t in (1, 2, 3):
        cohort, found = ROTA.rounds[t % 3], []
        for k in cohort:
            x, y = clients[k]
            rows = batches(t, k, sizes[k], 8, epochs=2)
            v, _ = steps_by_hand(w, u[k], x, y, rows, lr, 0.9, 0.01, kappa=kappa, mu=mu, z_g=z_g)
            u[k] = v.pop(U)
            found.append(v)
        w = mean(found, [sizes[k] for k in cohort])
    training = Training(optim=SGD(lr=lr, momentum=0.9, weight_decay=0.01), epochs=2, batch_size=8)
    finish = go64(methods.feddbe(rounds=3, training=training, cohort=ROTA, kappa=kappa, mean_momentum=mu))
    assert float((finish.state.public["global_mean"].tensors["features"] - z_g).abs().max()) < 1e-12
    assert farthest(finish.state.shared["shared"], w) < 1e-10
    for k, bias in enumerate(u):
        assert farthest(finish.clients[k]["private"], {U: bias}) < 1e-10
    losses = []
    for k, parts in enumerate(toy.population().parts):  # what is deployed: the new model behind the own bias
        test = parts.test.all_rows()
        losses.append(float(cross_entropy((features(w, test["x"].double()) + u[k]) @ w[W2].T + w[B2], test["y"])))
    assert finish.summary["results"]["personal"]["loss"]["last"] == pytest.approx(sum(losses) / 4, abs=1e-10)


def test_a_strong_pull_brings_the_clients_feature_means_together(go64):
    """What kappa is for, measured: the mean squared distance of local feature means to the first global one."""
    apart = []
    for kappa in (0.0, 50.0):
        finish = go64(methods.feddbe(rounds=10, training=Training(optim=SGD(lr=0.05), epochs=5, batch_size=100), kappa=kappa), eval_every=10)
        w, z_g = finish.state.shared["shared"], finish.state.public["global_mean"].tensors["features"]
        apart.append(sum(float((features(w, x).mean(0) - z_g).square().sum()) for x, _ in clients_of(toy.population())))
    assert apart[1] < apart[0] / 3, apart


def test_bad_values_are_refused_with_a_cure():
    with pytest.raises(ValueError, match=r"kappa must be a number >= 0, found -1\. Use"):
        methods.feddbe(rounds=1, kappa=-1)
    with pytest.raises(ValueError, match=r"mean_momentum must lie in \(0, 1\], found 0\. Use"):
        methods.feddbe(rounds=1, mean_momentum=0)
