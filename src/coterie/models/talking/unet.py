"""The denoiser: a small U-Net over the latents of a clip. Convolutions see frames one by one.

What differs from the TinyUNet3D of the PrivFedTalk repository, and why, is in `docs/decisions.md`: attention is
normalised over the condition tokens (there it was over the queries, which shrinks every output by their number).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_HEAD_WIDTH = 8


def each_frame(layer: Callable[[Tensor], Tensor], clips: Tensor) -> Tensor:
    """`layer` on every frame of [clips, frames, ...]."""
    out = layer(clips.flatten(0, 1))
    return out.reshape(*clips.shape[:2], *out.shape[1:])


class CrossAttention(nn.Module):
    """Every place of every frame asks the condition tokens; the softmax runs over the tokens."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.heads = width // _HEAD_WIDTH
        self.norm = nn.GroupNorm(1, width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(context, width, bias=False)
        self.v = nn.Linear(context, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, h: Tensor, tokens: Tensor) -> Tensor:
        """h [clips, frames, width, s, s], tokens [clips, frames, tokens, context]."""
        clips, frames, width, high, wide = h.shape
        places = self.norm(h.flatten(0, 1)).flatten(2).transpose(1, 2)
        tokens = tokens.flatten(0, 1)

        def split(x: Tensor) -> Tensor:
            return x.reshape(*x.shape[:2], self.heads, _HEAD_WIDTH).transpose(1, 2)

        q, k, v = split(self.q(places)), split(self.k(tokens)), split(self.v(tokens))
        # tokens before places: a softmax over a short last axis is slow on CPU
        weights = (k @ q.transpose(-1, -2) / math.sqrt(_HEAD_WIDTH)).softmax(-2)
        seen: Tensor = self.out((weights.transpose(-1, -2) @ v).transpose(1, 2).flatten(2))
        return h + seen.transpose(1, 2).reshape(clips, frames, width, high, wide)


class ResBlock(nn.Module):
    """Two convolutions with FiLM of time, sound and identity in between, then a look at the frames beside and at all frames."""

    def __init__(self, inputs: int, outputs: int, condition: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(8, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 1, 1)
        self.film = nn.Linear(condition, 2 * outputs)
        self.norm2 = nn.GroupNorm(8, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.frames = nn.Conv2d(4 * outputs, outputs, 1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, h: Tensor, condition: Tensor) -> Tensor:
        """h [clips, frames, inputs, s, s], condition [clips, frames, condition]."""
        x = h.flatten(0, 1)
        scale, shift = self.film(condition).flatten(0, 1)[:, :, None, None].chunk(2, dim=1)
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.conv2(F.silu(self.norm2(y) * (1 + scale) + shift))
        out: Tensor = (self.skip(x) + y).reshape(*h.shape[:2], *y.shape[1:])
        padded = F.pad(out, (0, 0, 0, 0, 0, 0, 1, 1))
        around = torch.cat([padded[:, :-2], out, padded[:, 2:], out.mean(1, keepdim=True).expand_as(out)], dim=2)
        return out + each_frame(self.frames, F.silu(around))


class UNet(nn.Module):
    """Two resolutions, three cross-attentions. The output is the velocity v, from which eps_theta follows.

    The lower resolution is four times as wide: there it costs least, and a face is mostly coarse.
    """

    def __init__(self, channels: int, base: int, context: int, side: int) -> None:
        super().__init__()
        self.context = context
        condition = 4 * base
        self.time = nn.Sequential(nn.Linear(context, condition), nn.SiLU(), nn.Linear(condition, condition))
        self.token = nn.Linear(2 * context, condition)
        self.kind = nn.Parameter(torch.zeros(2, context))  # tells a token of sound from one of identity
        self.place = nn.Parameter(0.02 * torch.randn(base, side, side))
        self.appearance = nn.Linear(context, base)
        self.into = nn.Conv2d(2 * channels, base, 3, 1, 1)
        self.down = ResBlock(base, base, condition)
        self.attn1 = CrossAttention(base, context)
        self.mid1 = ResBlock(base, 4 * base, condition)
        self.attn2 = CrossAttention(4 * base, context)
        self.mid2 = ResBlock(4 * base, 4 * base, condition)
        self.up = ResBlock(5 * base, base, condition)
        self.attn3 = CrossAttention(base, context)
        self.norm = nn.GroupNorm(8, base)
        self.final = nn.Conv2d(base, channels, 3, 1, 1)

    def forward(self, z: Tensor, t: Tensor, sound: Tensor, identity: Tensor) -> Tensor:
        """z [clips, frames, channels, s, s], t [clips], sound [clips, frames, context], identity [clips, 1 + s * s, context]."""
        who = identity[:, :1].expand(-1, z.shape[1], -1)
        film = self.token(torch.cat([sound, who], dim=2)) + self.time(time_features(t, self.context, z.dtype))[:, None]
        film = F.silu(film)
        tokens = torch.stack([sound + self.kind[0], who + self.kind[1]], dim=2)
        looks = self.appearance(identity[:, 1:]).transpose(1, 2).reshape(len(z), 1, -1, *z.shape[3:])
        still = z.mean(1, keepdim=True).expand_as(z)  # what all frames share has less noise than any of them
        h = each_frame(self.into, torch.cat([z, still], dim=2)) + self.place + looks
        first = self.attn1(self.down(h, film), tokens)
        h = each_frame(nn.AvgPool2d(2), first)
        h = self.attn2(self.mid1(h, film), tokens)
        h = self.mid2(h, film)
        h = each_frame(nn.Upsample(scale_factor=2), h)
        h = self.attn3(self.up(torch.cat([h, first], dim=2), film), tokens)
        return each_frame(self.final, F.silu(each_frame(self.norm, h)))


def time_features(t: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Sines and cosines of the diffusion time, [clips, width]."""
    exact = torch.promote_types(dtype, torch.float32)  # in half precision neighbouring times would look the same
    rates = torch.exp(torch.arange(width // 2, device=t.device, dtype=exact) * (-math.log(1000.0) / (width // 2)))
    angles = t[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(dtype)
