"""Small networks for images and tables. Layers are spelled out in the table of `docs/architecture.md`."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, cast

import torch.nn.functional as F
from torch import Tensor, nn

from coterie.models.losses import CrossEntropy
from coterie.models.net import EncoderHead, Net, TaskLoss
from coterie.models.norm import BatchNorm

Stem = Literal["cifar", "tv"]


def mlp(inputs: int, num_classes: int, hidden: tuple[int, ...] = (64,), loss: TaskLoss = CrossEntropy()) -> Net:
    """Fully connected layers with ReLU on the flattened input; without hidden ones it is softmax regression."""
    layers: OrderedDict[str, nn.Module] = OrderedDict() if hidden else OrderedDict(flatten=nn.Flatten())
    width = inputs
    for i, size in enumerate(hidden, 1):
        layers[f"layer{i}"] = nn.Sequential(nn.Flatten(), nn.Linear(width, size), nn.ReLU())
        width = size
    return Net(EncoderHead(nn.Sequential(layers), nn.Linear(width, num_classes), width), loss)


def cnn2(channels: int, size: int, num_classes: int, loss: TaskLoss = CrossEntropy()) -> Net:
    """Two 5x5 convolutions (32, 64, no padding) with pooling, then 512 features: 582,026 parameters at 1x28x28."""
    side = ((size - 4) // 2 - 4) // 2
    encoder = nn.Sequential(
        OrderedDict(
            conv1=nn.Sequential(nn.Conv2d(channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
            conv2=nn.Sequential(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            fc1=nn.Sequential(nn.Flatten(), nn.Linear(64 * side * side, 512), nn.ReLU()),
        )
    )
    return Net(EncoderHead(encoder, nn.Linear(512, num_classes), 512), loss)


def cnn3(channels: int, num_classes: int, widths: tuple[int, int, int] = (16, 32, 32), loss: TaskLoss = CrossEntropy()) -> Net:
    """Three convolutions that halve the picture, tanh, no norm: few weights for noise to hide, and none of a batch's statistics."""
    first, second, third = widths
    encoder = nn.Sequential(
        OrderedDict(
            conv1=nn.Sequential(nn.Conv2d(channels, first, 5, 2, 2), nn.Tanh()),
            conv2=nn.Sequential(nn.Conv2d(first, second, 3, 2, 1), nn.Tanh()),
            conv3=nn.Sequential(nn.Conv2d(second, third, 3, 2, 1), nn.Tanh(), nn.Flatten()),
        )
    )
    return Net(EncoderHead(encoder, nn.Linear(third * 16, num_classes), third * 16), loss)


class Sum(nn.Module):
    """An explicit residual sum: relevance rules hook it."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = BatchNorm(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = BatchNorm(outputs)
        same = inputs == outputs and stride == 1
        self.shortcut: nn.Module = (
            nn.Identity() if same else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), BatchNorm(outputs))
        )
        self.sum = Sum()
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        return cast(Tensor, self.relu2(self.sum(out, self.shortcut(x))))


class GlobalPool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, 1).flatten(1)


def resnet(
    channels: int, num_classes: int, widths: tuple[int, ...], depths: tuple[int, ...], loss: TaskLoss, stem: Stem = "cifar"
) -> Net:
    """Residual net with the CIFAR stem (3x3, stride 1, no pooling), or with that for large pictures, as torchvision has it ("tv")."""
    if stem not in ("cifar", "tv"):
        raise ValueError(f"stem must be cifar or tv, found '{stem}'. Use 'cifar' for pictures of 32x32, 'tv' for 224x224.")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    first: list[nn.Module] = [nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False), BatchNorm(widths[0]), nn.ReLU()]
    if stem == "tv":
        first = [nn.Conv2d(channels, widths[0], 7, 2, 3, bias=False), *first[1:], nn.MaxPool2d(3, 2, 1)]
    layers["stem"] = nn.Sequential(*first)
    inputs = widths[0]
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True), 1):
        blocks = []
        for i in range(depth):
            blocks.append(BasicBlock(inputs, width, 2 if stage > 1 and i == 0 else 1))
            inputs = width
        layers[f"stage{stage}"] = nn.Sequential(*blocks)
    layers["pool"] = GlobalPool()
    return Net(EncoderHead(nn.Sequential(layers), nn.Linear(inputs, num_classes), inputs), loss)


def resnet8(channels: int, num_classes: int, loss: TaskLoss = CrossEntropy()) -> Net:
    """16-32-64, one block each: for tests, walks and speed."""
    return resnet(channels, num_classes, (16, 32, 64), (1, 1, 1), loss)


def resnet10w(channels: int, num_classes: int, loss: TaskLoss = CrossEntropy()) -> Net:
    """64-128-256-512, one block each: what FedXDS calls ResNet8 (4,903,242 parameters with 10 classes)."""
    return resnet(channels, num_classes, (64, 128, 256, 512), (1, 1, 1, 1), loss)


def resnet18(channels: int, num_classes: int, loss: TaskLoss = CrossEntropy(), stem: Stem = "cifar") -> Net:
    """64-128-256-512, two blocks each (11,173,962 parameters with 10 classes, 11,181,642 with stem="tv")."""
    return resnet(channels, num_classes, (64, 128, 256, 512), (2, 2, 2, 2), loss, stem)


def resnet34(channels: int, num_classes: int, loss: TaskLoss = CrossEntropy(), stem: Stem = "cifar") -> Net:
    """64-128-256-512, 3, 4, 6 and 3 blocks (21,328,292 parameters with 100 classes)."""
    return resnet(channels, num_classes, (64, 128, 256, 512), (3, 4, 6, 3), loss, stem)
