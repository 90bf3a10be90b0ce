"""FedXDS against plain loops, and what a client may and may not send while it shares."""

import json
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from coterie.data.examples import ClientParts, Population, whole
from coterie.engine.answers import Context, answer
from coterie.engine.run import run
from coterie.engine.settings import Settings
from coterie.engine.wire import Ledger
from coterie.message import Message
from coterie.method import SGD, Hub, Named, Round, Site, peek
from coterie.methods.fedavg import FedAvg, Supervised, Training, head_names
from coterie.methods.fedxds import POOL, PoolLoss, Share, WithPool, fedxds, fresh_uniform, randomised
from coterie.metrics import Classification
from coterie.models.losses import CrossEntropy
from coterie.models.net import EncoderHead, Net
from coterie.models.nets import mlp, resnet
from coterie.privacy.metric_privacy import k_rr
from coterie.randomness import Key
from coterie.states import ServerState

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


# --- what leaves a client ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relevance", ["lrp", "gradient", "random"])
def test_clip_then_noise_on_every_entry(relevance):
    net = build()
    if relevance == "lrp":
        pytest.importorskip("zennit", reason="LRP needs the extra [xai]")
    noisy = shared_by(replace(SHARE, relevance=relevance), net)["x"]
    v = shared_by(replace(SHARE, relevance=relevance, sigma=0.0), net)["x"]
    assert v.flatten(1).norm(dim=1).max() <= 1.0 + 1e-12
    assert (v.flatten(1).norm(dim=1) > 0.99).any()  # the clip was at work
    noise = noisy - v
    removed = v == 0
    assert removed.double().mean() >= 0.75 and (noise[removed] != 0).all() and (noise[~removed] != 0).all()
    assert noise.std() == pytest.approx(0.3, rel=0.15) and noise[removed].std() == pytest.approx(0.3, rel=0.15)


def test_the_audit_seed_repeats_and_the_operating_system_does_not():
    net = build()
    assert torch.equal(shared_by(SHARE, net)["x"], shared_by(SHARE, net)["x"])
    assert not torch.equal(shared_by(SHARE, net)["x"], shared_by(replace(SHARE, audit_seed=12), net)["x"])
    fresh = replace(SHARE, audit_seed=None)
    first, second = shared_by(fresh, net)["x"], shared_by(fresh, net)["x"]
    assert (first != second).all()
    v = shared_by(replace(SHARE, sigma=0.0), net)["x"]
    assert (first - v).std() == pytest.approx(0.3, rel=0.15)


def test_two_clients_never_share_their_noise():
    net, noise = build(), []
    for client in (0, 2):
        x, y = client_data(0)
        site = replace(site_of(net, client), data=parts(x, y), key=Key(0))
        noise.append(finished(SHARE.client({}, down_of(net), site))[1]["shared_examples"]["x"])
    assert (noise[0] != noise[1]).all()


def test_fresh_uniforms_are_uniform():
    u = fresh_uniform(torch.Size((200, 1000)))
    assert float(u.min()) > 0 and float(u.max()) < 1
    counts = torch.histc(u, 20, 0, 1)
    chi_squared = float(((counts - 10_000) ** 2 / 10_000).sum())
    assert chi_squared < 60  # 19 degrees of freedom: above 60 with probability 4e-6


def test_the_sent_set_by_plain_loops():
    """Gradient, mask, clip (sigma 0) written out for one client, example by example."""
    net, share = build(), replace(SHARE, sigma=0.0, s=70, mask="soft", clip=0.8)
    sent = shared_by(share, net, client=1)
    x, y = client_data(1)
    module = net.bind(net.params, net.buffers)
    for i in range(len(x)):
        image = x[i].clone().requires_grad_()
        (slope,) = torch.autograd.grad(module(image[None])[0, y[i]], image)
        np.testing.assert_allclose(sent["x"][i], plain_share(x[i].numpy(), np.abs(slope.numpy()).sum(0), 70, 0.8), atol=1e-12)
    assert torch.equal(sent["y"], y)


def plain_share(image, relevance, s, clip):
    flat = relevance.reshape(-1)
    keep = int(np.ceil((100 - s) * flat.size / 100))
    best = sorted(range(flat.size), key=lambda p: (-flat[p], p))[:keep]
    weights = np.zeros(flat.size)
    for p in best:
        weights[p] = (flat[p] - flat.min()) / (flat.max() - flat.min())
    v = image * weights.reshape(relevance.shape)
    return v * min(1.0, clip / np.sqrt((v**2).sum()))


def test_noise_on_kept_pixels_only_shows_the_mask():
    net = build()
    share = replace(SHARE, noise_on="kept", mask="binary", s=80)
    site = site_of(net)
    x, y = client_data(0)
    true_mask = torch.zeros(len(x), 6, 6, dtype=torch.bool)
    maps = share.maps(share.inner.personal({}, down_of(net), site), site, x, y)
    for i, relevances in enumerate(maps.flatten(1).tolist()):
        best = sorted(range(36), key=lambda p: (-relevances[p], p))[:8]  # ceil(0.2 * 36)
        true_mask[i].view(-1)[best] = True
    seen = (shared_by(share, net)["x"] != 0).any(1)
    assert torch.equal(seen, true_mask)
    assert (shared_by(replace(share, noise_on="all"), net)["x"] != 0).all()


def test_labels_are_randomised_only_when_asked():
    net = build()
    _, y = client_data(1)
    assert torch.equal(shared_by(SHARE, net, client=1)["y"], y)
    assert torch.equal(shared_by(replace(SHARE, label_eps=50.0), net, client=1)["y"], y)
    assert not torch.equal(shared_by(replace(SHARE, label_eps=0.1), net, client=1)["y"], y)


@pytest.mark.parametrize("eps", [0.0, 1.0, 4.0])
def test_randomised_response_has_the_accounted_probabilities(eps):
    labels = torch.full((100_000,), 2)
    counts = torch.bincount(randomised(labels, eps, 5, fresh_uniform(labels.shape)), minlength=5) / len(labels)
    keep = k_rr(eps, 5)
    expected = [(1 - keep) / 4] * 5
    expected[2] = keep
    assert counts.tolist() == pytest.approx(expected, abs=0.008)  # five standard deviations


def test_the_fraction_of_images():
    net = build()
    sent = shared_by(replace(SHARE, fraction=0.5, sigma=0.0, s=0, mask="binary", clip=100.0), net, client=1)
    x, y = client_data(1)
    assert len(sent["x"]) == len(sent["y"]) == 6
    for image, label in zip(sent["x"], sent["y"], strict=True):
        (i,) = [i for i in range(len(x)) if torch.equal(x[i], image)]
        assert y[i] == label


def test_private_parts_of_the_model_take_part_in_the_relevance():
    net = build()
    inner = FedAvg(private=head_names)
    share = replace(SHARE, inner=inner, sigma=0.0)
    head = {name: net.params[name] for name in net.head_names}
    down = Message({"shared": {n: v for n, v in net.params.items() if n not in head}, "buffers": net.buffers})
    site = site_of(net)
    same = finished(share.client({"private": head}, down, site))[1]["shared_examples"]["x"]
    torch.testing.assert_close(same, shared_by(replace(SHARE, sigma=0.0), net)["x"])
    turned = {name: -value.flip(0) for name, value in head.items()}
    other = finished(share.client({"private": turned}, down, site))[1]["shared_examples"]["x"]
    assert not torch.equal(same, other)


# --- the server --------------------------------------------------------------------------------------------------------


def test_the_pool_is_the_sets_in_the_order_of_clients():
    net = build()
    each = {client: Message({"shared_examples": shared_by(SHARE, net, client)}) for client in (2, 0, 1)}
    state = SHARE.absorb(ServerState(), None, each, hub_of(net))
    pool = state.public[POOL].tensors
    assert len(pool["x"]) == len(pool["y"]) == sum(SIZES)
    assert torch.equal(pool["x"][: SIZES[0]], each[0]["shared_examples"]["x"])
    assert torch.equal(pool["y"][-SIZES[2] :], each[2]["shared_examples"]["y"])


def test_the_payload_is_what_the_slots_say_and_costs_4_d_plus_8():
    net = resnet(2, CLASSES, (3, 4), (1, 1), CrossEntropy())
    site = site_of(net, 1)
    x, y = client_data(1)
    site = replace(site, data=parts(x.float(), y))
    share = replace(SHARE, image=IMAGE)
    row, message = finished(share.client({"kept": {}}, down_of(net), site))
    (slot,) = share.slots(hub_of(net)).values()
    assert (slot.reduce, slot.guard) == ("each", "examples") and message.weight is None and row == {"kept": {}}
    assert {n: (v.shape[1:], v.dtype) for n, v in message["shared_examples"].items()} == {
        n: (shape[1:], dtype) for n, (shape, dtype) in slot.spec.items()
    }
    assert message.bytes_by_slot() == {"shared_examples": 12 * (4 * 2 * 6 * 6 + 8)}


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
    ask = peek(method.client({}, down_of(net), site), moves="shared")
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
    ask = peek(WithPool(FedAvg()).client({}, down_of(net), site), moves="shared")
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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"s": 100.0}, r"must lie in \[0, 100\), found 100"),
        ({"relevance": "lrpp"}, "relevance must be one of lrp, gradient, random, found 'lrpp'"),
        ({"mask": "hard"}, "mask must be one of soft, binary, found 'hard'"),
        ({"noise_on": "retained"}, "noise_on must be one of all, kept"),
        ({"clip": 0.0}, "clip must be above 0 and sigma at least 0, found 0.0 and 0.3"),
        ({"sigma": -1.0}, "clip must be above 0 and sigma at least 0"),
        ({"fraction": 0.0}, r"fraction must lie in \(0, 1\], found 0.0"),
        ({"label_eps": -1.0}, "label_eps must be at least 0, found -1.0"),
    ],
)
def test_wrong_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        replace(SHARE, **wrong)


def test_images_of_another_size_are_refused():
    net = build()
    with pytest.raises(ValueError, match=r"built for images of shape \(1, 6, 6\), found \(2, 6, 6\)"):
        finished(replace(SHARE, image=(1, 6, 6)).client({}, down_of(net), site_of(net)))


def test_what_lrp_can_not_do_is_found_before_the_run():
    pytest.importorskip("zennit", reason="LRP needs the extra [xai]")
    net = mlp(72, CLASSES)
    with pytest.raises(ValueError, match=r"needs a convolution first, found Linear.*relevance='gradient'"):
        replace(SHARE, relevance="lrp").slots(hub_of(net))
    assert set(replace(SHARE, relevance="gradient").slots(hub_of(net))) == {"shared_examples"}


def test_a_model_that_is_not_the_net_has_no_relevance():
    net = build()
    head = Message({"shared": {name: net.params[name] for name in net.head_names}, "buffers": net.buffers})
    with pytest.raises(ValueError, match="found 2 parameters of 6"):
        finished(SHARE.client({}, head, site_of(net)))


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
