"""FedXDS against plain loops, and what a client may and may not send while it shares."""

import json
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import BUFFER_CHANGES, COMMON_CHANGES, Case, Toy, every_round
from torch import nn

from coterie.data.examples import ClientParts, Population, View, whole
from coterie.engine.answers import Context, answer
from coterie.engine.run import run
from coterie.engine.settings import Settings
from coterie.engine.wire import Ledger
from coterie.message import Message
from coterie.method import SGD, Hub, Named, Round, Site
from coterie.methods.fedavg import FedAvg, Supervised, Training
from coterie.methods.fedxds import POOL, PoolLoss, Share, WithPool, fedxds
from coterie.metrics import Classification
from coterie.models.losses import CrossEntropy
from coterie.models.net import EncoderHead, Net
from coterie.randomness import Key
from coterie.recipes.session import Session
from coterie.recipes.walk_fedxds import squared_length, tell, walk_fedxds

IMAGE = (2, 6, 6)
SIZES = (7, 12, 5)
CLASSES = 3
ROUND = Round(0, 1, "share", 0, 1, (0, 1, 2), 3)


def build(module_norm=nn.BatchNorm2d):
    torch.manual_seed(1)
    encoder = nn.Sequential(nn.Conv2d(2, 3, 3), module_norm(3), nn.ReLU(), nn.Flatten())
    return Net(EncoderHead(encoder, nn.Linear(48, CLASSES), 48), CrossEntropy()).to("cpu", torch.float64)


def client_data(client):
    generator = torch.Generator().manual_seed(5 + client)
    x = torch.randn(SIZES[client], *IMAGE, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, CLASSES, (SIZES[client],), generator=generator)


def parts(x, y):
    view = whole({"x": x, "y": y})
    return ClientParts(view, whole({"x": x[:0], "y": y[:0]}), view)


def site_of(net, client=0, seed=0, public=None, round=ROUND):
    x, y = client_data(client)
    return Site(client, round, parts(x, y), net, Key(seed, ("round", 0, "client", client)), public or {})


def hub_of(net):
    return Hub(ROUND, net, Key(0))


def case_net():
    return build().to("cpu", torch.float32)


def case_population():
    """Four clients, so that the shared checks can send three of them to a round."""
    generator = torch.Generator().manual_seed(2)
    clients = []
    for size in CASE_SIZES:
        columns = {"x": torch.randn(size + 10, *IMAGE, generator=generator)}
        columns["y"] = columns["x"].mean((1, 2, 3)).argsort().argsort() % CLASSES
        clients.append(ClientParts(*(View(columns, torch.arange(*ends)) for ends in ((0, size), (size, size + 4), (size + 4, size + 10)))))
    return Population("toy images", ("a", "b", "c", "d"), clients, CLASSES)


def case_wire(f):
    """Wire 2.4: bP + beta each way and 8 up; shared examples b D + 8; S once to everyone who trains with it."""
    model = {"shared": f.b * f.P, "buffers": f.b * f.B}
    example = f.b * 2 * 6 * 6 + 8
    entries = every_round(f, up={**model, "weight": 8}, down=model)
    sharing = [entry for entry in entries if entry[0] == 2 and entry[1] == "down"]  # the model that the masks belong to
    entries = [entry for entry in entries if entry[0] != 2] + sharing
    entries.append((2, "up", "shared_examples", sum(CASE_SIZES) * example, 4))
    known = set()
    for cohort in f.cohorts[2:]:
        new = set(cohort) - known
        known |= new
        entries.append((-1, "down", POOL, len(new) * sum(CASE_SIZES) * example, len(new)))
    return entries


CASE_SIZES = (20, 13, 9, 24)
CASES = {
    "fedxds": Case(
        toy=Toy(net=case_net, population=case_population),
        knobs={"warmup_rounds": 1, "relevance": "gradient", "audit_seed": 3, "clip": 2.0},
        changes={
            **COMMON_CHANGES, **BUFFER_CHANGES, "warmup_rounds": (2, {}), "warmup_epochs": (2, {}),
            "relevance": ("random", {}), "signed": (True, {}), "s": (50.0, {}), "mask": ("binary", {}), "clip": (0.5, {}),
            "sigma": (0.3, {}), "label_eps": (0.5, {}), "fraction": (0.5, {}), "audit_seed": (4, {}),
            "statistics": ("local", {}), "image": "only refuses images of another size",
        },
        wire=case_wire,
    )
}  # fmt: skip


def down_of(net):
    return Message({"shared": net.params, "buffers": net.buffers})


def finished(run):
    """What a client run that asks nothing returns."""
    with pytest.raises(StopIteration) as stop:
        next(run)
    return stop.value.value


def shared_by(share, net, client=0, seed=0):
    _, message = finished(share.client({}, down_of(net), site_of(net, client, seed)))
    return message["shared_examples"]


SHARE = Share(relevance="gradient", clip=1.0, sigma=0.3, audit_seed=11)


def plain_share(image, relevance, s, clip):
    flat = relevance.reshape(-1)
    keep = int(np.ceil((100 - s) * flat.size / 100))
    best = sorted(range(flat.size), key=lambda p: (-flat[p], p))[:keep]
    weights = np.zeros(flat.size)
    for p in best:
        weights[p] = (flat[p] - flat.min()) / (flat.max() - flat.min())
    v = image * weights.reshape(relevance.shape)
    return v * min(1.0, clip / np.sqrt((v**2).sum()))


# --- training with the pool --------------------------------------------------------------------------------------------


def pool_of(size=10):
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(size, *IMAGE, generator=generator, dtype=torch.float64)
    return {"x": x, "y": torch.arange(size) % CLASSES}


SEEN = []


def recording(params, buffers, refs, batch, net):
    SEEN.append((batch["local"]["x"], batch["local"]["y"]))
    return Supervised()(params, buffers, refs, batch, net)


def test_one_pool_batch_per_local_batch_cycled_and_shuffled():
    net, pool = build(), pool_of()
    site = site_of(net, 1, public={POOL: pool})
    method = WithPool(FedAvg(training=Training(epochs=3, batch_size=4)))
    ask = next(method.client({}, down_of(net), site))
    SEEN.clear()
    got = answer(replace(ask, loss=PoolLoss(recording)), Context(net, ROUND, site.key))
    assert got.num_steps == 9 and len(SEEN) == 18
    local, shared = SEEN[0::2], SEEN[1::2]
    x, _ = client_data(1)
    assert {id_of(x, image) for images, _ in local for image in images} == set(range(12))
    order = [id_of(pool["x"], image) for images, _ in shared for image in images]
    passes = [order[start : start + 10] for start in range(0, len(order) - 9, 10)]
    assert len(passes) == 3 and all(sorted(one) == list(range(10)) for one in passes) and passes[0] != passes[1]
    for images, labels in shared:
        assert [int(label) for label in labels] == [id_of(pool["x"], image) % CLASSES for image in images]


def id_of(images, image):
    (found,) = [i for i in range(len(images)) if torch.equal(images[i], image)]
    return found


def test_the_loss_is_the_sum_of_two_cross_entropies():
    net, pool = build(), pool_of()
    x, y = client_data(0)
    site = site_of(net, 0, public={POOL: pool})
    ask = next(WithPool(FedAvg()).client({}, down_of(net), site))
    mask = torch.ones(len(x), dtype=torch.bool)
    batch = {"local": {"x": x, "y": y, "mask": mask}, POOL: {**pool, "mask": torch.ones(10, dtype=torch.bool)}}
    loss = ask.loss(ask.params, ask.buffers, ask.refs, batch, net)
    module = net.bind(net.params, net.buffers).train()
    expected = F.cross_entropy(module(x), y) + F.cross_entropy(module(pool["x"]), pool["y"])
    torch.testing.assert_close(loss.value, expected)
    for name, value in loss.buffers["buffers"].items():  # two steps of the running statistics, local first
        torch.testing.assert_close(value, module.get_buffer(name))
    assert set(loss.metrics) == {"loss", "accuracy", "pool_loss", "pool_accuracy"}


# --- the whole method against plain loops ------------------------------------------------------------------------------


def population():
    clients = [parts(*client_data(client)) for client in range(3)]
    return Population("toy", ("a", "b", "c"), clients, CLASSES)


def plan_of(share, rounds=2, warmup=2):
    # batches that hold everything, so that no order of examples matters
    training = Training(optim=SGD(lr=0.1, momentum=0.9, weight_decay=0.01), epochs=3, batch_size=64)
    knobs = ("relevance", "s", "mask", "clip", "sigma", "audit_seed")
    return fedxds(
        rounds=rounds, warmup_rounds=warmup, training=training, cohort=Named((0, 2)),
        **{name: getattr(share, name) for name in knobs},
    )  # fmt: skip


def run_plan(plan, out, **settings):
    options = {"backend": "loop", "precision": "fp64", **settings}
    return run(plan, population(), net=build(), metric=Classification(CLASSES), out=out, settings=Settings(**options))


def plain_fedavg_round(states, clients, pool):
    """Each client from the same start; the weighted mean of everything, running statistics too."""
    total, mean = sum(SIZES[client] for client in clients), {}
    for client in clients:
        module = plain_net()
        module.load_state_dict(states)
        module.train()
        optim = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        x, y = client_data(client)
        for _ in range(3):
            loss = F.cross_entropy(module(x), y)
            if pool is not None:
                loss = loss + F.cross_entropy(module(pool[0]), pool[1])
            optim.zero_grad()
            loss.backward()
            optim.step()
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                mean[name] = mean.get(name, 0) + SIZES[client] / total * value.detach()
    return {**states, **mean}


def plain_net():
    """The net of `build`, in torch's own words and with torch's own batch norm."""
    encoder = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
    return nn.Sequential(OrderedDict(encoder=encoder, head=nn.Linear(48, CLASSES))).double()


def test_two_rounds_of_warmup_a_shared_set_and_two_rounds_with_it_equal_plain_loops(tmp_path):
    share = replace(SHARE, sigma=0.0, s=60, clip=1.5)
    finish = run_plan(plan_of(share), tmp_path / "run")

    states = plain_net().state_dict()
    states |= {**build().params, **build().buffers}
    for _ in range(2):
        states = plain_fedavg_round(states, (0, 1, 2), None)
    module = plain_net()
    module.load_state_dict(states)
    module.eval()
    images, labels = [], []
    for client in range(3):
        for image, label in zip(*client_data(client), strict=True):
            leaf = image.clone().requires_grad_()
            (slope,) = torch.autograd.grad(module(leaf[None])[0, label], leaf)
            images.append(torch.from_numpy(plain_share(image.numpy(), np.abs(slope.numpy()).sum(0), 60, 1.5)))
            labels.append(label)
    pool = torch.stack(images), torch.stack(labels)
    torch.testing.assert_close(finish.state.public[POOL].tensors["x"], pool[0], rtol=0, atol=1e-10)
    for _ in range(2):
        states = plain_fedavg_round(states, (0, 2), pool)

    found = {**finish.state.shared["shared"], **finish.state.shared["buffers"]}
    for name, value in found.items():
        torch.testing.assert_close(value, states[name], rtol=0, atol=1e-10)


def test_the_bytes_of_a_run_equal_the_formulas(tmp_path):
    finish = run_plan(plan_of(SHARE, rounds=3), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "wire.jsonl").read_text().splitlines()]
    net = build()
    b = 8  # fp64
    model = b * (sum(v.numel() for v in net.params.values()) + sum(v.numel() for v in net.buffers.values()))  # bP + beta
    example = b * 2 * 6 * 6 + 8  # b D + 8

    def total(phase, direction, once):
        chosen = [e for e in lines if (e["phase"], e["direction"], e["once"]) == (phase, direction, once)]
        return sum(entry["bytes"] for entry in chosen)

    assert total("warmup", "up", False) == 2 * 3 * (model + 8) and total("warmup", "down", False) == 2 * 3 * model
    assert total("share", "up", False) == sum(SIZES) * example
    assert total("share", "down", False) == 3 * model  # the model whose relevance is computed
    assert total("train", "up", False) == 3 * 2 * (model + 8) and total("train", "down", False) == 3 * 2 * model
    assert total("train", "down", True) == 2 * sum(SIZES) * example  # both participants, once
    assert finish.summary["bytes"]["once"] == 2 * sum(SIZES) * example


def test_the_server_never_holds_an_image_without_noise(tmp_path, monkeypatch):
    """Every Message of a run, in both directions: no row of it is a client's v or x, under any scaling."""
    crossed = []

    def count(self, direction, message, exchange=None):
        crossed.append(message)
        return original(self, direction, message, exchange)

    original = Ledger.count
    monkeypatch.setattr(Ledger, "count", count)
    finish = run_plan(plan_of(replace(SHARE, relevance="random"), rounds=1), tmp_path / "run")
    rows = [row.flatten() for message in crossed for group in message.groups.values() for row in group.get("x", [])]
    rows += [row.flatten() for row in finish.state.public[POOL].tensors["x"]]
    assert len(rows) == 2 * sum(SIZES)
    for client in range(3):
        x, y = client_data(client)
        round = Round(2, 4, "share", 0, 1, (0, 1, 2), 3)
        site = replace(site_of(build(), client, round=round), key=Key(0, ("round", 2, "client", client)))
        share = replace(SHARE, relevance="random")
        v = share.clipped(x, share.maps(None, site, x, y))
        for secret in [*x, *v]:
            for row in rows:
                closeness = F.cosine_similarity(row, secret.flatten(), dim=0)
                assert closeness < 0.9, "a Message holds an image as it was"
    for row in finish.clients.values():
        assert not any(value.numel() == 72 for group in row.values() for value in group.values())


def test_a_run_with_an_audit_seed_resumes_bit_for_bit(tmp_path):
    whole_run = run_plan(plan_of(SHARE, rounds=1), tmp_path / "whole")
    plan = plan_of(SHARE, rounds=1)
    run_plan(plan[:2], tmp_path / "cut")
    resumed = run(
        plan, population(), net=build(), metric=Classification(CLASSES), out=tmp_path / "cut", resume=True,
        settings=Settings(backend="loop", precision="fp64"),
    )  # fmt: skip
    for group, tensors in whole_run.state.shared.items():
        for name, value in tensors.items():
            assert torch.equal(value, resumed.state.shared[group][name]), (group, name)
    assert whole_run.state.public[POOL].digest == resumed.state.public[POOL].digest


def test_the_order_of_clients_changes_nothing(tmp_path):
    plan = plan_of(SHARE, rounds=1, warmup=1)
    first, other = run_plan(plan, tmp_path / "forward"), run_plan(plan, tmp_path / "reversed", order="reversed")
    assert other.summary["results"] == first.summary["results"]
    assert other.state.public[POOL].digest == first.state.public[POOL].digest


def test_without_a_pool_there_is_one_sentence():
    net = build()
    with pytest.raises(ValueError, match=r"needs public content 'pool', found none\. Put a Share phase before it"):
        next(WithPool(FedAvg()).client({}, down_of(net), site_of(net)))


def test_running_statistics_of_both_or_of_local_batches_only():
    net, pool = build(), pool_of()
    x, y = client_data(0)
    batch = {"local": {"x": x, "y": y, "mask": torch.ones(7)}, POOL: {**pool, "mask": torch.ones(10)}}
    module = net.bind(net.params, net.buffers).train()
    module(x)
    losses = [PoolLoss(Supervised(), kind)({"shared": net.params}, {"buffers": net.buffers}, {}, batch, net) for kind in
              ("both", "local")]  # fmt: skip
    torch.testing.assert_close(losses[0].value, losses[1].value)
    for name, value in losses[1].buffers["buffers"].items():
        torch.testing.assert_close(value, module.get_buffer(name))
        assert not torch.equal(value, losses[0].buffers["buffers"][name])
    with pytest.raises(ValueError, match="statistics must be both or local, found 'pool'"):
        WithPool(FedAvg(), "pool")


def test_the_walk_tells_the_three_numbers_and_draws_what_is_shared(tmp_path):
    session = Session.open("walk_fedxds", {}, Settings(backend="loop", quiet=True), tmp_path / "walk")
    walk_fedxds(session, rounds=1, warmup_rounds=1, clients=3, limit=90, epochs=1, relevance="gradient", label_eps=2.0)
    told = json.loads((tmp_path / "walk" / "fedxds.json").read_text())
    assert list(told) == ["fedavg", "fedxds_gradient", "fedxds_random"]
    gradient, random = told["fedxds_gradient"], told["fedxds_random"]
    assert gradient["guarantee"]["b_image_eps"] == pytest.approx(9456.56, abs=0.01)
    assert gradient["guarantee"]["c_image_and_label_eps"] == pytest.approx(9458.56, abs=0.01)
    assert (gradient["guarantee"]["a_holds_for_this_mask"], random["guarantee"]["a_holds_for_this_mask"]) == (False, True)
    assert gradient["noise_from"] == "audit seed 0" and "subtracted" in gradient["warning"]
    for name, run_ in told.items():
        lines = [json.loads(line) for line in (tmp_path / "walk" / name / "metrics.jsonl").read_text().splitlines()]
        central = [x["accuracy"] for x in lines if x.get("split") == "central" and x["model"] == "global"]
        assert run_["mean_central_accuracy"] == run_["central_accuracy"] == central[-1]  # one round after sharing
    assert gradient["bytes"]["once"] == 3 * gradient["shared_images"] * (4 * 256 + 8)
    picture = tmp_path / "walk" / "fedxds_gradient" / "media" / "shared.png"
    pillow = pytest.importorskip("PIL.Image", reason="pictures need the extra [vision]")
    pixels = np.asarray(pillow.open(picture).convert("L"))
    assert pixels.shape[1] == 4 * 96 and pixels.std() > 20


def test_the_walk_looks_at_its_model_in_the_precision_of_the_run(tmp_path):
    pytest.importorskip("PIL", reason="pictures need coterie[vision]")
    session = Session.open("walk_fedxds", {}, Settings(backend="loop", quiet=True, precision="fp64"), tmp_path / "walk")
    walk_fedxds(session, rounds=1, warmup_rounds=1, clients=2, limit=60, epochs=1, relevance="gradient", control=False)
    assert (tmp_path / "walk" / "fedxds_gradient" / "media" / "shared.png").is_file()


def test_the_walk_says_who_won_and_what_it_shared(capsys):
    v = torch.tensor([[[[3.0, 0.0], [0.0, 4.0]]], [[[0.0, 1.0], [0.0, 0.0]]]])  # squared lengths 25 and 1
    noise = 0.5 * torch.randn(4000, 2, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    assert squared_length((v + noise).flatten(0, 1), 0.5) == pytest.approx(13.0, abs=0.15)
    guarantee = {"unit": "u", "delta": 1e-5, "sigma": 0.15, "a_metric_curve": {}, "a_holds_for_this_mask": False, "b_image_eps": 1.0,
                 "sigma_for_image_eps_8": 1.0, "c_image_and_label_eps": None, "label_eps": None, "covers": "c"}  # fmt: skip
    own = {"shared_images": 2, "guarantee": guarantee, "squared_length": 12.0}
    tell(
        {
            "fedavg": {"central_accuracy": 0.9, "mean_central_accuracy": 0.6},
            "fedxds_lrp": {"central_accuracy": 0.7, "mean_central_accuracy": 0.65, **own},
            "fedxds_random": {"central_accuracy": 0.5, "mean_central_accuracy": 0.7, **own},
        },
        "fedxds_lrp",
        None,
    )
    out = capsys.readouterr().out
    assert "fedxds_lrp against fedavg: -20.0 points in the last round, +5.0 in the mean" in out
    assert "fedxds_lrp against fedxds_random: +20.0 points in the last round, -5.0 in the mean" in out
    assert "pip install 'coterie[vision]'" in out
