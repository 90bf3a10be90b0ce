"""Frames to small latents and back."""

from __future__ import annotations

from torch import Tensor, nn

STRIDE = 4  # a latent has a quarter of the height and width of its frame


class Encoder(nn.Module):
    """Frames [n, 3, s, s] in [0, 1] to latents [n, channels, s/4, s/4]; nothing is sampled."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(width, 2 * width, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(2 * width, channels, 3, 1, 1),
        )  # fmt: skip

    def forward(self, frames: Tensor) -> Tensor:
        out: Tensor = self.layers(frames)
        return out


class Decoder(nn.Module):
    """Latents back to frames. Outputs start at grey; a sigmoid would learn dark and bright pixels slowly."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 2 * width, 3, 1, 1), nn.SiLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.SiLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, latents: Tensor) -> Tensor:
        out: Tensor = self.layers(latents)
        return out + 0.5
