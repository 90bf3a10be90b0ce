"""LRP against its rules written out in NumPy, on a small residual net with batch norms that have seen data."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from coterie.attribution import Layers, fold_batch_norms, gradient, lrp
from coterie.models.losses import CrossEntropy
from coterie.models.nets import GlobalPool, Sum, cnn2, resnet, resnet8
from coterie.models.norm import BatchNorm

pytest.importorskip("zennit", reason="LRP needs the extra [xai]")

LAYERS = Layers(norms=(BatchNorm,), sums=(Sum,), pools=(GlobalPool,))
EPS = 1e-6


# --- the rules of FX-D11, one example, flat vectors --------------------------------------------------------------------


def toward_zero_safe(z):
    return z + EPS * np.where(z >= 0, 1.0, -1.0)


def epsilon_rule(a, w, b, relevance):
    z = w @ a + b
    return a * (w.T @ (relevance / toward_zero_safe(z)))


def zplus_rule(a, w, b, relevance):
    parts = np.maximum(a, 0) * np.maximum(w, 0) + np.minimum(a, 0) * np.minimum(w, 0)
    z = parts.sum(1) + np.maximum(b, 0) + EPS
    return (parts * (relevance / z)[:, None]).sum(0)


def flat_rule(connected, relevance):
    return connected.T @ (relevance / (connected.sum(1) + EPS))


def share_of(part, whole, relevance):
    return part * relevance / toward_zero_safe(whole)


def test_the_rules_by_hand():
    a, w, b, above = np.array([1.0, 2.0]), np.array([[1.0, -1.0], [2.0, 1.0]]), np.zeros(2), np.array([3.0, 4.0])
    # z+ = (1, 4): R_0 = 1/1 * 3 + 2/4 * 4, R_1 = 2/4 * 4
    np.testing.assert_allclose(zplus_rule(a, w, b, above), [5.0, 2.0], rtol=1e-5)
    # z = (-1, 4): R_0 = -3 + 2, R_1 = 6 + 2
    np.testing.assert_allclose(epsilon_rule(a, w, b, above), [-1.0, 8.0], rtol=1e-5)
    np.testing.assert_allclose(flat_rule(np.ones((2, 2)), above), [3.5, 3.5], rtol=1e-5)


def dense(kernel, stride, padding, shape):
    """A convolution without bias as a matrix, tap by tap; also which inputs each output is connected to."""
    outputs, _, side, _ = kernel.shape
    channels, height, width = shape
    rows, cols = (height + 2 * padding - side) // stride + 1, (width + 2 * padding - side) // stride + 1
    matrix = np.zeros((outputs, rows, cols, channels, height, width))
    connected = np.zeros_like(matrix)
    for r in range(rows):
        for c in range(cols):
            for dr in range(side):
                for dc in range(side):
                    i, j = r * stride + dr - padding, c * stride + dc - padding
                    if 0 <= i < height and 0 <= j < width:
                        matrix[:, r, c, :, i, j] = kernel[:, :, dr, dc]
                        connected[:, r, c, :, i, j] = 1.0
    size = outputs * rows * cols
    return matrix.reshape(size, -1), connected.reshape(size, -1), (outputs, rows, cols)


class Layer:
    """A convolution with its batch norm folded in, as matrix and bias."""

    def __init__(self, conv, norm, shape):
        scale = (norm.weight / torch.sqrt(norm.running_var + norm.eps)).detach().numpy()
        bias = norm.bias.detach().numpy() - norm.running_mean.numpy() * scale
        kernel = conv.weight.detach().numpy() * scale[:, None, None, None]
        self.w, self.connected, self.shape = dense(kernel, conv.stride[0], conv.padding[0], shape)
        self.b = np.repeat(bias, self.shape[1] * self.shape[2])

    def __call__(self, a):
        return self.w @ a + self.b


def oracle(module, image, label):
    """Logits and the relevance map of one image through stem, two blocks, pool and head."""
    encoder = module.encoder
    stem = Layer(encoder.stem[0], encoder.stem[1], image.shape)
    a0 = image.reshape(-1)
    a = np.maximum(stem(a0), 0)
    shape, passes = stem.shape, []
    for stage in (encoder.stage1, encoder.stage2):
        block = stage[0]
        first = Layer(block.conv1, block.bn1, shape)
        second = Layer(block.conv2, block.bn2, first.shape)
        side = None if isinstance(block.shortcut, nn.Identity) else Layer(block.shortcut[0], block.shortcut[1], shape)
        middle = np.maximum(first(a), 0)
        deep, short = second(middle), a if side is None else side(a)
        passes.append((a, middle, deep, short, first, second, side))
        a, shape = np.maximum(deep + short, 0), second.shape
    features = a.reshape(shape[0], -1).mean(1)
    w, b = module.head.weight.detach().numpy(), module.head.bias.detach().numpy()
    logits = w @ features + b

    above = np.zeros_like(logits)
    above[label] = logits[label]
    above = epsilon_rule(features, w, b, above)
    per_pixel = shape[1] * shape[2]
    above = share_of(a / per_pixel, np.repeat(features, per_pixel), np.repeat(above, per_pixel))
    for a, middle, deep, short, first, second, side in reversed(passes):
        to_deep, to_short = share_of(deep, deep + short, above), share_of(short, deep + short, above)
        below = zplus_rule(a, first.w, first.b, zplus_rule(middle, second.w, second.b, to_deep))
        above = below + (to_short if side is None else zplus_rule(a, side.w, side.b, to_short))
    pixels = flat_rule(stem.connected, above)
    return logits, pixels.reshape(image.shape).sum(0)


@pytest.fixture
def used():
    """A residual net in float64 whose batch norms are far from the identity."""
    torch.manual_seed(3)
    net = resnet(2, 3, (3, 4), (1, 1), CrossEntropy())
    module = net.bind(net.params, net.buffers).double()
    for part in module.modules():
        if isinstance(part, BatchNorm):
            part.weight.data.uniform_(0.5, 1.5)
            part.bias.data.normal_(0, 0.3)
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2.0)
    return module


def test_lrp_equals_the_rules_written_out(used):
    x, y = torch.randn(4, 2, 5, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    maps = lrp(used, x, y, LAYERS, batch_size=3)
    for image, label, logits, found in zip(x, y, used(x), maps, strict=True):
        expected_logits, expected = oracle(used, image.numpy(), int(label))
        np.testing.assert_allclose(logits.detach().numpy(), expected_logits, atol=1e-12)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-9)


def test_folding_batch_norms_leaves_the_outputs(used):
    x = torch.randn(6, 2, 8, 8, dtype=torch.float64)
    folded = fold_batch_norms(used, x[:1], LAYERS.norms)
    assert not any(isinstance(part, BatchNorm) for part in folded.modules())
    torch.testing.assert_close(folded(x), used(x), rtol=0, atol=1e-12)
    single, x = used.float(), x.float()
    torch.testing.assert_close(fold_batch_norms(single, x[:1], LAYERS.norms)(x), single(x), rtol=0, atol=1e-4)


@pytest.mark.parametrize("build", [lambda: resnet8(3, 10), lambda: cnn2(3, 16, 10)])
def test_relevance_is_conserved_without_biases(build):
    torch.manual_seed(0)
    net = build()
    without = {name: value * 0 if name.endswith("bias") else value for name, value in net.params.items()}
    module = net.bind(without, net.buffers).double()
    x, y = torch.randn(8, 3, 16, 16, dtype=torch.float64), torch.arange(8)
    logits = module(x)[torch.arange(8), y].detach()
    assert (logits < 0).any() and (logits > 0).any()
    torch.testing.assert_close(lrp(module, x, y, LAYERS).sum((1, 2)), logits, rtol=0.01, atol=0)


def test_the_module_stays_as_it_is(used):
    used.train()
    before = {name: value.clone() for name, value in used.state_dict().items()}
    x, y = torch.randn(3, 2, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2])
    lrp(used, x, y, LAYERS)
    gradient(used, x, y)
    assert used.training and not any(part._forward_hooks or part._forward_pre_hooks for part in used.modules())
    for name, value in used.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_gradient_of_a_linear_net_is_its_weights():
    module = nn.Sequential(nn.Flatten(), nn.Linear(8, 2, bias=False)).double()
    rows = module[1].weight.detach().reshape(2, 2, 2, 2)
    x, y = torch.randn(5, 2, 2, 2, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1])
    torch.testing.assert_close(gradient(module, x, y, batch_size=2), rows[y].abs().sum(1))
    torch.testing.assert_close(gradient(module, x, y, signed=True), rows[y].sum(1))


def test_no_images_give_no_maps(used):
    x, y = torch.zeros(0, 2, 8, 8, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    assert lrp(used, x, y, LAYERS).shape == gradient(used, x, y).shape == (0, 8, 8)


def test_a_norm_without_a_layer_before_it_is_refused():
    module = nn.Sequential(BatchNorm(2), nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(ValueError, match=r"no rule for the batch norm '0'.*relevance='gradient'"):
        lrp(module, torch.randn(1, 2, 4, 4), torch.tensor([0]), Layers(norms=(BatchNorm,)))


def test_a_layer_that_feeds_more_than_its_norm_is_refused():
    class Leaky(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(1, 2, 1), BatchNorm(2), nn.Linear(8, 2)

        def forward(self, x):
            out = self.conv(x)
            return self.head((self.norm(out) + 5 * out).flatten(1))

    module = Leaky().eval()
    module.norm.running_var.fill_(0.1)
    with pytest.raises(ValueError, match="Folding the batch norms changed the outputs"):
        lrp(module, torch.randn(2, 1, 2, 2), torch.tensor([0, 1]), Layers(norms=(BatchNorm,)))


def test_a_net_without_a_convolution_first_is_refused():
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"needs a convolution first, found Linear.*relevance='gradient'"):
        lrp(module, torch.zeros(1, 1, 2, 2), torch.tensor([0]))


def test_every_image_needs_a_label(used):
    with pytest.raises(ValueError, match="found 2 images and 1 labels"):
        gradient(used, torch.zeros(2, 2, 8, 8, dtype=torch.float64), torch.tensor([0]))


def test_absent_zennit_is_one_sentence(used, monkeypatch):
    monkeypatch.setitem(sys.modules, "zennit.composites", None)
    with pytest.raises(ValueError, match=r"needs zennit\. Install it with: pip install 'coterie\[xai\]'"):
        lrp(used, torch.zeros(1, 2, 8, 8, dtype=torch.float64), torch.tensor([0]), LAYERS)
