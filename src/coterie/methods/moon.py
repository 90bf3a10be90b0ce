"""MOON: FedAvg whose features are pulled towards the global model's and away from the client's own last ones.

Li et al., "Model-Contrastive Federated Learning", CVPR 2021, arXiv 2103.16257, equations (3) and (4), Algorithm 1:

    l_con = -log( e^{s(z, z_glob)/tau} / (e^{s(z, z_glob)/tau} + e^{s(z, z_prev)/tau}) )     (3)
    l     = l_sup + mu l_con                                                                (4)

with s the cosine, z = P(g(x)) the projected feature under the model that is trained, z_glob under the received model,
z_prev under the one that this client sent last. paper symbol -> our name: w -> "shared", with the projection P (two
layers, to `dim` numbers) as "projection.0" and "projection.1" in it; w_i^{t-1} -> "previous" in the client's row.

A client without a previous model takes the received one, with which l_con is constant: its first round is FedAvg's.
Both reference models are in evaluation mode. We differ: the head reads the feature and not its projection, so that
all methods that are compared have the same classifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from coterie.message import Message
from coterie.method import Batch, ClientRun, Cohort, Everyone, Hub, Loss, Net, Phase, Plan, Predictor, Site, Train
from coterie.methods.fedavg import Buffers, FedAvg, Training, linear_layer, predictor
from coterie.randomness import Key
from coterie.states import ServerState
from coterie.tensors import Groups, Tensors, masked_mean, pick

_SMALLEST_NORM = 1e-8


def projected(model: Tensors, z: torch.Tensor) -> torch.Tensor:
    """P(z), normalised: products of two are cosines."""
    hidden = F.relu(F.linear(z, model["projection.0.weight"], model["projection.0.bias"]))
    out = F.linear(hidden, model["projection.1.weight"], model["projection.1.bias"])
    return F.normalize(out, dim=1, eps=_SMALLEST_NORM)


@dataclass(frozen=True)
class MoonLoss:
    """The task's loss plus mu times the contrast between the received and the previous model."""

    mu: float
    tau: float
    running_statistics: bool = False

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        columns, model = batch["local"], params["shared"]
        training = net.with_running_statistics() if self.running_statistics else net
        z, after = training.encode(model, buffers.get("buffers", {}), columns, train=True)
        value, metrics = net.loss(net.head(model, z), columns)
        own = projected(model, z)

        def similarity(name: str) -> torch.Tensor:
            features, _ = net.encode(refs[name], refs.get(f"{name}_buffers", {}), columns, train=False)
            return (own * projected(refs[name], features)).sum(1)

        contrast = F.softplus((similarity("previous") - similarity("global")) / self.tau)  # (3)
        contrast = masked_mean(contrast, columns["mask"])
        metrics = {**metrics, "contrast": contrast.detach()}
        return Loss(value + self.mu * contrast, {"buffers": after} if buffers else {}, metrics)  # (4)


@dataclass(frozen=True, kw_only=True)
class Moon(FedAvg):
    """FedAvg with a contrast between models."""

    mu: float = 1.0
    tau: float = 0.5
    dim: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.mu < float("inf"):
            raise ValueError(f"mu must be a number >= 0, found {self.mu}. Use 0.1 to 10, or 0 for FedAvg.")
        if not 0.0 < self.tau < float("inf"):
            raise ValueError(f"tau must be a number > 0, found {self.tau}. Use 0.5.")
        if self.dim < 1:
            raise ValueError(f"dim must be at least 1, found {self.dim}. The paper projects to 256 numbers.")

    def switched_off(self) -> str:
        return "" if self.mu else "with mu = 0 the contrast counts for nothing, so this is FedAvg"

    def first_model(self, net: Net, key: Key) -> Tensors:
        like, d = next(iter(net.params.values())), net.num_features
        layers = linear_layer("projection.0", d, d, key, like) | linear_layer("projection.1", d, self.dim, key, like)
        return {**net.params, **layers}

    def client_row(self, site: Site) -> Groups:
        return {**super().client_row(site), "previous": {}, "previous_buffers": {}}

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from super().client(mine, down, site)
        statistics = self.buffers_of(row, up if self.buffers == "average" else down)
        return {**row, "previous": up["shared"], "previous_buffers": statistics}, up

    def ask(self, mine: Groups, down: Message, site: Site) -> Train:
        current = self.buffers_of(mine, down)
        refs = {
            "global": down["shared"], "global_buffers": current,
            "previous": mine["previous"] or down["shared"], "previous_buffers": mine["previous_buffers"] or current,
        }  # fmt: skip
        loss = MoonLoss(self.mu, self.tau, running_statistics=self.buffers == "server")
        return replace(super().ask(mine, down, site), loss=loss, refs={name: group for name, group in refs.items() if group})

    def global_model(self, state: ServerState, hub: Hub) -> Predictor | None:
        return super().global_model(state.with_shared(shared=without_projection(state.shared["shared"], hub.net)), hub)

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor:
        return predictor({"shared": without_projection(down["shared"], site.net)}, self.buffers_of(mine, down))


def without_projection(model: Mapping[str, torch.Tensor], net: Net) -> Tensors:
    """What predicts: the projection only serves the contrast."""
    return pick(model, net.params)


def moon(
    *, rounds: int, training: Training = Training(), buffers: Buffers = "average", cohort: Cohort = Everyone(),
    mu: float = 1.0, tau: float = 0.5, dim: int = 256,
) -> Plan:  # fmt: skip
    """FedAvg with features held near the global model's and away from the client's previous ones."""
    return (Phase("train", rounds, Moon(training=training, buffers=buffers, mu=mu, tau=tau, dim=dim), cohort),)
