"""Nets as pure functions: sizes by hand, frozen norms, buffers in and out, many clients at once."""

import pytest
import torch
from torch import nn

from coterie.models.losses import CrossEntropy
from coterie.models.net import EncoderHead, Net
from coterie.models.nets import cnn2, mlp, resnet8, resnet10w, resnet18, resnet34
from coterie.models.norm import BatchNorm
from coterie.models.text import small_transformer, text_transformer


def count(tensors):
    return sum(value.numel() for value in tensors.values())


@pytest.mark.parametrize(
    ("build", "parameters", "encoder", "buffers"),
    [
        # 5*5*1*32 + 32 + 5*5*32*64 + 64 + 1024*512 + 512 (+ 512*10 + 10)
        (lambda: cnn2(1, 28, 10), 582_026, 576_896, 0),
        # the table of spec/wire.md, section 1
        (lambda: resnet18(3, 10), 11_173_962, 11_168_832, 9_600),
        (lambda: resnet18(3, 10, stem="tv"), 11_181_642, 11_176_512, 9_600),
        (lambda: resnet34(3, 100), 21_328_292, 21_276_992, 17_024),
        (lambda: text_transformer(4), 22_690_820, 22_688_768, 0),
        (lambda: text_transformer(5), 22_691_333, 22_688_768, 0),
        # 4096*64 + (64*192+192 + 64*64+64 + 64*128+128 + 128*64+64 + 4*64) (+ 64*4+4)
        (lambda: small_transformer(4), 295_876, 295_616, 0),
        (lambda: resnet10w(3, 10), 4_903_242, 4_898_112, 5_760),
        (lambda: resnet10w(3, 62), 4_929_918, 4_898_112, 5_760),
        # 64*64 + 64 (+ 64*10 + 10)
        (lambda: mlp(64, 10), 4_810, 4_160, 0),
    ],
)
def test_sizes(build, parameters, encoder, buffers):
    net = build()
    assert count(net.params) == parameters and count(net.buffers) == buffers
    assert sum(net.params[n].numel() for n in net.encoder_names) == encoder
    assert set(net.encoder_names) | set(net.head_names) == set(net.params)
    assert sorted(n for names in net.groups.values() for n in names) == sorted(net.params)
    assert sorted(n for names in net.buffer_groups.values() for n in names) == sorted(net.buffers)
    assert not any("num_batches" in name for name in net.buffers)  # never sent, so never counted


def plain_resnet8(net):
    """The same values in torch's own layers, written as a function."""

    def norm(x, name, train):
        p = {leaf: v for leaf, v in ((leaf, {**net.params, **net.buffers}[f"{name}.{leaf}"]) for leaf in LEAVES)}
        statistics = (None, None) if train else (p["running_mean"], p["running_var"])
        return nn.functional.batch_norm(x, *statistics, p["weight"], p["bias"], training=train)

    def conv(x, name, stride=1, padding=1):
        return nn.functional.conv2d(x, net.params[f"{name}.weight"], stride=stride, padding=padding)

    def forward(x, train):
        x = torch.relu(norm(conv(x, "encoder.stem.0"), "encoder.stem.1", train))
        for stage in (1, 2, 3):
            block, stride = f"encoder.stage{stage}.0", 1 if stage == 1 else 2
            out = torch.relu(norm(conv(x, f"{block}.conv1", stride), f"{block}.bn1", train))
            out = norm(conv(out, f"{block}.conv2"), f"{block}.bn2", train)
            if stage > 1:
                x = norm(conv(x, f"{block}.shortcut.0", stride, 0), f"{block}.shortcut.1", train)
            x = torch.relu(out + x)
        return x.mean((2, 3)) @ net.params["head.weight"].T + net.params["head.bias"]

    return forward


LEAVES = ("weight", "bias", "running_mean", "running_var")


@pytest.fixture
def small():
    """resnet8 in float64 with statistics that have moved."""
    torch.manual_seed(0)
    net = resnet8(3, 4).to("cpu", torch.float64)
    x = torch.randn(6, 3, 8, 8, dtype=torch.float64)
    _, buffers = net.apply(net.params, net.buffers, {"x": x + 0.3}, train=True)
    net.buffers = buffers
    return net, x


@pytest.mark.parametrize("train", [True, False])
def test_resnet8_is_what_its_paper_draws(small, train):
    net, x = small
    out, _ = net.apply(net.params, net.buffers, {"x": x}, train=train)
    assert (out - plain_resnet8(net)(x, train)).abs().max() < 1e-12


def test_buffers_go_in_and_come_out(small):
    """Training returns moved statistics and leaves the given ones alone; evaluation returns what it got."""
    net, x = small
    before = {name: value.clone() for name, value in net.buffers.items()}
    _, after = net.apply(net.params, net.buffers, {"x": x}, train=True)
    assert all(torch.equal(net.buffers[n], v) for n, v in before.items())
    assert all(not torch.equal(after[n], v) for n, v in before.items())
    z = nn.functional.conv2d(x, net.params["encoder.stem.0.weight"], padding=1)
    expected = 0.9 * before["encoder.stem.1.running_var"] + 0.1 * z.var((0, 2, 3))
    assert (after["encoder.stem.1.running_var"] - expected).abs().max() < 1e-12
    _, same = net.apply(net.params, net.buffers, {"x": x}, train=False)
    assert all(torch.equal(same[n], v) for n, v in before.items())


def test_a_norm_with_running_statistics_is_evaluation(small):
    net, x = small
    frozen, after = net.with_running_statistics().apply(net.params, net.buffers, {"x": x}, train=True)
    evaluated, _ = net.apply(net.params, net.buffers, {"x": x}, train=False)
    assert (frozen - evaluated).abs().max() < 1e-12
    assert all(torch.equal(after[n], v) for n, v in net.buffers.items())


def test_only_norms_whose_scale_is_frozen_use_running_statistics(small):
    """By hand for a net of two norms of which the first is frozen."""
    torch.manual_seed(1)
    encoder = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.BatchNorm1d(4))
    net = Net(EncoderHead(encoder, nn.Linear(4, 2), 4), CrossEntropy()).to("cpu", torch.float64)
    buffers = {**net.buffers, "encoder.0.running_mean": torch.full((3,), 0.5).double(), "encoder.0.running_var": torch.full((3,), 4.0).double()}
    frozen = {"encoder.0.weight": torch.tensor(True), "encoder.2.weight": torch.tensor(False)}
    x = torch.randn(7, 3, dtype=torch.float64)
    out, after = net.freezing(frozen).encode(net.params, buffers, {"x": x}, train=True)
    z = ((x - 0.5) / (4.0 + 1e-5) ** 0.5) @ net.params["encoder.1.weight"].T + net.params["encoder.1.bias"]
    expected = (z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt()
    assert (out - expected).abs().max() < 1e-12
    assert torch.equal(after["encoder.0.running_mean"], buffers["encoder.0.running_mean"])
    assert (after["encoder.2.running_mean"] - 0.1 * z.mean(0)).abs().max() < 1e-12
    assert (after["encoder.2.running_var"] - (0.9 + 0.1 * z.var(0))).abs().max() < 1e-12


@pytest.mark.parametrize("flags", [None, (True, False)])
def test_many_clients_at_once_equal_one_at_a_time(small, flags):
    """vmap(grad) over clients, with statistics stacked; also when one freezes its norms and the other does not."""
    net, _ = small
    torch.manual_seed(2)
    x, y = torch.randn(2, 5, 3, 8, 8, dtype=torch.float64), torch.randint(0, 4, (2, 5))
    mask = torch.ones(2, 5, dtype=torch.bool)
    params = {n: torch.stack([v, v + 0.01 * torch.randn_like(v)]) for n, v in net.params.items()}
    buffers = {n: torch.stack([v, v + 0.1]) for n, v in net.buffers.items()}
    frozen = {} if flags is None else {n: torch.tensor(flags) for n in net.norm_names}

    def step(params, buffers, frozen, x, y, mask):
        own = net.freezing(frozen) if frozen else net

        def loss(params):
            out, after = own.apply(params, buffers, {"x": x}, train=True)
            return own.loss(out, {"y": y, "mask": mask})[0], after

        return torch.func.grad(loss, has_aux=True)(params)

    stacked = torch.func.vmap(step)(params, buffers, frozen, x, y, mask)
    for i in range(2):
        alone = step(*({n: v[i] for n, v in group.items()} for group in (params, buffers, frozen)), x[i], y[i], mask[i])
        for together, single in zip(stacked, alone, strict=True):
            assert max(float((together[n][i] - v).abs().max()) for n, v in single.items()) < 1e-9


def test_encode_and_head_make_apply(small):
    net, x = small
    z, _ = net.encode({n: net.params[n] for n in net.encoder_names}, net.buffers, {"x": x}, train=False)
    assert z.shape == (6, net.num_features) and net.num_outputs == 4
    assert torch.equal(net.head(net.params, z), net.apply(net.params, net.buffers, {"x": x}, train=False)[0])


def test_bind_is_an_ordinary_module_with_these_values(small):
    net, x = small
    moved = {n: v + 0.1 for n, v in net.params.items()}
    module = net.bind(moved, net.buffers)
    assert (module(x) - net.apply(moved, net.buffers, {"x": x}, train=False)[0]).abs().max() < 1e-12
    assert {n: p.requires_grad for n, p in module.named_parameters()} == dict.fromkeys(net.params, True)


def test_padding_counts_for_nothing_in_the_loss():
    logits, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
    value, metrics = CrossEntropy()(logits, {"y": y, "mask": torch.tensor([True, True, False])})
    expected = -torch.log_softmax(logits[:2], 1)[[0, 1], [0, 1]].mean()
    assert float(value) == pytest.approx(float(expected), abs=1e-6)
    assert float(metrics["accuracy"]) == float((logits[:2].argmax(1) == y[:2]).double().mean())


def test_torchs_norms_become_ours_with_their_values():
    theirs = nn.BatchNorm1d(3)
    nn.init.constant_(theirs.weight, 2.0)
    net = Net(nn.Sequential(nn.Linear(2, 3), theirs), CrossEntropy())
    assert torch.equal(net.params["1.weight"], torch.full((3,), 2.0)) and net.norm_names == ("1.weight", "1.bias")
    assert isinstance(net.bind(net.params, net.buffers)[1], BatchNorm)


def test_a_net_without_parts_says_how_to_build_one():
    with pytest.raises(ValueError, match=r"needs a net with encoder and head, found Linear\. Build it as"):
        Net(nn.Linear(2, 2), CrossEntropy()).encode({}, {}, {"x": torch.zeros(1, 2)}, train=False)


def norm_and_head(norm, head=None):
    encoder = nn.Sequential(nn.Linear(3, 4), norm)
    return Net(EncoderHead(encoder, head or nn.Linear(4, 2), 4), CrossEntropy())


@pytest.mark.parametrize("frozen", [False, True])
def test_a_batch_of_one_example_is_normalised_with_running_statistics(frozen):
    """Its variance is undefined, and the last batch of a pass may be short."""
    net = norm_and_head(nn.BatchNorm1d(4))
    net = net.freezing({"encoder.1.weight": torch.tensor(False)}) if frozen else net
    buffers = {name: value + 0.5 for name, value in net.buffers.items()}
    x = {"x": torch.randn(1, 3)}
    trained, after = net.apply(net.params, buffers, x, train=True)
    assert torch.equal(trained, net.apply(net.params, buffers, x, train=False)[0])
    assert all(torch.equal(after[name], value) for name, value in buffers.items())


def test_a_norm_without_scale_trains_none():
    theirs = norm_and_head(nn.BatchNorm1d(4, affine=False))
    assert list(theirs.params) == ["encoder.0.weight", "encoder.0.bias", "head.weight", "head.bias"]
    x = {"x": torch.randn(5, 3)}
    hidden = torch.nn.functional.linear(x["x"], theirs.params["encoder.0.weight"], theirs.params["encoder.0.bias"])
    expected = (hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(theirs.encode(theirs.params, theirs.buffers, x, train=True)[0], expected)


@pytest.mark.parametrize("knobs", [{"track_running_stats": False}, {"momentum": None}])
def test_a_norm_that_works_otherwise_is_refused(knobs):
    with pytest.raises(ValueError, match=r"batch norm '1' keeps no running statistics with a fixed momentum, found BatchNorm1d.*Build"):
        norm_and_head(nn.BatchNorm1d(4, **knobs))


def test_a_head_of_several_layers_has_the_last_ones_outputs():
    assert norm_and_head(nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 2))).num_outputs == 2


def test_tied_weights_are_one_parameter_wherever_they_are_used() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3, bias=False)
            self.second = nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.second(self.first(x))
            return out

    net = Net(EncoderHead(Tied(), nn.Linear(3, 2), 3), CrossEntropy())
    w = torch.arange(9.0).reshape(3, 3)
    x = torch.ones(1, 3)
    found, _ = net.encode({"encoder.first.weight": w}, {}, {"x": x}, train=True)
    assert torch.equal(found, x @ w.T @ w.T) and "encoder.second.weight" not in net.params
    assert torch.equal(net.bind({"encoder.first.weight": w}, {}).encoder(x), x @ w.T @ w.T)
