"""FedPer against plain loops, also with normalised features."""

import pytest
import toy
from by_hand import B1, B2, W1, W2, batches, cross_entropy, descend, farthest, features, mean, plain_loss
from cases import BUFFER_CHANGES, COMMON_CHANGES, ROTA, Case, Rota, Toy, clients_of, every_round, norm_net, weights_of

from coterie import methods
from coterie.method import SGD
from coterie.methods.fedavg import Training

CASES = {
    "fedper": Case(
        changes={**COMMON_CHANGES, **BUFFER_CHANGES, "normalise": (True, {})}, secret=("private",),
        wire=lambda f: every_round(
            f, up={"shared": f.b * f.P_e, "buffers": f.b * f.B, "weight": 8}, down={"shared": f.b * f.P_e, "buffers": f.b * f.B}
        ),
    )
}  # fmt: skip

TRAINING = Training(optim=SGD(lr=0.1, momentum=0.9, weight_decay=0.01), epochs=2, batch_size=8)


def on_the_sphere(w, x, y):
    """Logits W z / max(||z||, 1e-8) + b; a feature may be all zero behind a ReLU."""
    z = features(w, x)
    return cross_entropy((z / z.square().sum(1, keepdim=True).sqrt().clamp(min=1e-8)) @ w[W2].T + w[B2], y)


@pytest.mark.parametrize("normalise", [False, True])
def test_fedper_equals_plain_loops(normalise, go64):
    loss = on_the_sphere if normalise else plain_loss
    w, clients = weights_of(toy.net()), clients_of(toy.population())
    heads = [{name: w[name] for name in (W2, B2)} for _ in clients]
    for t, cohort in enumerate(ROTA.rounds):
        encoders = []
        for k in cohort:
            x, y = clients[k]
            rows = batches(t, k, len(y), 8, epochs=2)
            v, _ = descend({**w, **heads[k]}, x, y, rows, 0.1, loss, momentum=0.9, weight_decay=0.01)
            encoders.append({name: v[name] for name in (W1, B1)})
            heads[k] = {name: v[name] for name in (W2, B2)}
        w = {**w, **mean(encoders, [len(clients[k][1]) for k in cohort])}
    finish = go64(methods.fedper(rounds=3, training=TRAINING, cohort=ROTA, normalise=normalise))
    assert farthest(finish.state.shared["shared"], {name: w[name] for name in (W1, B1)}) < 1e-10
    for k, head in enumerate(heads):
        assert farthest(finish.clients[k]["private"], head) < 1e-10


@pytest.mark.parametrize("normalise", [False, True])
def test_what_is_deployed_is_what_was_trained(normalise, go64):
    """The personal model's test loss, by hand: new encoder, own head."""
    finish = go64(methods.fedper(rounds=2, training=TRAINING, normalise=normalise))
    loss = on_the_sphere if normalise else plain_loss
    encoder, losses = finish.state.shared["shared"], []
    for k, parts in enumerate(toy.population().parts):
        test = parts.test.all_rows()
        losses.append(float(loss({**encoder, **finish.clients[k]["private"]}, test["x"].double(), test["y"])))
    assert finish.summary["results"]["personal"]["loss"]["last"] == pytest.approx(sum(losses) / 4, abs=1e-12)
    assert "global" not in finish.summary["results"]


def test_one_client_alone_has_nothing_to_personalise(go64):
    """FedPer of one client is FedAvg of one client, which is plain training."""
    alone = {"rounds": 3, "training": Training(optim=SGD(lr=0.1), batch_size=10), "cohort": Rota(((2,),))}
    fedavg, fedper = (go64(make(**alone), Toy(net=norm_net)) for make in (methods.fedavg, methods.fedper))
    whole = {**fedper.state.shared["shared"], **fedper.clients[2]["private"]}
    assert farthest(fedavg.state.shared["shared"], whole) < 1e-12
    assert farthest(fedavg.state.shared["buffers"], fedper.state.shared["buffers"]) < 1e-12
