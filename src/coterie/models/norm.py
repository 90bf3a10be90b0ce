"""Batch norm that can be frozen per client, leaves out padded rows, and never counts batches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BatchNorm(nn.Module):
    """Batch norm over all axes but the channels (axis 1), for inputs of any rank >= 2.

    With `selective` (set by Net.freezing) a frozen norm normalises with its running statistics and
    keeps them, by a flag that is data: clients that freeze different layers still run together.
    With `masked` (set by Net.masked) only the rows that are real count, so that a padded batch gives a short one's numbers.
    """

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.selective = False
        self.masked = False
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("live", torch.ones((), dtype=torch.bool), persistent=False)
        self.running_mean: Tensor
        self.running_var: Tensor
        self.live: Tensor
        self.register_buffer("rows", torch.ones((), dtype=torch.bool), persistent=False)
        self.rows: Tensor

    def forward(self, x: Tensor) -> Tensor:
        several = x.numel() > x.shape[1]  # one value per channel has no variance: it is normalised as in evaluation
        if self.training and several and (self.selective or self.masked):
            return self._by_hand(x)
        training = self.training and several
        if x.dtype != self.weight.dtype and not training:  # vmap's rule for evaluation knows no mixture of precisions
            return self._normalised(x.to(self.weight.dtype), training).to(x.dtype)
        return self._normalised(x, training)

    def _normalised(self, x: Tensor, training: bool) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, training, self.momentum, self.eps)

    def fix_scale(self) -> None:
        """No scale and no shift to train: the ones and zeros become constants."""
        for name in ("weight", "bias"):
            value = getattr(self, name).detach()
            delattr(self, name)
            self.register_buffer(name, value, persistent=False)

    def _by_hand(self, given: Tensor) -> Tensor:
        x = given.to(self.weight.dtype)  # statistics of a lower precision would not add up
        shape = [1, -1] + [1] * (x.dim() - 2)
        mean, var, count = self._statistics(x)
        live = self.live & (count > 1)
        used_mean = torch.where(live, mean, self.running_mean)
        used_var = torch.where(live, var, self.running_var)
        scale = self.weight * torch.rsqrt(used_var + self.eps)
        out = (x - used_mean.view(shape)) * scale.view(shape) + self.bias.view(shape)
        step = self.momentum * live.to(mean.dtype)
        unbiased = var.detach() * (count / (count - 1).clamp(min=1))
        self.running_mean += step * (mean.detach() - self.running_mean)
        self.running_var += step * (unbiased - self.running_var)
        return out.to(given.dtype)

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance of every channel over the real rows, and how many numbers those are."""
        axes = [axis for axis in range(x.dim()) if axis != 1]
        if not self.masked:
            var, mean = torch.var_mean(x, dim=axes, correction=0)
            return mean, var, torch.full((), x.numel() // x.shape[1], dtype=x.dtype, device=x.device)
        real = self.rows.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        count = (real.sum() * (x[0, 0].numel())).clamp(min=1)
        mean = (x * real).sum(axes) / count
        centred = (x - mean.view([1, -1] + [1] * (x.dim() - 2))) * real
        return mean, centred.square().sum(axes) / count, count


def own_batch_norms(module: nn.Module) -> nn.Module:
    """Replace torch's batch norms by ours, keeping names and values."""
    for name, child in module.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            if child.momentum is None or child.running_mean is None or child.running_var is None:
                raise ValueError(
                    f"The batch norm '{name}' keeps no running statistics with a fixed momentum, found {child}. "
                    "Build it with track_running_stats=True and momentum=0.1, or use a group norm."
                )
            ours = BatchNorm(child.num_features, child.eps, child.momentum)
            if child.affine:
                ours.weight, ours.bias = child.weight, child.bias
            else:
                ours.fix_scale()
            ours.running_mean, ours.running_var = child.running_mean, child.running_var
            setattr(module, name, ours)
        else:
            own_batch_norms(child)
    return module
