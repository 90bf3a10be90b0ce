"""Nets with smooth activations and no batch statistics, whose gradients can be matched: what gradient inversion is calibrated on.

`lenet_dlg` is the net of Zhu et al., "Deep Leakage from Gradients" (NeurIPS 2019): three 5x5 convolutions of 12 channels with
sigmoids, strides 2, 2, 1, and weights and biases from U(-0.5, 0.5). `resnet18_sigmoid` is their "modified" ResNet-18, which FABLE's Table 3
attacks: sigmoids for ReLUs, and no stride anywhere, so that no pixel is passed over; global average pooling stays.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from coterie.models.losses import CrossEntropy
from coterie.models.net import EncoderHead, Net, TaskLoss
from coterie.models.nets import BasicBlock, GlobalPool
from coterie.models.norm import BatchNorm

_CHANNELS = 12
_BOUND = 0.5


def lenet_dlg(channels: int, size: int, num_classes: int, loss: TaskLoss = CrossEntropy()) -> Net:
    """DLG's LeNet, 768 features at 32x32 and 48 at 8x8; weights and biases from U(-0.5, 0.5)."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    inputs, side = channels, size
    for number, stride in enumerate((2, 2, 1), 1):
        layers[f"conv{number}"] = nn.Sequential(nn.Conv2d(inputs, _CHANNELS, 5, stride, 2), nn.Sigmoid())
        inputs, side = _CHANNELS, -(-side // stride)
    layers["flat"] = nn.Flatten()
    features = _CHANNELS * side * side
    module = EncoderHead(nn.Sequential(layers), nn.Linear(features, num_classes), features)
    return Net(uniform_weights(module), loss)


def resnet18_sigmoid(channels: int, num_classes: int, loss: TaskLoss = CrossEntropy()) -> Net:
    """ResNet-18 with sigmoids and no strides, 64-128-256-512 at full resolution, torch's default weights."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem"] = nn.Sequential(nn.Conv2d(channels, 64, 3, 1, 1, bias=False), BatchNorm(64), nn.Sigmoid())
    inputs = 64
    for stage, width in enumerate((64, 128, 256, 512), 1):
        blocks = []
        for _ in range(2):
            blocks.append(sigmoid_block(inputs, width))
            inputs = width
        layers[f"stage{stage}"] = nn.Sequential(*blocks)
    layers["pool"] = GlobalPool()
    return Net(EncoderHead(nn.Sequential(layers), nn.Linear(inputs, num_classes), inputs), loss)


def sigmoid_block(inputs: int, outputs: int) -> BasicBlock:
    block = BasicBlock(inputs, outputs, 1)
    block.relu1, block.relu2 = nn.Sigmoid(), nn.Sigmoid()  # type: ignore[assignment]
    return block


def uniform_weights(module: nn.Module, bound: float = _BOUND) -> nn.Module:
    """Every weight and bias anew from U(-bound, bound), as DLG's authors start."""
    with torch.no_grad():
        for value in module.parameters():
            value.uniform_(-bound, bound)
    return module
