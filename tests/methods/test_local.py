"""Local and Centralized against plain loops: the two references."""

import json

import pytest
import torch
import toy
from by_hand import batches, descend, farthest, generator, plain_loss
from cases import COMMON_CHANGES, ROTA, TRAINING_CHANGES, Case, Toy, clients_of, norm_net, weights_of

from coterie import methods
from coterie.data.examples import whole
from coterie.method import SGD, Phase
from coterie.methods.fedavg import FedAvg, Training
from coterie.methods.local import Local


def pooled_population():
    """The toy population whose server also holds all training data."""
    population = toy.population()
    rows = [parts.train.all_rows() for parts in population.parts]
    population.public["pooled"] = whole({name: torch.cat([part[name] for part in rows]) for name in ("x", "y")})
    return population


CASES = {
    "local": Case(
        changes=COMMON_CHANGES, secret=("own", "buffers"),
        wire=lambda f: [],
    ),
    "centralized": Case(
        changes={"rounds": (2, {}), **TRAINING_CHANGES}, toy=Toy(net=norm_net, population=pooled_population),
        wire=lambda f: [],  # the data are at the server before the run, so the ledger has nothing to book
    ),
}  # fmt: skip

TRAINING = Training(optim=SGD(lr=0.1, momentum=0.9), epochs=2, batch_size=8)


def test_local_equals_every_client_alone(go64):
    finish = go64(methods.local(rounds=3, training=TRAINING, cohort=ROTA))
    for k, (x, y) in enumerate(clients_of(toy.population())):
        w = weights_of(toy.net())
        for t in [t for t, cohort in enumerate(ROTA.rounds) if k in cohort]:
            w, _ = descend(w, x, y, batches(t, k, len(y), 8, epochs=2), 0.1, momentum=0.9)
        assert farthest(finish.clients[k]["own"], w) < 1e-10


def test_local_sends_nothing_and_its_server_has_no_model(go64):
    finish = go64(methods.local(rounds=1, training=TRAINING))
    assert (finish.path / "wire.jsonl").read_text() == "" and finish.state.shared == {}
    assert set(finish.summary["results"]) == {"personal", "local"}


def test_centralized_equals_one_loop_over_all_data(go64):
    clients = clients_of(toy.population())
    x, y = torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients])
    w = weights_of(toy.net())
    for t in range(3):
        rows = []
        for epoch in range(2):
            order = generator(0, "server", t, "train", 0, "order", "local", epoch).permutation(len(y))
            rows += [torch.from_numpy(order[i : i + 8]) for i in range(0, len(y), 8)]
        w, _ = descend(w, x, y, iter(rows), 0.1, plain_loss, momentum=0.9)
    finish = go64(methods.centralized(rounds=3, training=TRAINING), Toy(population=pooled_population))
    assert farthest(finish.state.shared["shared"], w) < 1e-10
    lines = [json.loads(line) for line in (finish.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["clients"] for line in lines if line.get("model") == "global" and line["split"] == "test"] == [4, 4, 4]


def test_centralized_says_where_its_data_come_from(go64):
    with pytest.raises(ValueError, match=r"needs all data at the server, found no 'pooled' set\. Pass"):
        go64(methods.centralized(rounds=1))


def test_local_alone_after_a_federated_phase_receives_nothing_of_it(go64):
    plan = (Phase("together", 1, FedAvg()), Phase("alone", 2, Local()))
    together, both = go64(plan[:1]).summary["bytes"], go64(plan).summary["bytes"]
    assert both["up"] == together["up"] and both["down"] == together["down"]
