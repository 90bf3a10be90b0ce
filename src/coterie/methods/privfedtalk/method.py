"""PrivFedTalk: federated personalisation of talking heads by low-rank adapters on a frozen latent diffusion model.

"PrivFedTalk", preprint (privacy-aware federated personalised talking-head generation). The server trains a conditional
latent diffusion on public speakers once and publishes it. In each round a client (one speaker) trains adapters phi on
its own clips, and only these travel:

    L_k = L_diff + lambda_tdc L_tdc,   L_diff = E ||eps - eps_theta,phi(z_t, t, c(a), e(r))||^2,        (6), (12)
    L_tdc = E |d eps - d eps_theta,phi|,   d over neighbouring frames,                                  (8)
    phi <- phi + eta sum_k a_k (phi_k - phi) / sum_k a_k,                                               (21)
    a_k = min(n_k, n_max) / n_max * exp(gamma (s_k - 1)),   s_k = alpha IDSim_k + (1 - alpha) TempStab_k.  (20)

paper symbol -> our name: theta -> public content "backbone"; phi -> "shared" (names "....A", "....B"); r -> `rank`;
lambda_tdc -> `consistency`; gamma -> `sharpness`; alpha of (20) -> `identity_share`; eta -> `server_lr`;
LoRA's alpha / r -> `scale`; E -> training.epochs.

We differ (reasons in `docs/decisions.md`): weights a_k lie in (0, 1], so that a clip norm bounds what one
client can do, and with sharpness 0 and equal n_k it is plain averaging; scores come from clips of the validation part that
are generated from pure noise (the code scores training clips); the network gives the velocity v, from which eps_theta
follows exactly. Adapters are trained with (6) as printed (`target="noise"`); the server's own training measures L_diff
in v, that is divided by abar_t, because at high noise an error of eps is tiny and one of the picture is not. Clip,
noise and secure sums are the engine's.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.message import Message, Slot
from coterie.method import Adam, ClientRun, Examples, Hub, Method, Net, Predictor, Site, Sweep, Train
from coterie.methods.fedavg import Training, training_fields
from coterie.methods.privfedtalk.losses import (
    AUTOENCODER,
    BACKBONE,
    DenoiseAdapted,
    Generate,
    Losses,
    Score,
    Target,
    diffusion_noise,
    encoded,
    latent_shape,
    public_clips,
    start_noise,
)
from coterie.models.talking import model as talking
from coterie.models.talking.lora import adapted_weights, fresh_adapter, split_factors
from coterie.randomness import Key, draw
from coterie.states import ServerState
from coterie.tensors import Groups, Tensors, add, scale

LAYERS = ("q", "k", "v", "out", "film")
TRAINING = Training(
    optim=Adam(lr=1e-2, weight_decay=5e-5, schedule="cosine_round"), epochs=2, batch_size=8, clip_norm=1.0
)


@dataclass(frozen=True, kw_only=True)
class PrivFedTalk(Method):
    """Clients train adapters on their own clips; the server averages them, weighted by size and reliability.

    Sent: the adapters. Stays: clips, latents, generated clips, scores (only a_k in (0, 1] counts at the engine).
    """

    training: Training = TRAINING
    layers: tuple[str, ...] = LAYERS  # linear layers that get an adapter, by their last name
    rank: int = 8
    scale: float = 2.0
    consistency: float = 0.05
    target: Target = "noise"
    sharpness: float = 0.5  # 0 counts by size alone, and then nothing is generated
    identity_share: float = 0.7
    n_max: int = 32  # public: clips beyond it do not count more
    sampler_steps: int = 8  # of the clips that are scored
    server_lr: float = 1.0
    freeze_a: bool = False  # A stays as drawn from `adapter_seed`, and only B is trained and sent
    adapter_seed: int = 0
    eval_draws: int = 1  # (t, eps) per clip when losses are evaluated

    def __post_init__(self) -> None:
        counts = {"rank": self.rank, "n_max": self.n_max, "sampler_steps": self.sampler_steps, "eval_draws": self.eval_draws}
        for name, value in counts.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, found {value}. Use 1 or more.")
        if not 0.0 <= self.identity_share <= 1.0:
            raise ValueError(f"identity_share must lie in [0, 1], found {self.identity_share}. Use 0.7, or 0 for stability alone.")
        if not self.consistency >= 0.0:
            raise ValueError(f"consistency must be at least 0, found {self.consistency}. Use 0.05, or 0 to leave L_tdc out.")
        if not self.sharpness >= 0.0:
            raise ValueError(f"sharpness must be at least 0, found {self.sharpness}. Use 0.5, or 0 to count by size alone.")
        if self.target not in ("noise", "velocity"):
            raise ValueError(f"target must be noise or velocity, found '{self.target}'. Use 'noise' for equation 6 as printed.")

    def adapter(self, net: Net) -> tuple[Tensors, Tensors]:
        """What is trained and sent, and what stays fixed for all (A, if frozen)."""
        names = adapted_weights(net.params, self.layers)
        fresh = fresh_adapter(net.params, names, self.rank, Key(self.adapter_seed, ("adapter",)))
        down, up = split_factors(fresh)
        return (up, down) if self.freeze_a else (fresh, {})

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        return {"shared": Slot.like(self.adapter(hub.net)[0])}

    def server_state(self, hub: Hub) -> Groups:
        return {"shared": self.adapter(hub.net)[0]}

    def send(self, state: ServerState, client: int, hub: Hub) -> Message:
        return Message({"shared": state.shared["shared"]})

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        refs = self.fixed(site.net, site.public)
        stream, shape = yield from encoded(site.data.train, refs["frozen"])
        memory = {name.removeprefix("memory/"): values for name, values in mine.items() if name.startswith("memory/")}
        got = yield from Train(
            params={"shared": down["shared"]}, refs=refs, loss=DenoiseAdapted(self.target, self.consistency, self.scale),
            streams={"clips": stream}, noise=diffusion_noise(len(refs["frozen"][talking.SCHEDULE]), shape),
            memory=memory or None, **training_fields(self.training),  # type: ignore[arg-type]
        )  # fmt: skip
        weight = torch.tensor(min(len(site.data.train), self.n_max) / self.n_max, dtype=torch.float64)
        if self.sharpness > 0.0:
            score = yield from self.score(got.params["shared"], refs, shape, site)
            weight = weight * torch.exp(self.sharpness * (score - 1.0))  # (21), bounded
        row = {**mine, **{f"memory/{name}": values for name, values in got.memory.items()}} if self.training.keep_memory else mine
        return row, Message({"shared": got.params["shared"]}, weight=weight)

    def score(self, adapter: Tensors, refs: Groups, shape: tuple[int, ...], site: Site) -> Generator[Sweep, Any, Tensor]:
        """s_k of clips that the trained adapter generates for held-out sound; 0 without a held-out clip.

        A client starts from the same noise in every round, so that its score changes with the adapter alone.
        """
        clips = site.data.validation
        if len(clips) == 0:
            return torch.zeros((), dtype=torch.float64)
        like, key = refs["frozen"]["latents.mean"], Key(site.key.seed, ("score", site.client))
        start = draw(key, 0, start_noise(shape)["start"], len(clips), like.device, like.dtype)
        found = yield from Sweep(
            fn=Score(Generate(self.sampler_steps, self.scale)), params={"shared": adapter}, refs=refs,
            streams={"clips": clips, "start": {"z": start}}, name="score",
        )  # fmt: skip
        identity, stability = (found[name].double().mean().cpu() for name in ("identity", "stability"))
        return self.identity_share * identity + (1.0 - self.identity_share) * stability  # (20)

    def absorb(self, state: ServerState, mean: Message | None, each: object, hub: Hub) -> ServerState:
        if mean is None:
            return state
        return state.with_shared(shared=add(state.shared["shared"], scale(mean["shared"], self.server_lr)))  # (21)

    def global_model(self, state: ServerState, hub: Hub) -> Predictor:
        content = {name: published.tensors for name, published in state.public.items()}
        return self.predictor(state.shared["shared"], self.fixed(hub.net, content), public_clips(hub))

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor:
        return self.predictor(down["shared"], self.fixed(site.net, site.public), site.data.train)

    def fixed(self, net: Net, public: Mapping[str, Tensors]) -> Groups:
        """What no client changes: the published model, and A where it is frozen."""
        if BACKBONE not in public:
            raise ValueError(f"PrivFedTalk needs the public content '{BACKBONE}', found {sorted(public)}. Run its server phases first.")
        frozen = {**public[AUTOENCODER], **public[BACKBONE]}
        return {"frozen": frozen, "factors": self.adapter(net)[1]} if self.freeze_a else {"frozen": frozen}

    def predictor(self, adapter: Tensors, refs: Groups, clips: Examples) -> Predictor:
        steps, shape = len(refs["frozen"][talking.SCHEDULE]), latent_shape(clips, refs["frozen"])
        noise = diffusion_noise(steps, shape, self.eval_draws)
        return Predictor(fn=Losses(self.scale), params={"shared": adapter}, refs=refs, noise=noise)
