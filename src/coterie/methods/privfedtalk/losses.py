"""What PrivFedTalk asks the engine to compute: pure functions of named tensors and one batch."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.method import Batch, Examples, Hub, Loss, Net, Sweep
from coterie.models.talking import model as talking
from coterie.models.talking.autoencoder import STRIDE
from coterie.models.talking.diffusion import (
    add_noise,
    consistency_losses,
    noise_from_velocity,
    squared_losses,
    velocity,
)
from coterie.models.talking.lora import merged
from coterie.randomness import Draw
from coterie.tensors import Groups, Tensors, masked_mean, pick

Target = Literal["noise", "velocity"]

AUTOENCODER = "autoencoder"  # public content of the first phase
BACKBONE = "backbone"  # and of the second: together they are the model that is frozen from then on
_SQUARED = 5.0  # of squared beside absolute error when frames are reconstructed


def public_clips(hub: Hub) -> Examples:
    if "train" not in hub.data:
        raise ValueError(
            f"PrivFedTalk trains its backbone on public clips, but the server holds {sorted(hub.data) or 'none'}. "
            "Give the population public={'train': ...}."
        )
    return hub.data["train"]


def diffusion_noise(steps: int, shape: tuple[int, ...], draws: int | None = None) -> dict[str, Draw]:
    """t per clip and eps, of which an evaluation takes several."""
    many = () if draws is None else (draws,)
    return {"t": Draw("integers", ("batch", *many), (steps,)), "eps": Draw("normal", ("batch", *many, *shape))}


def start_noise(shape: tuple[int, ...]) -> dict[str, Draw]:
    """z_T, from which clips are generated."""
    return {"start": Draw("normal", ("batch", *shape))}


def latent_shape(clips: Examples, frozen: Tensors) -> tuple[int, ...]:
    frames, _, high, wide = clips.rows(torch.tensor([0]))["x"].shape[1:]
    return frames, len(frozen["latents.mean"]), high // STRIDE, wide // STRIDE


def encoded(clips: Examples, frozen: Tensors) -> Generator[Sweep, Any, tuple[Tensors, tuple[int, ...]]]:
    """All clips as standardised latents with their conditions, and a latent's shape: the autoencoder runs once a round."""
    found = yield from Sweep(
        fn=to_latents, params={}, refs={"frozen": frozen}, streams={"clips": clips}, batch_size=64, name="encode"
    )
    columns = clips.all_rows()
    return {"z": found["z"], "audio": columns["audio"], "ref": columns["ref"]}, tuple(found["z"].shape[1:])


def adapted(params: Groups, refs: Groups, scale: float) -> Tensors:
    """theta with phi inside."""
    return merged(refs["frozen"], {**refs.get("factors", {}), **params["shared"]}, scale)


def reconstruct(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    """One random frame of each clip, so that a batch holds many faces."""
    clips, place = batch["clips"], batch["noise"]["frame"]
    x = clips["x"][torch.arange(len(place), device=place.device), place]
    wrong = talking.decode(net, params[AUTOENCODER], talking.encode(net, params[AUTOENCODER], x[:, None]))[:, 0] - x
    losses = (wrong.abs() + _SQUARED * wrong.square()).flatten(1).mean(1)
    return Loss(masked_mean(losses, clips["mask"]))


def latent_moments(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    clips = batch["clips"]
    latents = talking.encode(net, params[AUTOENCODER], clips["x"])
    weights = clips["mask"].to(latents.dtype) / clips["mask"].sum()
    return {
        name: (weights[:, None] * power.mean(dim=(1, 3, 4))).sum(0)
        for name, power in (("mean", latents), ("square", latents.square()))
    }


def to_latents(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    return {"z": talking.standardised(refs["frozen"], talking.encode(net, refs["frozen"], batch["clips"]["x"]))}


def denoising_losses(net: Net, model: Tensors, clips: Tensors, t: Tensor, eps: Tensor) -> Tensors:
    """Per clip: L_diff in eps ("loss") and in v ("velocity"), and L_tdc ("tdc")."""
    abar = model[talking.SCHEDULE][t]
    z_t = add_noise(clips["z"], eps, abar)
    v = talking.predict(net, model, z_t, t, talking.conditions(net, model, clips))
    predicted = noise_from_velocity(v, z_t, abar)  # eps_theta, (5)
    return {
        "loss": squared_losses(eps, predicted),
        "velocity": squared_losses(velocity(clips["z"], eps, abar), v),
        "tdc": consistency_losses(eps, predicted),
    }


def denoising(net: Net, model: Tensors, batch: Batch, target: Target, consistency: float) -> Loss:
    clips, noise = batch["clips"], batch["noise"]
    losses = denoising_losses(net, model, clips, noise["t"], noise["eps"])
    means = {name: masked_mean(values, clips["mask"]) for name, values in losses.items()}
    value = means["velocity" if target == "velocity" else "loss"] + consistency * means["tdc"]  # (12)
    return Loss(value, {}, {name: mean.detach() for name, mean in means.items()})


@dataclass(frozen=True)
class DenoiseWhole:
    """Everything but the autoencoder learns."""

    target: Target

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        return denoising(net, {**refs["frozen"], **params[BACKBONE]}, batch, self.target, 0.0)


@dataclass(frozen=True)
class DenoiseAdapted:
    """Only the adapter learns."""

    target: Target
    consistency: float
    scale: float

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        return denoising(net, adapted(params, refs, self.scale), batch, self.target, self.consistency)


@dataclass(frozen=True)
class Losses:
    """Denoising losses of raw clips, each the mean over several (t, eps)."""

    scale: float

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
        clips, noise, model = batch["local"], batch["noise"], adapted(params, refs, self.scale)
        draws = noise["t"].shape[1]
        z = talking.standardised(model, talking.encode(net, model, clips["x"]))
        many = {"z": z, **pick(clips, ("audio", "ref"))}
        many = {name: value.repeat_interleave(draws, dim=0) for name, value in many.items()}
        losses = denoising_losses(net, model, many, noise["t"].flatten(), noise["eps"].flatten(0, 1))
        return {name: values.reshape(-1, draws).mean(1) for name, values in losses.items()}


@dataclass(frozen=True)
class Generate:
    """Clips from pure noise, for the sound and the reference images of these clips."""

    steps: int
    scale: float

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
        model = adapted(params, refs, self.scale)
        given = talking.conditions(net, model, batch["clips"])
        return {"video": talking.generate(net, model, given, batch["noise"]["start"], self.steps)}


@dataclass(frozen=True)
class Score:
    """Identity similarity and temporal stability of clips generated from the noise "start", which is a stream here."""

    generate: Generate

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
        clips, noise = batch["clips"], {"start": batch["start"]["z"]}
        video = self.generate(params, buffers, refs, {"clips": clips, "noise": noise}, net)["video"]
        return {
            "identity": talking.identity_similarity(net, refs["frozen"], video, clips["ref"]),
            "stability": talking.temporal_stability(video, clips["x"]),
        }
