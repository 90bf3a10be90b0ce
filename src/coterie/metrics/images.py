"""How near a picture is to another: PSNR and SSIM of values in [0, 1].

PSNR = 10 log10(1 / mean squared error). SSIM (Wang et al. 2004, equation 13) with their 11-tap Gaussian of
sigma 1.5, K1 = 0.01, K2 = 0.03, variances divided by the window's weight, over the windows that lie inside.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

TAPS, SIGMA, K1, K2 = 11, 1.5, 0.01, 0.03


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Decibels per picture of [N, C, H, W] in [0, 1]; inf for equal pictures."""
    _check(a, b)
    return -10.0 * (a.double() - b.double()).square().flatten(1).mean(1).log10()


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity per picture of [N, C, H, W] in [0, 1], the mean over channels and windows."""
    _check(a, b)
    if min(a.shape[2:]) < TAPS:
        raise ValueError(
            f"SSIM's window has {TAPS} pixels, but the pictures are {a.shape[2]} by {a.shape[3]}. Enlarge them, or use psnr."
        )
    a, b = a.double(), b.double()
    mean_a, mean_b = _smooth(a), _smooth(b)
    variance_a, variance_b = _smooth(a * a) - mean_a**2, _smooth(b * b) - mean_b**2
    covariance = _smooth(a * b) - mean_a * mean_b
    brightness = (2 * mean_a * mean_b + K1**2) / (mean_a**2 + mean_b**2 + K1**2)
    structure = (2 * covariance + K2**2) / (variance_a + variance_b + K2**2)
    return (brightness * structure).flatten(1).mean(1)


def _smooth(x: Tensor) -> Tensor:
    """Gaussian mean over every window that lies inside, one axis after the other."""
    offsets = torch.arange(TAPS, dtype=x.dtype, device=x.device) - TAPS // 2
    taps = torch.exp(-(offsets**2) / (2 * SIGMA**2))
    taps = taps / taps.sum()
    channels = x.shape[1]
    down = F.conv2d(x, taps.view(1, 1, TAPS, 1).expand(channels, 1, TAPS, 1), groups=channels)
    return F.conv2d(down, taps.view(1, 1, 1, TAPS).expand(channels, 1, 1, TAPS), groups=channels)


def _check(a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape or a.dim() != 4:
        raise ValueError(
            f"Pictures of shape [N, C, H, W] are compared, but got {list(a.shape)} and {list(b.shape)}. Reshape both alike."
        )
