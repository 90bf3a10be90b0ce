"""GPFL against plain loops: contexts, valve, class embeddings."""

import math

import pytest
import torch
import toy
from by_hand import B2, W2, batches, cross_entropy, descend, farthest, features, mean
from cases import BUFFER_CHANGES, COMMON_CHANGES, ROTA, Case, clients_of, every_round

from coterie import methods
from coterie.method import SGD, Hub, Round
from coterie.methods.fedavg import Training
from coterie.methods.gpfl import Gpfl
from coterie.models.nets import resnet18
from coterie.randomness import Key

D, C = 5, toy.CLASSES
OWN = C * D + 2 * D * D + 6 * D  # wire 4: C d + 2 d^2 + 6 d
CASES = {
    "gpfl": Case(
        changes={**COMMON_CHANGES, **BUFFER_CHANGES, "lam": (0.5, {}), "mu": (0.9, {})}, secret=("private", "frequencies"),
        wire=lambda f: every_round(
            f, up={"shared": f.b * (f.P_e + OWN), "buffers": f.b * f.B, "weight": 8},
            down={"shared": f.b * (f.P_e + OWN), "buffers": f.b * f.B},
        ),
    )
}  # fmt: skip

E = "gce.weight"


def first_weights():
    """Everything that travels, as the server draws it: the oracle's start."""
    net = toy.net().to("cpu", torch.float64)
    return Gpfl().server_state(Hub(Round(0, 3, "train", 0, 3, (), 4), net, Key(0, ("server", 0))))["shared"], net.params


def condition(w, name, context):
    hidden = (w[f"cov.{name}.linear.weight"] @ context + w[f"cov.{name}.linear.bias"]).clamp(min=0)
    centred = hidden - hidden.mean()
    return centred / (centred.square().mean() + 1e-5).sqrt() * w[f"cov.{name}.norm.weight"] + w[f"cov.{name}.norm.bias"]


def valve(w, f, context):
    return (f * (condition(w, "gamma", context) + 1) + condition(w, "beta", context)).clamp(min=0)


def oracle_loss(received, shares, lam, mu):
    """The contexts and the embeddings of the third term are those of the received table."""
    g, p = received[E].mean(0), sum(share * row for share, row in zip(shares, received[E], strict=True))

    def loss(w, x, y):
        f = features(w, x)
        task = cross_entropy(valve(w, f, p) @ w[W2].T + w[B2], y)
        general = valve(w, f, g)
        unit = general / general.square().sum(1, keepdim=True).sqrt().clamp(min=1e-12)
        cosines = unit @ (w[E] / w[E].square().sum(1, keepdim=True).sqrt()).T
        length = torch.linalg.vector_norm(general - received[E][y], dim=1).mean()
        weights = sum(v.square().sum() for name, v in w.items() if name.startswith(("gce.", "cov.")))
        return task + cross_entropy(cosines, y) + lam * length + 0.5 * mu * weights

    return loss


@pytest.mark.parametrize(("lam", "mu"), [(0.01, 0.1), (0.7, 0.0)])
def test_gpfl_equals_plain_loops(lam, mu, go64):
    (w, net), clients = first_weights(), clients_of(toy.population())
    heads = [{name: net[name] for name in (W2, B2)} for _ in clients]
    shares = [[float((y == c).double().mean()) for c in range(C)] for _, y in clients]
    for t, cohort in enumerate(ROTA.rounds):
        found = []
        for k in cohort:
            x, y = clients[k]
            loss = oracle_loss(w, shares[k], lam, mu)
            rows = batches(t, k, len(y), 8, epochs=2)
            v, _ = descend({**w, **heads[k]}, x, y, rows, 0.1, loss, momentum=0.9, weight_decay=0.01)
            heads[k] = {name: v.pop(name) for name in (W2, B2)}
            found.append(v)
        w = mean(found, [len(clients[k][1]) for k in cohort])
    training = Training(optim=SGD(lr=0.1, momentum=0.9, weight_decay=0.01), epochs=2, batch_size=8)
    finish = go64(methods.gpfl(rounds=3, training=training, cohort=ROTA, lam=lam, mu=mu))
    assert farthest(finish.state.shared["shared"], w) < 1e-10
    losses = []
    for k, parts in enumerate(toy.population().parts):
        assert farthest(finish.clients[k]["private"], heads[k]) < 1e-10
        test = parts.test.all_rows()  # what is deployed: new encoder, valve and embeddings under the own context and head
        p = sum(share * row for share, row in zip(shares[k], w[E], strict=True))
        losses.append(float(cross_entropy(valve(w, features(w, test["x"].double()), p) @ heads[k][W2].T + heads[k][B2], test["y"])))
    assert finish.summary["results"]["personal"]["loss"]["last"] == pytest.approx(sum(losses) / 4, abs=1e-10)
    assert "global" not in finish.summary["results"]


def test_first_values_are_torchs_own():
    """Embeddings N(0, 1), linear layers uniform, layer norms 1 and 0."""
    net = toy.net(hidden=64).to("cpu", torch.float64)
    w = Gpfl().first_model(net, Key(0, ("x",)))
    assert w[E].shape == (C, 64) and float(w[E].std()) == pytest.approx(1.0, rel=0.2)
    assert float(w["cov.gamma.linear.weight"].abs().max()) <= 1 / 8 and float(w["cov.beta.linear.weight"].var()) == pytest.approx(1 / 192, rel=0.1)
    assert not torch.equal(w["cov.gamma.linear.weight"], w["cov.beta.linear.weight"])
    assert bool((w["cov.gamma.norm.weight"] == 1).all()) and not bool(w["cov.beta.norm.bias"].any())


def test_a_resnet18_sends_what_the_formula_says():
    """Wire 4's fixture: 4 (11,168,832 + 5,120 + 527,360) + 8 bytes up, without batch-norm statistics."""
    method = Gpfl(buffers="local")
    slots = method.slots(Hub(Round(0, 1, "train", 0, 1, (), 4), resnet18(3, 10), Key(0, ("server", 0))))
    assert set(slots) == {"shared"}
    assert 4 * sum(math.prod(shape) for shape, _ in slots["shared"].spec.values()) + 8 == 46_805_256


def test_bad_values_are_refused_with_a_cure():
    for name in ("lam", "mu"):
        with pytest.raises(ValueError, match=rf"{name} must be a number >= 0, found -1\. Use"):
            methods.gpfl(rounds=1, **{name: -1})
