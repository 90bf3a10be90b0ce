"""All parts of the talking head under one roof, and what they compute as pure functions of named tensors.

A trained model is one flat mapping: the net's parameters, and beside them "latents.mean", "latents.std" (per channel,
so that latents are standardised) and "schedule.abar". It is what a server publishes and what nothing in the
federation changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from coterie.models.net import Net
from coterie.models.talking.autoencoder import STRIDE, Decoder, Encoder
from coterie.models.talking.conditions import AudioEncoder, IdentityEncoder
from coterie.models.talking.diffusion import ddim, linear_abar
from coterie.models.talking.unet import UNet, each_frame
from coterie.tensors import Tensors

SCHEDULE = "schedule.abar"
AUTOENCODER_PARTS = ("encoder.", "decoder.")


class Caller(Protocol):
    """What is asked of a net here."""

    def call(
        self, params: Tensors, buffers: Tensors, *inputs: Tensor, train: bool, part: str = ""
    ) -> tuple[Any, Tensors]: ...


class TalkingHead(nn.Module):
    """Autoencoder, encoders of sound and face, denoiser."""

    def __init__(self, *, base: int, context: int, channels: int, bands: int, size: int, width: int) -> None:
        super().__init__()
        self.encoder = Encoder(channels, width)
        self.decoder = Decoder(channels, width)
        self.audio = AudioEncoder(bands, context)
        self.identity = IdentityEncoder(context, size)
        self.unet = UNet(channels, base, context, size // STRIDE)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.decoder(self.encoder(x))
        return out


class NoTask:
    """A generative model has no loss of its own: the method that trains it brings one."""

    def __call__(self, outputs: Tensor, columns: Tensors) -> tuple[Tensor, Tensors]:
        raise ValueError(
            "A talking head has no task loss, and this method asks for one. Train it with privfedtalk, or use a classifier."
        )


def talking_head(
    *, base: int = 16, context: int = 32, channels: int = 4, bands: int = 12, size: int = 32, width: int = 24
) -> Net:
    """`base`: channels of the U-Net; `context`: width of a condition token; `channels`: of a latent; `width`: of the autoencoder."""
    if base % 8 or size % 16:
        raise ValueError(
            f"A talking head needs base channels divisible by 8 and a size divisible by 16, found {base} and {size}. "
            "Use for example base=16, size=32."
        )
    return Net(TalkingHead(base=base, context=context, channels=channels, bands=bands, size=size, width=width), NoTask())


def schedule_of(steps: int, like: Tensor) -> Tensors:
    return {SCHEDULE: linear_abar(steps).to(like)}


def encode(net: Caller, model: Tensors, x: Tensor) -> Tensor:
    """Clips [clips, frames, 3, s, s] to raw latents [clips, frames, channels, s/4, s/4]."""

    def encoder(frames: Tensor) -> Tensor:
        found: Tensor = net.call(model, {}, frames, train=False, part="encoder")[0]
        return found

    return each_frame(encoder, x)


def decode(net: Caller, model: Tensors, latents: Tensor) -> Tensor:
    """Raw latents back to clips."""

    def decoder(one: Tensor) -> Tensor:
        found: Tensor = net.call(model, {}, one, train=False, part="decoder")[0]
        return found

    return each_frame(decoder, latents)


def standardised(model: Mapping[str, Tensor], latents: Tensor) -> Tensor:
    return (latents - _channels(model["latents.mean"])) / _channels(model["latents.std"])


def restored(model: Mapping[str, Tensor], latents: Tensor) -> Tensor:
    return latents * _channels(model["latents.std"]) + _channels(model["latents.mean"])


def conditions(net: Caller, model: Tensors, columns: Tensors) -> Tensors:
    """c(a) and e(r) of clips: "sound" [clips, frames, context] and "identity" [clips, tokens, context]."""
    return {
        "sound": net.call(model, {}, columns["audio"], train=False, part="audio")[0],
        "identity": net.call(model, {}, columns["ref"], train=False, part="identity")[0],
    }


def predict(net: Caller, model: Tensors, z_t: Tensor, t: Tensor, given: Tensors) -> Tensor:
    """The velocity that the denoiser sees in z_t."""
    v: Tensor = net.call(model, {}, z_t, t, given["sound"], given["identity"], train=False, part="unet")[0]
    return v


def generate(net: Caller, model: Tensors, given: Tensors, start: Tensor, steps: int) -> Tensor:
    """Clips in [0, 1] from pure noise `start`."""

    def denoise(z: Tensor, t: Tensor) -> Tensor:
        return predict(net, model, z, t, given)

    clean = ddim(denoise, start, model[SCHEDULE], steps)
    return decode(net, model, restored(model, clean)).clamp(0.0, 1.0)


def identity_similarity(net: Caller, model: Tensors, video: Tensor, ref: Tensor) -> Tensor:
    """(1 + cos) / 2 between the model's own whole-face tokens of each frame and of the reference, per clip in [0, 1].

    The identity encoder is a small one of ours, trained with the denoiser on public speakers: no face recognition net.
    """

    def whole_face(pictures: Tensor) -> Tensor:
        tokens: Tensor = net.call(model, {}, pictures, train=False, part="identity")[0]
        return tokens[:, 0]

    cosine = torch.cosine_similarity(each_frame(whole_face, video), whole_face(ref)[:, None], dim=-1)
    return (1.0 + cosine.mean(1)) / 2.0


def temporal_stability(video: Tensor, truth: Tensor) -> Tensor:
    """1 / (1 + |jitter / jitter of the truth - 1|) per clip in (0, 1]: a frozen video is as unstable as a flickering one."""

    def jitter(x: Tensor) -> Tensor:
        return x.diff(dim=1).abs().flatten(1).mean(1)

    return 1.0 / (1.0 + (jitter(video) / jitter(truth).clamp(min=1e-6) - 1.0).abs())


def _channels(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1)
