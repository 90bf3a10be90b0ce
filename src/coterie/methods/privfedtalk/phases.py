"""Phase 0, at the server: a model of public speakers. Then the whole plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from coterie.message import Message
from coterie.method import Adam, Cohort, Everyone, Hub, Method, Nobody, Phase, Plan, ServerRun, Site, Sweep, Train, Trained
from coterie.methods.fedavg import Training, training_fields
from coterie.methods.privfedtalk.losses import (
    AUTOENCODER,
    BACKBONE,
    DenoiseWhole,
    Target,
    diffusion_noise,
    encoded,
    latent_moments,
    public_clips,
    reconstruct,
)
from coterie.methods.privfedtalk.method import LAYERS, TRAINING, PrivFedTalk
from coterie.models.talking import model as talking
from coterie.randomness import Draw
from coterie.states import ServerState
from coterie.tensors import Groups, Tensors

AUTOENCODER_TRAINING = Training(
    optim=Adam(lr=6e-3, schedule="cosine_round"), epochs=None, steps=250, batch_size=12, clip_norm=1.0
)
BACKBONE_TRAINING = Training(
    optim=Adam(lr=5e-3, weight_decay=1e-4, schedule="cosine_round"), epochs=None, steps=240, batch_size=8, clip_norm=1.0
)


@dataclass(frozen=True, kw_only=True)
class _Pretrain(Method):
    """A phase without clients: a part of the net is trained on public clips and published in the last round.

    Until then its values and its optimiser's memory wait in the server's state, so that it can be saved and resumed.
    """

    training: Training

    def client(self, mine: Groups, down: Message, site: Site) -> tuple[Groups, Message]:
        raise ValueError(
            f"{type(self).__name__} runs at the server alone, and client {site.client} was asked. Give its phase Nobody()."
        )

    def personal(self, mine: Groups, down: Message, site: Site) -> None:
        return None


def memory_of(state: ServerState, group: str) -> Groups | None:
    return {name: values for name, values in state.shared.items() if name.startswith(f"{group}/")} or None


def kept(state: ServerState, got: Trained) -> ServerState:
    """Go on in the next round."""
    return state.with_shared(**got.params, **got.memory)


def published(state: ServerState, name: str, content: Tensors) -> ServerState:
    """The state with its result made public, and without the workbench."""
    rest = {group: values for group, values in state.shared.items() if group.split("/")[0] != name}
    return replace(state, shared=rest).publishing(name, content)


def is_last(hub: Hub) -> bool:
    return hub.round.phase_index + 1 == hub.round.phase_rounds


@dataclass(frozen=True, kw_only=True)
class PretrainAutoencoder(_Pretrain):
    """Frames to latents and back; published with the mean and spread of each latent channel."""

    training: Training = AUTOENCODER_TRAINING

    def server_state(self, hub: Hub) -> Groups:
        return {AUTOENCODER: {n: v for n, v in hub.net.params.items() if n.startswith(talking.AUTOENCODER_PARTS)}}

    def absorb(self, state: ServerState, mean: Message | None, each: object, hub: Hub) -> ServerRun:
        clips = public_clips(hub)
        frames = clips.rows(torch.tensor([0]))["x"].shape[1]
        got = yield from Train(
            params={AUTOENCODER: state.shared[AUTOENCODER]}, loss=reconstruct, streams={"clips": clips},
            noise={"frame": Draw("integers", ("batch",), (frames,))}, memory=memory_of(state, AUTOENCODER),
            name="reconstruct", **training_fields(self.training),  # type: ignore[arg-type]
        )  # fmt: skip
        if not is_last(hub):
            return kept(state, got)
        moments = yield from Sweep(
            fn=latent_moments, params=got.params, streams={"clips": clips}, gather="mean", batch_size=64, name="moments"
        )
        spread = (moments["square"] - moments["mean"].square()).clamp(min=1e-12).sqrt()
        return published(
            state, AUTOENCODER, {**got.params[AUTOENCODER], "latents.mean": moments["mean"], "latents.std": spread}
        )


@dataclass(frozen=True, kw_only=True)
class PretrainBackbone(_Pretrain):
    """The denoiser and its encoders of sound and identity, in the latents of the published autoencoder."""

    training: Training = BACKBONE_TRAINING
    diffusion_steps: int = 50  # T
    target: Target = "velocity"

    def server_state(self, hub: Hub) -> Groups:
        return {BACKBONE: {n: v for n, v in hub.net.params.items() if not n.startswith(talking.AUTOENCODER_PARTS)}}

    def absorb(self, state: ServerState, mean: Message | None, each: object, hub: Hub) -> ServerRun:
        frozen = state.public[AUTOENCODER].tensors
        schedule = talking.schedule_of(self.diffusion_steps, frozen["latents.mean"])
        stream, shape = yield from encoded(public_clips(hub), frozen)
        got = yield from Train(
            params={BACKBONE: state.shared[BACKBONE]}, loss=DenoiseWhole(self.target), refs={"frozen": {**frozen, **schedule}},
            streams={"clips": stream}, noise=diffusion_noise(self.diffusion_steps, shape), memory=memory_of(state, BACKBONE),
            name="denoise", **training_fields(self.training),  # type: ignore[arg-type]
        )  # fmt: skip
        return published(state, BACKBONE, {**got.params[BACKBONE], **schedule}) if is_last(hub) else kept(state, got)


def privfedtalk(
    *, rounds: int, training: Training = TRAINING, cohort: Cohort = Everyone(), layers: tuple[str, ...] = LAYERS,
    rank: int = 8, scale: float = 2.0, consistency: float = 0.05, target: Target = "noise", sharpness: float = 0.5,
    identity_share: float = 0.7, n_max: int = 32, sampler_steps: int = 8, server_lr: float = 1.0, freeze_a: bool = False,
    adapter_seed: int = 0, diffusion_steps: int = 50, autoencoder_rounds: int = 5,
    autoencoder_training: Training = AUTOENCODER_TRAINING, backbone_rounds: int = 5,
    backbone_training: Training = BACKBONE_TRAINING, backbone_target: Target = "velocity",
) -> Plan:  # fmt: skip
    """A frozen latent diffusion from public speakers, and adapters for the speakers of the federation."""
    adapters = PrivFedTalk(
        training=training, layers=layers, rank=rank, scale=scale, consistency=consistency, target=target,
        sharpness=sharpness, identity_share=identity_share, n_max=n_max, sampler_steps=sampler_steps, server_lr=server_lr,
        freeze_a=freeze_a, adapter_seed=adapter_seed,
    )  # fmt: skip
    backbone = PretrainBackbone(training=backbone_training, diffusion_steps=diffusion_steps, target=backbone_target)
    return (
        Phase("autoencoder", autoencoder_rounds, PretrainAutoencoder(training=autoencoder_training), Nobody()),
        Phase("backbone", backbone_rounds, backbone, Nobody()),
        Phase("train", rounds, adapters, cohort),
    )
