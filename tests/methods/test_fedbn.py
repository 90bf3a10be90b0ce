"""FedBN against plain loops: everything but the batch norms is averaged."""

import pytest
import torch
import toy
from by_hand import batches, cross_entropy, farthest, gradient, mean
from cases import COMMON_CHANGES, ROTA, Case, Rota, Toy, clients_of, every_round, norm_net, weights_of

from coterie import methods
from coterie.method import SGD
from coterie.methods.fedavg import Training, norm_names
from coterie.methods.fedbn import FedBN
from coterie.models.nets import resnet8

CASES = {
    "fedbn": Case(
        changes=COMMON_CHANGES, secret=("private", "buffers"),
        wire=lambda f: every_round(f, up={"shared": f.b * (f.P - f.P_bn), "weight": 8}, down={"shared": f.b * (f.P - f.P_bn)}),
    )
}  # fmt: skip

LINEAR, NORM = "encoder.layer1.0", "encoder.layer1.1"
SCALES = (f"{NORM}.weight", f"{NORM}.bias")
MEAN, VAR = f"{NORM}.running_mean", f"{NORM}.running_var"


def norm_loss(w, x, y):
    """Batch norm by its formula: the batch's mean and (biased) variance, eps 1e-5."""
    z = x @ w[f"{LINEAR}.weight"].T
    centred = z - z.mean(0)
    hidden = centred / (centred.square().mean(0) + 1e-5).sqrt() * w[f"{NORM}.weight"] + w[f"{NORM}.bias"]
    return cross_entropy(hidden.clamp(min=0) @ w["head.weight"].T + w["head.bias"], y)


def test_fedbn_equals_plain_loops(go64):
    w, clients = weights_of(norm_net()), clients_of(toy.population())
    own = [{name: w[name] for name in SCALES} for _ in clients]
    statistics = [{MEAN: torch.zeros(5).double(), VAR: torch.ones(5).double()} for _ in clients]
    for t, cohort in enumerate(ROTA.rounds):
        found = []
        for k in cohort:
            x, y = clients[k]
            v = {**w, **own[k]}
            for rows in batches(t, k, len(y), 10, epochs=2):
                z = x[rows] @ v[f"{LINEAR}.weight"].T
                for name, value in ((MEAN, z.mean(0)), (VAR, z.var(0))):
                    statistics[k][name] = 0.9 * statistics[k][name] + 0.1 * value
                g = gradient(norm_loss, v, x[rows], y[rows])
                v = {name: v[name] - 0.1 * g[name] for name in v}
            own[k] = {name: v.pop(name) for name in SCALES}
            found.append(v)
        w = mean(found, [len(clients[k][1]) for k in cohort])
    finish = go64(methods.fedbn(rounds=3, training=Training(optim=SGD(lr=0.1), epochs=2, batch_size=10), cohort=ROTA), Toy(net=norm_net))
    assert farthest(finish.state.shared["shared"], w) < 1e-10
    for k in range(len(clients)):
        assert farthest(finish.clients[k]["private"], own[k]) < 1e-10
        assert farthest(finish.clients[k]["buffers"], statistics[k]) < 1e-10


def test_norms_are_found_by_type_in_shortcuts_too():
    """resnet8: 1 + 3 x 2 norms, and 2 in shortcuts, with a scale and a shift each; a name test for 'bn' misses three."""
    names = norm_names(resnet8(3, 10))
    assert len(names) == 2 * (1 + 6 + 2)
    assert sum(".bn" in name for name in names) == 12


def test_one_client_alone_has_nothing_to_personalise(go64):
    alone = {"rounds": 3, "training": Training(optim=SGD(lr=0.1), batch_size=10), "cohort": Rota(((2,),))}
    fedavg, fedbn = (go64(make(**alone), Toy(net=norm_net)) for make in (methods.fedavg, methods.fedbn))
    assert farthest(fedavg.state.shared["shared"], {**fedbn.state.shared["shared"], **fedbn.clients[2]["private"]}) < 1e-12
    assert farthest(fedavg.state.shared["buffers"], fedbn.clients[2]["buffers"]) < 1e-12


def test_what_would_be_fedavg_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"FedBN keeps batch-norm statistics on the client, found buffers='average'\. Leave"):
        FedBN(buffers="average")
    with pytest.raises(ValueError, match=r"FedBN keeps the norm .* so it would be FedAvg\. Use a net"):
        Toy().run(methods.fedbn(rounds=1), tmp_path)
