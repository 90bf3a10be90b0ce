"""Losses of tasks: masked means, so that a padded row counts for nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from coterie.tensors import Tensors, masked_mean


@dataclass(frozen=True)
class CrossEntropy:
    """Classification: logits against the column "y"."""

    def __call__(self, outputs: Tensor, columns: Tensors) -> tuple[Tensor, Tensors]:
        losses = F.cross_entropy(outputs, columns["y"], reduction="none")
        value = masked_mean(losses, columns["mask"])
        correct = (outputs.argmax(1) == columns["y"]).to(losses.dtype)
        return value, {"loss": value.detach(), "accuracy": masked_mean(correct, columns["mask"]).detach()}
