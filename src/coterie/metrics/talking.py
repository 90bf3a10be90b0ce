"""Numbers of talking heads: denoising losses, and how a drawn mouth follows the sound.

The mouth is measured only where a renderer tells where it is (`box`) and how far it is open: on procedural heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from coterie.metrics.metric import Direction
from coterie.tensors import Tensors

_DARK, _LIGHT = 0.15, 0.25  # luminance: all of a pixel at most so dark counts as open mouth, none of one this light


@dataclass(frozen=True)
class Talking:
    """Mean losses over clips: "loss" per element of the noise (predicting none scores 1), "velocity" and "tdc" beside it."""

    main: ClassVar[str] = "loss"
    directions: ClassVar[Mapping[str, Direction]] = MappingProxyType({"loss": "min", "velocity": "min", "tdc": "min"})

    def __call__(self, predictions: Tensors, columns: Tensors) -> dict[str, float]:
        missing = sorted(self.directions.keys() - predictions.keys())
        if missing:
            raise ValueError(
                f"Talking needs the losses {sorted(self.directions)} of every clip, but {missing} are missing. "
                "Evaluate a method that predicts noise, such as privfedtalk."
            )
        means = {name: float(predictions[name].detach().double().mean()) for name in self.directions}
        return {name: torch.inf if value != value else value for name, value in means.items()}


def mouth_opening(video: Tensor, box: Tensor) -> Tensor:
    """Share of dark area in the mouth box, [clips, frames], of video [clips, frames, 3, h, w] in [0, 1]."""
    luminance = (video * video.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(2)
    dark = ((_LIGHT - luminance) / (_LIGHT - _DARK)).clamp(0.0, 1.0)
    return torch.stack([
        clip[:, top:bottom, left:right].mean(dim=(1, 2))
        for clip, (top, bottom, left, right) in zip(dark, box.tolist(), strict=True)
    ])  # fmt: skip


def correlation_over_time(a: Tensor, b: Tensor) -> Tensor:
    """Pearson correlation of each row of [clips, frames]; 0 where one of them does not move."""
    a, b = a.double() - a.double().mean(dim=1, keepdim=True), b.double() - b.double().mean(dim=1, keepdim=True)
    lengths: Tensor = torch.linalg.vector_norm(a, dim=1) * torch.linalg.vector_norm(b, dim=1)
    return (a * b).sum(1) / lengths.clamp(min=1e-12)


def jitter(video: Tensor) -> Tensor:
    """Mean absolute change from frame to frame, per clip. Only its ratio to the truth means something: a still scores 0."""
    return video.diff(dim=1).abs().flatten(1).mean(1)
