"""The sharing round of FedXDS: what a client may send and what it may not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_fedxds import (
    CLASSES,
    IMAGE,
    SHARE,
    SIZES,
    build,
    client_data,
    down_of,
    finished,
    hub_of,
    parts,
    plain_share,
    shared_by,
    site_of,
)

from coterie.message import Message
from coterie.methods.fedavg import FedAvg, head_names
from coterie.methods.fedxds import POOL, fresh_uniform, randomised
from coterie.models.losses import CrossEntropy
from coterie.models.nets import mlp, resnet
from coterie.privacy.metric_privacy import k_rr
from coterie.randomness import Key
from coterie.states import ServerState

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


@pytest.mark.parametrize("audit_seed", [None, 7])
def test_no_noise_is_used_twice_in_a_large_set(audit_seed):
    """Noise is drawn some rows at a time; two rows with the same noise would give away their difference."""
    net, count = build(), 1100
    share, zeros = replace(SHARE, audit_seed=audit_seed), torch.zeros(count, 1, 2, 3, dtype=torch.float64)
    noise = share.noised(zeros, zeros[:, 0], site_of(net))
    assert noise.shape == zeros.shape and len(noise.unique()) == noise.numel()
    assert noise.std() == pytest.approx(0.3, rel=0.05)


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
