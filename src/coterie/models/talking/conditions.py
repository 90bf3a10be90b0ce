"""What a talking head is conditioned on: the sound of each frame, and a picture of the speaker."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_REGIONS = 4  # the reference image is seen as 4 x 4 regions


class AudioEncoder(nn.Module):
    """Band energies [clips, frames, bands] to one token per frame, looking one frame to each side."""

    def __init__(self, bands: int, width: int) -> None:
        super().__init__()
        self.near = nn.Conv1d(bands, width, 3, 1, 1)
        self.out = nn.Linear(width, width)

    def forward(self, audio: Tensor) -> Tensor:
        tokens: Tensor = self.out(F.silu(self.near(audio.transpose(1, 2)).transpose(1, 2)))
        return tokens


class IdentityEncoder(nn.Module):
    """A reference image [clips, 3, s, s] to identity tokens [clips, 1 + regions, width].

    The first token is the whole face, e(r); the others say what is where in the picture, so that a place of the
    latent can look at the same place of the reference.
    """

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.stride = size // _REGIONS
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(16, 32, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(32, width, 3, 1, 1), nn.AvgPool2d(size // (4 * _REGIONS)),
        )  # fmt: skip
        self.place = nn.Parameter(0.3 * torch.randn(_REGIONS**2, width))
        self.whole = nn.Linear(_REGIONS**2 * width, width)

    def forward(self, ref: Tensor) -> Tensor:
        seen = self.layers(ref).flatten(2).transpose(1, 2)
        whole = self.whole(F.silu(seen.flatten(1)))
        return torch.cat([whole[:, None], seen + self.place], dim=1)
