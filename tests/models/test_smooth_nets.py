"""The nets that gradient inversion is calibrated on: sizes by hand, smooth everywhere, no pixel passed over."""

from __future__ import annotations

import torch
from torch import nn

from coterie.models.smooth import lenet_dlg, resnet18_sigmoid


def kinds(net: object) -> set[type]:
    return {type(part) for part in net._modes[False].modules()}  # type: ignore[attr-defined]


def test_dlgs_lenet_has_the_papers_layers_and_weights() -> None:
    torch.manual_seed(0)
    net = lenet_dlg(3, 32, 10)
    convolutions = (3 * 25 + 1) * 12 + 2 * (12 * 25 + 1) * 12
    assert net.num_features == 12 * 8 * 8 == 768
    assert sum(value.numel() for value in net.params.values()) == convolutions + 768 * 10 + 10 == 15_826
    weights = torch.cat([value.flatten() for value in net.params.values()])
    assert float(weights.abs().max()) <= 0.5 and abs(float(weights.std()) - 1 / 12**0.5) < 0.01  # U(-1/2, 1/2)
    assert nn.Sigmoid in kinds(net) and nn.ReLU not in kinds(net) and not net.buffers


def test_dlgs_lenet_works_on_digits() -> None:
    net = lenet_dlg(1, 8, 10)
    assert net.num_features == 12 * 2 * 2
    outputs, _ = net.apply(net.params, {}, {"x": torch.zeros(2, 1, 8, 8)}, train=False)
    assert outputs.shape == (2, 10)


def test_the_sigmoid_resnet_is_resnet18_in_size_without_strides_and_relus() -> None:
    net = resnet18_sigmoid(3, 10)
    assert sum(value.numel() for value in net.params.values()) == 11_173_962  # ResNet-18 with the CIFAR stem: strides have no weights
    assert sum(value.numel() for name, value in net.params.items() if name.startswith("encoder.")) == 11_168_832
    strides = {part.stride for part in net._modes[False].modules() if isinstance(part, nn.Conv2d)}
    assert strides == {(1, 1)} and nn.ReLU not in kinds(net) and nn.Sigmoid in kinds(net)
    z, _ = net.encode(net.params, net.buffers, {"x": torch.zeros(1, 3, 8, 8)}, train=False)
    assert z.shape == (1, 512) and net.num_features == 512
