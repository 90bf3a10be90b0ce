"""Nets that others wrote, and nets that are changed in one place, as encoder and head.

Any module with an encoder and a head can be used as `Net(EncoderHead(encoder, head, num_features), CrossEntropy())`. What is
here makes those two out of a classifier whose last layer is known by name, or of one of timm's.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from types import ModuleType
from typing import Any

import torch
from torch import nn

from coterie.models.losses import CrossEntropy
from coterie.models.net import EncoderHead, Net, TaskLoss


def cut_head(module: nn.Module, name: str) -> EncoderHead:
    """A classifier as encoder and head: its linear layer `name` (such as "fc" or "classifier.1") becomes the head.

    What comes before it must hand it one row of features per example, and nothing may come after it.
    """
    module = copy.deepcopy(module)
    known = dict(module.named_modules())
    head = known.get(name)
    if not name or not isinstance(head, nn.Linear):
        linear = [n for n, part in known.items() if n and isinstance(part, nn.Linear)]
        found = "no such layer" if head is None or not name else type(head).__name__
        raise ValueError(
            f"The head of a {type(module).__name__} must be its last linear layer, but '{name}' is {found}. "
            f"Use one of {linear[-3:]}." if linear else f"A {type(module).__name__} has no linear layer to be its head. "
            "Build EncoderHead(encoder, head, num_features) yourself."
        )  # fmt: skip
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, nn.Identity())
    return EncoderHead(module, head, head.in_features)


def from_timm(name: str, num_classes: int, *, loss: TaskLoss = CrossEntropy(), **options: Any) -> Net:
    """A model of timm by its name, such as from_timm("convnext_atto", 10, in_chans=3); `options` go to timm.create_model."""
    return Net(timm_parts(_timm().create_model(name, num_classes=num_classes, **options)), loss)


def timm_parts(model: Any) -> EncoderHead:
    """timm's own way to take a model apart: its classifier, and what is left when that is reset."""
    head = model.get_classifier() if hasattr(model, "get_classifier") and hasattr(model, "reset_classifier") else None
    if not isinstance(head, nn.Linear):
        found = "none" if head is None else type(head).__name__
        raise ValueError(
            f"A model of timm is used as encoder and linear head, but the head of {type(model).__name__} is {found}. "
            "Choose a classifier, and give num_classes of 1 or more."
        )
    model.reset_classifier(0)
    return EncoderHead(model, head, head.in_features)


def _timm() -> ModuleType:
    try:
        import timm
    except ImportError as error:
        raise ValueError("Models by name need timm. Install it with: pip install timm") from error
    module: ModuleType = timm
    return module


def with_linear(net: Net) -> Net:
    """The net with a linear scaling W between encoder and head, d x d, without bias, the identity at first (FB-D6, Table 6).

    W belongs to the head: FedAvg shares it, FedPer keeps it with its client.
    """
    like, width = next(iter(net.params.values())), net.num_features
    linear = nn.Linear(width, width, bias=False, device=like.device, dtype=like.dtype)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(width))
    return net.with_head(lambda head: nn.Sequential(OrderedDict(linear=linear, classifier=head)))
