"""What a talking head is conditioned on: the sound of each frame, and a picture of the speaker."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AudioEncoder(nn.Module):
    """Band energies [clips, frames, bands] to one token per frame, looking one frame to each side."""

    def __init__(self, bands: int, width: int) -> None:
        super().__init__()
        self.near = nn.Conv1d(bands, width, 3, 1, 1)
        self.mix = nn.Linear(width, width)

    def forward(self, audio: Tensor) -> Tensor:
        tokens: Tensor = self.mix(F.silu(self.near(audio.transpose(1, 2)).transpose(1, 2)))
        return tokens


class IdentityEncoder(nn.Module):
    """A reference image [clips, 3, s, s] to identity tokens [clips, 1 + (s/4)^2, width].

    The first token is the whole face, e(r). The others say what is where in the picture, on the grid of the latents, so
    that a denoiser need not squeeze shirt and wallpaper through one vector.
    """

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(16, 32, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(32, width, 3, 1, 1),
        )  # fmt: skip
        self.whole = nn.Linear((size // 8) ** 2 * width, width)

    def forward(self, ref: Tensor) -> Tensor:
        seen = self.layers(ref)
        whole = self.whole(F.avg_pool2d(F.silu(seen), 2).flatten(1))
        return torch.cat([whole[:, None], seen.flatten(2).transpose(1, 2)], dim=1)
