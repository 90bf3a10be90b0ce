"""Relevance by the gradient of the true class's logit (FedXGrad in the paper's tables).

The magnitude is summed over channels (FX-D8). Signed sums, as in the authors' code, are an option: there a
pixel with a strong negative gradient is the first to be removed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def gradient(module: nn.Module, x: Tensor, y: Tensor, *, signed: bool = False, batch_size: int = 128) -> Tensor:
    """A map [N, H, W] for images `x` [N, C, H, W] and their labels; the module is used in evaluation mode."""
    pulled = pull_back(module, x, y, _ones, batch_size)
    return (pulled if signed else pulled.abs()).sum(1)


def _ones(logits: Tensor) -> Tensor:
    return torch.ones_like(logits)


def pull_back(module: nn.Module, x: Tensor, y: Tensor, start: Callable[[Tensor], Tensor], batch_size: int) -> Tensor:
    """What flows back to the pixels when the true class's output starts with `start(logits)`, all others with 0."""
    if len(x) != len(y):
        raise ValueError(f"Every image needs its label, found {len(x)} images and {len(y)} labels. Give one label per image.")
    modes = {name: part.training for name, part in module.named_modules()}
    module.eval()
    pieces = []
    try:
        for images, labels in zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True):
            images = images.detach().clone().requires_grad_()
            logits = module(images)
            true_class = nn.functional.one_hot(labels, logits.shape[1]).to(logits.dtype)
            (pulled,) = torch.autograd.grad(logits, images, true_class * start(logits.detach()))
            pieces.append(pulled.detach())
    finally:
        for name, part in module.named_modules():
            part.training = modes[name]
    return torch.cat(pieces) if pieces else torch.zeros_like(x)
