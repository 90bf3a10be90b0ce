"""MOON against plain loops, and where it must be FedAvg."""

import pytest
import torch
import toy
from by_hand import B2, W2, batches, cross_entropy, descend, farthest, features, logits, mean
from cases import BUFFER_CHANGES, COMMON_CHANGES, ROTA, Case, Rota, Toy, clients_of, every_round, norm_net

from coterie import methods
from coterie.method import SGD, Hub, Phase, Round
from coterie.methods.fedavg import FedAvg, Training
from coterie.methods.fedprox import Proximal
from coterie.methods.moon import Moon
from coterie.methods.scaffold import Scaffold
from coterie.randomness import Key

D, DIM = 5, 4
LINEAR, NORM = "encoder.layer1.0", "encoder.layer1.1"
PROJECTION = D * D + D + DIM * D + DIM  # wire 3: d^2 + d + 256 d + 256, with dim for 256
CASES = {
    "moon": Case(
        changes={**COMMON_CHANGES, **BUFFER_CHANGES, "mu": (0.2, {}), "tau": (0.1, {}), "dim": (3, {})},
        knobs={"dim": DIM}, told=("previous", "previous_buffers"),  # the model that was sent
        wire=lambda f: every_round(
            f, up={"shared": f.b * (f.P + PROJECTION), "buffers": f.b * f.B, "weight": 8},
            down={"shared": f.b * (f.P + PROJECTION), "buffers": f.b * f.B},
        ),
    )
}  # fmt: skip

TRAINING = Training(optim=SGD(lr=0.1, momentum=0.9, weight_decay=0.01), epochs=2, batch_size=8)


def first_weights(method, net=toy.net):
    """Net and projection as the server draws them: the oracle's start."""
    hub = Hub(Round(0, 3, "train", 0, 3, (), 4), net().to("cpu", torch.float64), Key(0, ("server", 0)))
    return method.server_state(hub)["shared"]


def project(w, z):
    hidden = (z @ w["projection.0.weight"].T + w["projection.0.bias"]).clamp(min=0)
    return hidden @ w["projection.1.weight"].T + w["projection.1.bias"]


def cosine(a, b):
    return (a * b).sum(1) / (a.square().sum(1).sqrt() * b.square().sum(1).sqrt())


def oracle_loss(received, previous, mu, tau):
    """(3) and (4), with the quotient of exponentials as printed."""

    def loss(w, x, y):
        z = project(w, features(w, x))
        to_global, to_previous = (torch.exp(cosine(z, project(v, features(v, x))) / tau) for v in (received, previous))
        return cross_entropy(logits(w, x), y) - mu * torch.log(to_global / (to_global + to_previous)).mean()

    return loss


@pytest.mark.parametrize(("mu", "tau"), [(1.0, 0.5), (5.0, 0.2)])
def test_moon_equals_plain_loops(mu, tau, go64):
    w, clients = first_weights(Moon(dim=DIM)), clients_of(toy.population())
    previous = [None] * len(clients)
    rota = Rota(((0, 1), (1, 2, 3), (0, 3), (0, 1, 3)))
    for t, cohort in enumerate(rota.rounds):
        found = []
        for k in cohort:
            x, y = clients[k]
            loss = oracle_loss(w, previous[k] or w, mu, tau)
            v, _ = descend(w, x, y, batches(t, k, len(y), 8, epochs=2), 0.1, loss, momentum=0.9, weight_decay=0.01)
            previous[k] = v
            found.append(v)
        w = mean(found, [len(clients[k][1]) for k in cohort])
    finish = go64(methods.moon(rounds=4, training=TRAINING, cohort=rota, mu=mu, tau=tau, dim=DIM))
    assert farthest(finish.state.shared["shared"], w) < 1e-10
    for k, model in enumerate(previous):
        assert farthest(finish.clients[k]["previous"], model) < 1e-10


def test_the_projection_starts_as_torchs_linear_layers():
    w = first_weights(Moon(dim=256))
    assert w["projection.1.weight"].shape == (256, D) and float(w["projection.1.weight"].abs().max()) <= D**-0.5
    assert float(w["projection.1.weight"].var()) == pytest.approx(1 / (3 * D), rel=0.1)


def test_a_first_round_and_mu_0_are_fedavg(go64):
    """Alone, the contrast is constant until there is a previous model; without its weight it never counts."""
    common = {"training": Training(optim=SGD(lr=0.1), epochs=2, batch_size=8), "cohort": ROTA}
    for rounds, mu, same in ((1, 1.0, True), (3, 0.0, True), (3, 1.0, False)):
        fedavg, moon = (go64(make(rounds=rounds, **common, **own)) for make, own in ((methods.fedavg, {}), (methods.moon, {"mu": mu})))
        net = {name: moon.state.shared["shared"][name] for name in fedavg.state.shared["shared"]}
        assert (farthest(fedavg.state.shared["shared"], net) < 1e-12) is same


def test_reference_models_are_in_evaluation_mode_with_their_own_statistics(go64):
    """Batch norm, two clients, then client 0 alone for one full-batch step, which is done by hand."""
    plan = {"training": Training(optim=SGD(lr=0.1), batch_size=100), "cohort": Rota(((0, 1), (0,))), "dim": DIM}
    one, two = (go64(methods.moon(rounds=rounds, **plan), Toy(net=norm_net)) for rounds in (1, 2))
    w, x, y = one.state.shared["shared"], *clients_of(toy.population())[0]
    previous, statistics = one.clients[0]["previous"], one.clients[0]["previous_buffers"]
    first = x @ first_weights(Moon(dim=DIM), norm_net)[f"{LINEAR}.weight"].T
    own_statistics = {f"{NORM}.running_mean": 0.1 * first.mean(0), f"{NORM}.running_var": 0.9 + 0.1 * first.var(0)}
    assert farthest(statistics, own_statistics) < 1e-12

    def encoded(v, mean, var):
        z = (v[f"{LINEAR}.weight"] @ x.T).T
        return ((z - mean) / (var + 1e-5).sqrt() * v[f"{NORM}.weight"] + v[f"{NORM}.bias"]).clamp(min=0)

    seen = {name: encoded(v, b[f"{NORM}.running_mean"], b[f"{NORM}.running_var"]) for name, v, b in
            (("global", w, one.state.shared["buffers"]), ("previous", previous, statistics))}  # fmt: skip
    own = {n: v.clone().requires_grad_() for n, v in w.items()}
    raw = x @ own[f"{LINEAR}.weight"].T
    z = encoded(own, raw.mean(0), raw.var(0, correction=0))
    to_global = torch.exp(cosine(project(own, z), project(w, seen["global"])) / 0.5)
    to_previous = torch.exp(cosine(project(own, z), project(previous, seen["previous"])) / 0.5)
    loss = cross_entropy(z @ own[W2].T + own[B2], y) - torch.log(to_global / (to_global + to_previous)).mean()
    grads = dict(zip(own, torch.autograd.grad(loss, list(own.values())), strict=True))
    assert farthest(two.state.shared["shared"], {n: w[n] - 0.1 * grads[n] for n in w}) < 1e-10


def test_a_proximal_term_and_control_variates_go_around_it(go64):
    """With mu = 0 the wrapped method is wrapped FedAvg, on the net; with mu > 0 it is not."""
    training = Training(optim=SGD(lr=0.1), batch_size=8)
    for wrap in (lambda inner: Proximal(0.5, inner), Scaffold):
        fedavg, off, on = (
            go64((Phase("train", 3, wrap(inner), ROTA),)).state.shared["shared"]
            for inner in (FedAvg(training=training), Moon(training=training, mu=0.0), Moon(training=training))
        )
        assert farthest(fedavg, {name: off[name] for name in fedavg}) < 1e-12
        assert farthest(fedavg, {name: on[name] for name in fedavg}) > 1e-6


def test_bad_values_are_refused_with_a_cure():
    for knobs, text in (({"mu": -1}, r"mu must be a number >= 0, found -1\. Use"), ({"tau": 0}, r"tau must be a number > 0, found 0\."),
                        ({"dim": 0}, r"dim must be at least 1, found 0\.")):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            methods.moon(rounds=1, **knobs)
