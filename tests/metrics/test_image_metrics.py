"""PSNR and SSIM against plain NumPy windows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.metrics.images import psnr, ssim


def test_psnr_by_hand() -> None:
    """A difference of 0.1 everywhere is an error of 0.01: 20 dB. One of 4 pixels off by 1: -10 log10(1/4)."""
    black = torch.zeros(2, 1, 2, 2)
    other = torch.full((2, 1, 2, 2), 0.1)
    other[1] = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    assert psnr(black, other).tolist() == pytest.approx([20.0, 10 * math.log10(4)], rel=1e-6)
    assert psnr(black, black).tolist() == [math.inf, math.inf]


def test_ssim_equals_plain_windows() -> None:
    rng = np.random.default_rng(0)
    a = rng.random((1, 2, 14, 13))
    b = np.clip(a + 0.2 * rng.normal(size=a.shape), 0, 1)
    taps = np.exp(-((np.arange(11) - 5.0) ** 2) / (2 * 1.5**2))
    window = np.outer(taps, taps) / np.outer(taps, taps).sum()
    values = []
    for channel in range(2):
        for i in range(14 - 10):
            for j in range(13 - 10):
                x, y = a[0, channel, i : i + 11, j : j + 11], b[0, channel, i : i + 11, j : j + 11]
                mx, my = (window * x).sum(), (window * y).sum()
                vx, vy = (window * (x - mx) ** 2).sum(), (window * (y - my) ** 2).sum()
                covariance = (window * (x - mx) * (y - my)).sum()
                numerator = (2 * mx * my + 1e-4) * (2 * covariance + 9e-4)
                values.append(numerator / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4)))
    assert float(ssim(torch.from_numpy(a), torch.from_numpy(b))) == pytest.approx(np.mean(values), abs=1e-12)


def test_ssim_of_flat_pictures() -> None:
    """Without structure only brightness is left: (2 ab + 1e-4) / (a^2 + b^2 + 1e-4)."""
    a, b = torch.full((1, 3, 16, 16), 0.25), torch.full((1, 3, 16, 16), 0.75)
    assert float(ssim(a, a)) == pytest.approx(1.0)
    assert float(ssim(a, b)) == pytest.approx((2 * 0.25 * 0.75 + 1e-4) / (0.25**2 + 0.75**2 + 1e-4), abs=1e-9)


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"SSIM's window has 11 pixels, but the pictures are 8 by 16"):
        ssim(torch.zeros(1, 1, 8, 16), torch.zeros(1, 1, 8, 16))
    with pytest.raises(ValueError, match=r"got \[1, 1, 2, 2\] and \[1, 1, 2, 3\]"):
        psnr(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 3))
