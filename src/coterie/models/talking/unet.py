"""The networks of the small talking-head model. Clips are [clips, frames, ...]; convolutions see frames one by one.

What differs from the TinyUNet3D of the PrivFedTalk repository, and why, is in `docs/papers/privfedtalk.md`: attention is
normalised over the condition tokens (there it was over the queries, which shrinks every output by their number).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Autoencoder(nn.Module):
    """Frames [n, 3, s, s] in [0, 1] to latents [n, channels, s/4, s/4] and back; no sampling in between."""

    def __init__(self, channels: int = 4, width: int = 24) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(width, 2 * width, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(2 * width, channels, 3, 1, 1),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Conv2d(channels, 2 * width, 3, 1, 1), nn.SiLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.SiLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1), AroundGrey(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.decoder(self.encoder(x))
        return out


class AroundGrey(nn.Module):
    """Outputs start at the middle of [0, 1]; a sigmoid there would learn dark and bright pixels slowly."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5


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
    """A reference image [clips, 3, s, s] to one token."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(16, 32, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(32, 32, 4, 2, 1), nn.SiLU(),
            nn.Flatten(), nn.Linear(32 * (size // 8) ** 2, width),
        )  # fmt: skip

    def forward(self, ref: Tensor) -> Tensor:
        out: Tensor = self.layers(ref)
        return out


class CrossAttention(nn.Module):
    """Every place of every frame asks the condition tokens; the softmax runs over the tokens."""

    def __init__(self, width: int, context: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(1, width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(context, width, bias=False)
        self.v = nn.Linear(context, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, h: Tensor, tokens: Tensor) -> Tensor:
        """h [clips, frames, width, s, s], tokens [clips, frames, tokens, context]."""
        clips, frames, width, high, wide = h.shape
        flat = self.norm(h.flatten(0, 1)).flatten(2).transpose(1, 2)
        tokens = tokens.flatten(0, 1)

        def split(x: Tensor) -> Tensor:
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q, k, v = split(self.q(flat)), split(self.k(tokens)), split(self.v(tokens))
        # tokens before queries: a softmax over a short last axis is slow on CPU
        weights = (k @ q.transpose(-1, -2) / math.sqrt(width // self.heads)).softmax(-2)
        seen = self.out((weights.transpose(-1, -2) @ v).transpose(1, 2).flatten(2))
        return h + seen.transpose(1, 2).reshape(clips, frames, width, high, wide)


class ResBlock(nn.Module):
    """Two convolutions with FiLM of time, sound and identity in between, then a look at the frames beside it and at their mean."""

    def __init__(self, inputs: int, outputs: int, condition: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(8, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 1, 1)
        self.film = nn.Linear(condition, 2 * outputs)
        self.norm2 = nn.GroupNorm(8, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.near = nn.Conv2d(4 * outputs, outputs, 1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, h: Tensor, condition: Tensor) -> Tensor:
        """h [clips, frames, inputs, s, s], condition [clips, frames, condition]."""
        clips, frames = h.shape[:2]
        x = h.flatten(0, 1)
        scale, shift = self.film(condition).flatten(0, 1)[:, :, None, None].chunk(2, dim=1)
        y = self.conv1(F.silu(self.norm1(x)))
        y = F.silu(self.norm2(y) * (1 + scale) + shift)
        y = self.conv2(y)
        out: Tensor = (self.skip(x) + y).unflatten(0, (clips, frames))
        padded = F.pad(out, (0, 0, 0, 0, 0, 0, 1, 1))
        beside = torch.cat([padded[:, :-2], out, padded[:, 2:], out.mean(1, keepdim=True).expand_as(out)], dim=2)
        return out + self.near(F.silu(beside.flatten(0, 1))).unflatten(0, (clips, frames))


def time_features(t: Tensor, width: int) -> Tensor:
    """Sines and cosines of the diffusion time, [clips, width]."""
    rates = torch.exp(torch.arange(width // 2, device=t.device) * (-math.log(1000.0) / (width // 2)))
    angles = t[:, None].float() * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class UNet(nn.Module):
    """eps_theta(z_t, t, c, e): noise in latents [clips, frames, channels, s, s], given sound and identity tokens."""

    def __init__(self, channels: int = 4, base: int = 16, context: int = 32) -> None:
        super().__init__()
        self.context = context
        condition = 4 * base
        self.time = nn.Sequential(nn.Linear(context, condition), nn.SiLU(), nn.Linear(condition, condition))
        self.token = nn.Linear(2 * context, condition)
        self.place = nn.Parameter(torch.zeros(2, context))
        self.into = nn.Conv2d(channels, base, 3, 1, 1)
        self.down = ResBlock(base, base, condition)
        self.attn1 = CrossAttention(base, context)
        self.mid1 = ResBlock(base, 2 * base, condition)
        self.attn2 = CrossAttention(2 * base, context)
        self.mid2 = ResBlock(2 * base, 2 * base, condition)
        self.up = ResBlock(3 * base, base, condition)
        self.attn3 = CrossAttention(base, context)
        self.norm = nn.GroupNorm(8, base)
        self.final = nn.Conv2d(base, channels, 3, 1, 1)

    def forward(self, z: Tensor, t: Tensor, sound: Tensor, identity: Tensor) -> Tensor:
        """z [clips, frames, channels, s, s], t [clips], sound [clips, frames, context], identity [clips, context]."""
        clips, frames = z.shape[:2]
        who = identity[:, None].expand(-1, frames, -1)
        condition = self.token(torch.cat([sound, who], dim=2)) + self.time(time_features(t, self.context))[:, None]
        condition = F.silu(condition)
        tokens = torch.stack([sound + self.place[0], who + self.place[1]], dim=2)

        def each(layer: nn.Module, h: Tensor) -> Tensor:
            out: Tensor = layer(h.flatten(0, 1))
            return out.unflatten(0, (clips, frames))

        first = self.attn1(self.down(each(self.into, z), condition), tokens)
        h = each(nn.AvgPool2d(2), first)
        h = self.attn2(self.mid1(h, condition), tokens)
        h = self.mid2(h, condition)
        h = each(nn.Upsample(scale_factor=2), h)
        h = self.attn3(self.up(torch.cat([h, first], dim=2), condition), tokens)
        return each(self.final, F.silu(each(self.norm, h)))


class TalkingHead(nn.Module):
    """All parts under one roof: "vae", "audio", "identity", "unet"."""

    def __init__(self, *, channels: int = 4, base: int = 16, context: int = 32, bands: int = 12, size: int = 32) -> None:
        super().__init__()
        self.vae = Autoencoder(channels)
        self.audio = AudioEncoder(bands, context)
        self.identity = IdentityEncoder(context, size)
        self.unet = UNet(channels, base, context)
