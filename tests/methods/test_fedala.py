"""FedALA against plain loops, around FedAvg and FABLE, alone and inside SCAFFOLD."""

import statistics

import pytest
import torch
import toy
from by_hand import B1, B2, W1, W2, batches, descend, farthest, generator, gradient, mean, plain_loss
from cases import BUFFER_CHANGES, COMMON_CHANGES, Case, Rota, clients_of, weights_of
from test_fable import BIAS, features, first_rows, oracle_loss, unit
from test_fable import H as DECODER
from test_fable import W as LINEAR
from test_fedavg import CASES as FEDAVG

from coterie import methods
from coterie.method import SGD, Phase
from coterie.methods.fable import Fable
from coterie.methods.fedala import Ala
from coterie.methods.fedavg import FedAvg, Training
from coterie.methods.local import Local
from coterie.methods.scaffold import Scaffold

OFTEN = Rota(((0, 1), (1, 2, 3), (0, 1, 3), (0, 1)))  # client 0 learns omega twice, client 1 three times
CASES = {
    "fedala": Case(
        changes={
            **COMMON_CHANGES, **BUFFER_CHANGES, "layers": (1, {}), "eta": (0.1, {}), "share": (0.5, {}),
            "threshold": (0.0, {"max_passes": 20}), "max_passes": (3, {}),
        },
        knobs={"eta": 20.0}, secret=("omega",), told=("old",),  # a part of the model that was sent
        wire=FEDAVG["fedavg"].wire,
    )
}  # fmt: skip

PLAIN = Training(optim=SGD(lr=0.1), epochs=2, batch_size=8)
TRAINING = Training(optim=SGD(lr=0.1, momentum=0.9, weight_decay=0.01), epochs=2, batch_size=8)


class Mixture:
    """Equations (4) and (5) for one client, by hand."""

    def __init__(self, *, names, eta, share, threshold):
        self.names, self.eta, self.share, self.threshold = names, eta, share, threshold
        self.old = self.omega = None
        self.passes = 0  # of the first time

    def __call__(self, t, k, received, x, y, loss_of, others):
        """The model to begin with; `others` are constants of the loss."""
        if self.old is None:
            return received
        rows = torch.from_numpy(generator(0, "round", t, "client", k, "ala").choice(len(y), int(self.share * len(y)), replace=False))
        x, y, first, losses = x[rows], y[rows], self.omega is None, []
        omega = {n: torch.ones_like(self.old[n]) for n in self.names} if first else self.omega
        while True:
            seen = []
            for chosen in batches(t, k, len(y), 8, epochs=1, ask="ala", nth=len(losses)):
                at = {**others, **self.mixed(received, omega)}
                seen.append(float(loss_of(at, x[chosen], y[chosen])))
                g = gradient(loss_of, at, x[chosen], y[chosen], self.names)
                omega = {n: (omega[n] - self.eta * g[n] * (received[n] - self.old[n])).clamp(0, 1) for n in self.names}
            losses.append(statistics.mean(seen))
            still = len(losses) > 10 and statistics.pstdev(losses[-10:]) < self.threshold
            if not first or still or len(losses) == 100:
                break
        self.omega, self.passes = omega, self.passes or len(losses)
        return self.mixed(received, omega)

    def mixed(self, received, omega):
        return {**received, **{n: self.old[n] + (received[n] - self.old[n]) * omega[n] for n in self.names}}


def mixtures(**knobs):
    return [Mixture(**{"eta": 5.0, "share": 0.8, "threshold": 0.02, **knobs}) for _ in range(4)]


@pytest.mark.parametrize("layers", [2, 3])
def test_fedala_equals_plain_loops(layers, go64):
    w, clients = weights_of(toy.net()), clients_of(toy.population())
    mixes = mixtures(names=(W1, B1, W2, B2)[-layers:])
    for t, cohort in enumerate(OFTEN.rounds):
        found = []
        for k in cohort:
            x, y = clients[k]
            start = mixes[k](t, k, w, x, y, plain_loss, {})
            v, _ = descend(start, x, y, batches(t, k, len(y), 8, epochs=2), 0.1, momentum=0.9, weight_decay=0.01)
            mixes[k].old = {n: v[n] for n in mixes[k].names}
            found.append(v)
        w = mean(found, [len(clients[k][1]) for k in cohort])
    own = {"layers": layers, "eta": 5.0, "share": 0.8, "threshold": 0.02}
    finish = go64(methods.fedala(rounds=4, training=TRAINING, cohort=OFTEN, **own))
    assert farthest(finish.state.shared["shared"], w) < 1e-10
    for k in (0, 1, 3):
        assert farthest(finish.clients[k]["omega"], mixes[k].omega) < 1e-10
        assert farthest(finish.clients[k]["old"], mixes[k].old) < 1e-10
    assert finish.clients[2]["omega"] == {} and max(mix.passes for mix in mixes) > 11
    held = torch.cat([v.flatten() for k in (0, 1, 3) for v in mixes[k].omega.values()])
    assert bool(((held > 0) & (held < 1)).any()) and bool((held == 1).any())
    losses = []
    for k, parts in enumerate(toy.population().parts):  # what is deployed: the new model, mixed by the last omega
        test = parts.test.all_rows()
        model = w if mixes[k].omega is None else mixes[k].mixed(w, mixes[k].omega)
        losses.append(float(plain_loss(model, test["x"].double(), test["y"])))
    assert finish.summary["results"]["personal"]["loss"]["last"] == pytest.approx(sum(losses) / 4, abs=1e-10)


@pytest.mark.parametrize("scaffold", [False, True])
def test_ala_around_fable_equals_plain_loops(scaffold, go64):
    """omega is learnt through FABLE's loss, anchors under the received encoder; they are encoded anew for the training.

    Inside SCAFFOLD the displacement of option II begins at the mixture, and what is sent is measured from the download.
    """
    method = Fable(training=PLAIN, anchors=5)
    rows, clients = first_rows(method), clients_of(toy.population())
    anchors, own = [row["anchors"]["x"] for row in rows], [row["private"] for row in rows]
    mixes = mixtures(names=(B1,) if scaffold else (W1, B1))
    w = {name: weights_of(toy.net())[name] for name in (W1, B1)}
    c = {name: torch.zeros_like(value) for name, value in w.items()}
    controls = [c] * 4
    for t, cohort in enumerate(OFTEN.rounds):
        found, changes = [], []
        for k in cohort:
            x, y = clients[k]
            start = mixes[k](t, k, w, x, y, oracle_loss(unit(features(w, anchors[k]))), own[k])
            loss, v, private, steps = oracle_loss(unit(features(start, anchors[k]))), start, own[k], 0
            for chosen in batches(t, k, len(y), 8, epochs=2):
                g = gradient(loss, {**v, **private}, x[chosen], y[chosen])
                v = {n: v[n] - 0.1 * (g[n] + (c[n] - controls[k][n] if scaffold else 0.0)) for n in v}
                private, steps = {n: private[n] - 0.1 * g[n] for n in private}, steps + 1
            new = {n: controls[k][n] - c[n] + (start[n] - v[n]) / (steps * 0.1) for n in v}
            changes.append({n: new[n] - controls[k][n] for n in new})
            controls[k], own[k], mixes[k].old = new, private, {n: v[n] for n in mixes[k].names}
            found.append(v)
        w = mean(found, [1.0 if scaffold else len(clients[k][1]) for k in cohort])
        c = {n: c[n] + sum(change[n] for change in changes) / 4 for n in c}
    ala = Ala(method, layers=len(mixes[0].names), eta=5.0, threshold=0.02)
    finish = go64((Phase("train", 4, Scaffold(ala) if scaffold else ala, OFTEN),))
    assert farthest(finish.state.shared["shared"], w) < 1e-10
    for k in (0, 1, 3):
        assert farthest(finish.clients[k]["omega"], mixes[k].omega) < 1e-10
    for k in range(4):
        assert farthest(finish.clients[k]["private"], own[k]) < 1e-10
        if scaffold:
            assert farthest(finish.clients[k]["control"], controls[k]) < 1e-10
    assert {DECODER, BIAS, LINEAR} == set(own[0]) and any(bool((m.omega[B1] < 1).any()) for m in mixes if m.omega)


@pytest.mark.parametrize("inner", [FedAvg(training=TRAINING), Fable(training=TRAINING, anchors=5)], ids=["FedAvg", "Fable"])
def test_an_omega_that_never_moves_is_the_inner_method_bit_for_bit(inner, go64):
    one, two = (go64((Phase("train", 4, method, OFTEN),)) for method in (inner, Ala(inner, eta=0.0)))
    assert all(torch.equal(v, two.state.shared["shared"][n]) for n, v in one.state.shared["shared"].items())
    assert one.summary["results"]["personal"] == two.summary["results"]["personal"]
    assert all(bool((v == 1).all()) for k in (0, 1, 3) for v in two.clients[k]["omega"].values())


def test_bad_values_are_refused_with_a_cure(go64):
    for knobs, text in (({"layers": 0}, "layers must be at least 1, found 0"), ({"max_passes": 0}, "max_passes must be at least 1"),
                        ({"share": 0.0}, r"share must lie in \(0, 1\], found 0.0"), ({"eta": -1.0}, "eta must be a number >= 0"),
                        ({"threshold": float("nan")}, "threshold must be a number >= 0, found nan. Use 0.1")):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            methods.fedala(rounds=1, **knobs)
    with pytest.raises(ValueError, match=r"mixes what is shared, but Local sends nothing\. Wrap a method with a 'shared'"):
        go64((Phase("train", 1, Ala(Local())),))
