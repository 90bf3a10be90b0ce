"""Ditto against plain loops, and alone or wrapped its two paths never mix."""

import pytest
import torch
import toy
from by_hand import batches, descend, farthest, mean
from cases import BUFFER_CHANGES, COMMON_CHANGES, MOMENTUM, ROTA, Case, Rota, Toy, clients_of, norm_net, weights_of
from test_fedavg import CASES as FEDAVG

from coterie import methods
from coterie.method import SGD, Phase
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg, Training
from coterie.methods.fedprox import Proximal
from coterie.methods.scaffold import Scaffold

CASES = {
    "ditto": Case(
        changes={**COMMON_CHANGES, **BUFFER_CHANGES, "lam": (0.2, {}), "personal_epochs": (2, {})},
        secret=("personal", "personal_buffers"), wire=FEDAVG["fedavg"].wire,
    )
}  # fmt: skip

PLAIN = Training(optim=SGD(lr=0.1), epochs=2, batch_size=8)


def test_ditto_equals_plain_loops(go64):
    w, clients, lam = weights_of(toy.net()), clients_of(toy.population()), 0.7
    personal = [dict(w) for _ in clients]
    for t, cohort in enumerate(ROTA.rounds):
        received, found = w, []

        def pull(v, received=received):
            return {name: lam * (v[name] - received[name]) for name in v}

        for k in cohort:
            x, y = clients[k]
            found.append(descend(received, x, y, batches(t, k, len(y), 8, epochs=2), 0.1, momentum=0.9)[0])
            rows = batches(t, k, len(y), 8, epochs=3, ask="personal")
            personal[k], _ = descend(personal[k], x, y, rows, 0.1, momentum=0.9, extra=pull)
        w = mean(found, [len(clients[k][1]) for k in cohort])
    training = Training(optim=MOMENTUM, epochs=2, batch_size=8)
    finish = go64(methods.ditto(rounds=3, training=training, cohort=ROTA, lam=lam, personal_epochs=3))
    assert farthest(finish.state.shared["shared"], w) < 1e-10
    for k, v in enumerate(personal):
        assert farthest(finish.clients[k]["personal"], v) < 1e-10


@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_the_global_path_is_fedavg_bit_for_bit(buffers, go64):
    common = {"rounds": 3, "training": Training(epochs=2, batch_size=10), "buffers": buffers, "cohort": ROTA}
    fedavg, ditto = (go64(make(**common), Toy(net=norm_net)) for make in (methods.fedavg, methods.ditto))
    for group, tensors in fedavg.state.shared.items():
        assert all(torch.equal(value, ditto.state.shared[group][name]) for name, value in tensors.items())


def test_without_the_pull_a_personal_model_never_hears_of_the_others(go64):
    """Same rounds for client 0, other company: with lam = 0 the same personal model, with lam > 0 another."""
    company = (ROTA, Rota(((0, 3), (1, 2, 3), (0, 2))))
    for lam, same in ((0.0, True), (0.5, False)):
        one, two = (go64(methods.ditto(rounds=3, training=PLAIN, cohort=rota, lam=lam)).clients[0]["personal"] for rota in company)
        assert all(torch.equal(one[name], two[name]) for name in one) is same


@pytest.mark.parametrize("wrap", [lambda inner: Proximal(0.5, inner), Scaffold], ids=["Proximal", "Scaffold"])
def test_a_wrapper_changes_only_the_global_path(wrap, go64):
    """The personal model feels a wrapper only through what it receives: not at all in the first round."""
    plan = (Phase("train", 3, wrap(Ditto(training=PLAIN)), ROTA),)
    alone = (Phase("train", 3, wrap(FedAvg(training=PLAIN)), ROTA),)
    wrapped, inner = go64(plan), go64(alone)
    assert all(torch.equal(v, wrapped.state.shared["shared"][n]) for n, v in inner.state.shared["shared"].items())
    once, bare = (go64((Phase("train", 1, method, ROTA),)) for method in (wrap(Ditto(training=PLAIN)), Ditto(training=PLAIN)))
    for k in (0, 1):
        assert all(torch.equal(v, once.clients[k]["personal"][n]) for n, v in bare.clients[k]["personal"].items())


def test_what_is_deployed_is_the_personal_model_with_its_own_statistics(go64):
    finish = go64(methods.ditto(rounds=2, training=Training(batch_size=10)), Toy(net=norm_net))
    net, losses = norm_net().to("cpu", torch.float64), []
    for k, parts in enumerate(toy.population().parts):
        test = parts.test.all_rows()
        module = net.bind(finish.clients[k]["personal"], finish.clients[k]["personal_buffers"])
        losses.append(torch.nn.functional.cross_entropy(module(test["x"].double()), test["y"]).item())
    assert finish.summary["results"]["personal"]["loss"]["last"] == pytest.approx(sum(losses) / 4, abs=1e-12)


def test_momentum_of_both_paths_is_kept_apart(go64):
    training = Training(optim=MOMENTUM, batch_size=8, keep_memory=True)
    row = go64(methods.ditto(rounds=2, training=training)).clients[0]
    one, two = row["memory/shared/momentum"], row["memory/personal/momentum"]
    assert set(one) == set(two) and not any(torch.equal(one[name], two[name]) for name in one)


def test_bad_values_are_refused_with_a_cure():
    with pytest.raises(ValueError, match=r"lam must be a number >= 0, found -1\. Use"):
        methods.ditto(rounds=1, lam=-1)
    with pytest.raises(ValueError, match=r"personal_epochs must be at least 1, found 0\. Use"):
        methods.ditto(rounds=1, personal_epochs=0)
