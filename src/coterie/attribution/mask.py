"""From a relevance map to weights of pixels: which ones are kept, and how much each of them counts.

`s` is the percentage of pixels that is removed (FX-D3). Exactly ceil((1 - s/100) HW) pixels are kept; of equal
relevances the earlier pixel stays (FX-D5). A "binary" mask is m in {0, 1}, as the paper writes; a "soft" one weighs
a kept pixel by its relevance, min-max normalised per image, as the authors' code does.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

MaskKind = Literal["soft", "binary"]


def num_kept(num_pixels: int, s: float) -> int:
    """ceil((1 - s/100) HW)."""
    if not 0.0 <= s < 100.0:
        raise ValueError(f"s, the percentage of pixels to remove, must lie in [0, 100), found {s}. Use for example 80.")
    return math.ceil(round((100.0 - s) * num_pixels / 100.0, 9))  # rounded, or 100 - 99.9 would keep a pixel too many


def normalise(relevance: Tensor) -> Tensor:
    """Each map [H, W] of a batch moved and scaled to [0, 1]; a map without contrast prefers nothing and becomes 0."""
    low = relevance.amin((1, 2), keepdim=True)
    span = relevance.amax((1, 2), keepdim=True) - low
    return torch.where(span > 0, (relevance - low) / torch.where(span > 0, span, torch.ones_like(span)), 0.0)


def keep_mask(relevance: Tensor, s: float) -> Tensor:
    """True for the most relevant pixels of each map [N, H, W]."""
    count, height, width = relevance.shape
    order = relevance.reshape(count, height * width).argsort(dim=1, descending=True, stable=True)
    kept = torch.zeros(count, height * width, dtype=torch.bool, device=relevance.device)
    kept.scatter_(1, order[:, : num_kept(height * width, s)], True)
    return kept.reshape(relevance.shape)


def pixel_weights(relevance: Tensor, s: float, kind: MaskKind) -> Tensor:
    """m(x) [N, H, W]: what each pixel is multiplied with."""
    kept = keep_mask(relevance, s)
    if kind == "binary":
        return kept.to(relevance.dtype)
    return torch.where(kept, normalise(relevance), 0.0)
