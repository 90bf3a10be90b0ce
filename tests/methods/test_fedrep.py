"""FedRep against plain loops: head, then encoder."""

import pytest
import torch
import toy
from by_hand import B1, B2, W1, W2, batches, descend, farthest, mean
from cases import BUFFER_CHANGES, COMMON_CHANGES, ROTA, Case, Toy, clients_of, norm_net, weights_of
from test_fedper import CASES as FEDPER

from coterie import methods
from coterie.method import SGD
from coterie.methods.fedavg import Training

CASES = {
    "fedrep": Case(
        changes={**COMMON_CHANGES, **BUFFER_CHANGES, "head_epochs": (2, {})}, secret=("private",), wire=FEDPER["fedper"].wire
    )
}

ENCODER, HEAD = (W1, B1), (W2, B2)


def test_fedrep_equals_plain_loops(go64):
    w, clients = weights_of(toy.net()), clients_of(toy.population())
    heads = [{name: w[name] for name in HEAD} for _ in clients]
    sgd = {"momentum": 0.9, "weight_decay": 0.01}
    for t, cohort in enumerate(ROTA.rounds):
        encoders = []
        for k in cohort:
            x, y = clients[k]
            first = batches(t, k, len(y), 8, epochs=3, ask="head")
            v, _ = descend({**w, **heads[k]}, x, y, first, 0.1, moving=HEAD, **sgd)
            second = batches(t, k, len(y), 8, epochs=2, ask="body")
            v, _ = descend(v, x, y, second, 0.1, moving=ENCODER, **sgd)
            encoders.append({name: v[name] for name in ENCODER})
            heads[k] = {name: v[name] for name in HEAD}
        w = {**w, **mean(encoders, [len(clients[k][1]) for k in cohort])}
    training = Training(optim=SGD(lr=0.1, momentum=0.9, weight_decay=0.01), epochs=2, batch_size=8)
    finish = go64(methods.fedrep(rounds=3, training=training, cohort=ROTA, head_epochs=3))
    assert farthest(finish.state.shared["shared"], {name: w[name] for name in ENCODER}) < 1e-10
    for k, head in enumerate(heads):
        assert farthest(finish.clients[k]["private"], head) < 1e-10


def test_statistics_go_on_from_the_head_into_the_body(go64):
    """The encoder stands still while the head moves: both full batches see the same z, whose statistics count twice."""
    finish = go64(methods.fedrep(rounds=1, training=Training(batch_size=100), buffers="local"), Toy(net=norm_net))
    w = weights_of(norm_net())
    for k, (x, _) in enumerate(clients_of(toy.population())):
        z = x @ w["encoder.layer1.0.weight"].T
        expected = {"mean": 0.19 * z.mean(0), "var": 0.81 + 0.19 * z.var(0)}  # 1 - 0.9^2 = 0.19
        for name, value in expected.items():
            assert (finish.clients[k]["buffers"][f"encoder.layer1.1.running_{name}"] - value).abs().max() < 1e-12


def test_momentum_of_both_parts_is_kept(go64):
    training = Training(optim=SGD(lr=0.1, momentum=0.9), batch_size=8, keep_memory=True)
    row = go64(methods.fedrep(rounds=1, training=training)).clients[0]
    assert set(row["memory/private/momentum"]) == set(HEAD) and set(row["memory/shared/momentum"]) == set(ENCODER)
    assert all(bool(torch.any(v != 0)) for v in row["memory/shared/momentum"].values())


def test_bad_values_are_refused_with_a_cure():
    with pytest.raises(ValueError, match=r"head_epochs must be at least 1, found 0\. Use 1 or more"):
        methods.fedrep(rounds=1, head_epochs=0)
