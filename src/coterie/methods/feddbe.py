"""FedDBE: each client keeps the bias of its data in a vector of its own, and the shared features meet in one mean.

Zhang et al., "Eliminating Domain Bias for Federated Learning in Representation Space", NeurIPS 2023,
arXiv 2311.14975, Algorithm 1:

    before:  every client trains the first model for one epoch and sends its feature mean; z_g = sum_k n_k/N z_k
    local:   L = CE(head(f(x) + u_k), y) + kappa mean_d( (z_k - z_g)^2 / 2 )
             z_k <- (1 - mu) z_k + mu mean of f over the batch, from 0 in every round

The mean regularisation pulls through the current batch only: what z_k remembers of earlier ones is a constant.
paper symbol -> our name: personal bias memory z^p -> u_k, "dbe.bias" in "private", from 0; z_g -> public content
"global_mean", which travels once; kappa -> `kappa`; mu -> `mean_momentum`. The model of the first epoch is thrown away.

z_g and the first epoch come with a phase of their own, in which everybody takes part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from coterie.message import Message, Slot
from coterie.method import Batch, ClientRun, Cohort, Everyone, Hub, Loss, Net, Phase, Plan, Predictor, Site, Train
from coterie.methods.fedavg import Buffers, FedAvg, PrivateNames, Training, num_examples
from coterie.randomness import Key
from coterie.states import ServerState
from coterie.tensors import Groups, Tensors

GLOBAL_MEAN = "global_mean"
BIAS = "dbe.bias"


def bias_name(net: Net) -> tuple[str, ...]:
    return (BIAS,)


def no_mean(net: Net) -> Tensors:
    like = next(iter(net.params.values()))
    return {"features": torch.zeros(net.num_features, dtype=like.dtype, device=like.device)}


def moved_mean(before: torch.Tensor, z: torch.Tensor, mask: torch.Tensor, momentum: float) -> torch.Tensor:
    """(1 - mu) z_k + mu mean(f), over the real rows of a batch."""
    real = mask.to(z.dtype)
    now = (z * real[:, None]).sum(0) / real.sum().clamp(min=1.0)
    return (1.0 - momentum) * before + momentum * now


def features_and_mean(params: Groups, buffers: Groups, batch: Batch, net: Net, momentum: float) -> tuple[torch.Tensor, Groups]:
    """A batch's features, and the buffers with the running feature mean moved towards theirs."""
    columns = batch["local"]
    z, after = net.encode(params["shared"], buffers.get("buffers", {}), columns, train=True)
    mean = moved_mean(buffers["mean"]["features"], z, columns["mask"], momentum)
    return z, {**buffers, **({"buffers": after} if after else {}), "mean": {"features": mean}}


@dataclass(frozen=True)
class MeasuringLoss:
    """The task's loss without any bias, while the running feature mean is taken."""

    mean_momentum: float
    running_statistics: bool = False

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        net = net.with_running_statistics() if self.running_statistics else net
        z, left = features_and_mean(params, buffers, batch, net, self.mean_momentum)
        value, metrics = net.loss(net.head(params["shared"], z), batch["local"])
        return Loss(value, left, metrics)


@dataclass(frozen=True)
class DbeLoss:
    """The task's loss behind the client's bias, and kappa times the distance of feature means."""

    kappa: float
    mean_momentum: float
    running_statistics: bool = False

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        net = net.with_running_statistics() if self.running_statistics else net
        z, left = features_and_mean(params, buffers, batch, net, self.mean_momentum)
        value, metrics = net.loss(net.head(params["shared"], z + params["private"][BIAS]), batch["local"])
        apart = 0.5 * (left["mean"]["features"] - refs[GLOBAL_MEAN]["features"]).square().mean()
        return Loss(value + self.kappa * apart, left, {**metrics, "mean_distance": apart.detach()})


def biased_outputs(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    z, _ = net.encode(params["shared"], buffers.get("buffers", {}), batch["local"], train=False)
    return {"logits": net.head(params["shared"], z + params["private"][BIAS])}


@dataclass(frozen=True, kw_only=True)
class MeasureMeans(FedAvg):
    """The round before: one epoch of everybody, of which only the feature mean leaves the client."""

    mean_momentum: float = 1.0

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        return {"mean": Slot.like(no_mean(hub.net), kind="change")}

    def client_row(self, site: Site) -> Groups:
        return {"buffers": site.net.buffers} if self.buffers == "local" else {}

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        ask = self.ask(mine, down, site)
        loss = MeasuringLoss(self.mean_momentum, running_statistics=self.buffers == "server")
        got = yield from replace(
            ask, name="measure", loss=loss, buffers={**ask.buffers, "mean": no_mean(site.net)}, epochs=1, steps=None
        )
        return mine, Message({"mean": got.buffers["mean"]}, weight=num_examples(site))

    def absorb(self, state: ServerState, mean: Message | None, each: object, hub: Hub) -> ServerState:
        return state if mean is None else state.publishing(GLOBAL_MEAN, mean["mean"])

    def global_model(self, state: ServerState, hub: Hub) -> None:
        return None  # nothing is trained yet

    def personal(self, mine: Groups, down: Message, site: Site) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class FedDbe(FedAvg):
    """FedAvg with a private bias memory and a mean that all features share."""

    private: PrivateNames = bias_name
    kappa: float = 50.0
    mean_momentum: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.kappa < float("inf"):
            raise ValueError(f"kappa must be a number >= 0, found {self.kappa}. Use 1 to 100, or 0 for the bias memory alone.")
        if not 0.0 < self.mean_momentum <= 1.0:
            raise ValueError(f"mean_momentum must lie in (0, 1], found {self.mean_momentum}. Use 1 for the current batch alone.")

    def switched_off(self) -> str:
        return "" if self.kappa else "with kappa = 0 feature means are free, so only the bias memory is left of FedDBE"

    def first_model(self, net: Net, key: Key) -> Tensors:
        return {**net.params, BIAS: no_mean(net)["features"]}

    def ask(self, mine: Groups, down: Message, site: Site) -> Train:
        ask = super().ask(mine, down, site)
        return replace(
            ask, loss=DbeLoss(self.kappa, self.mean_momentum, running_statistics=self.buffers == "server"),
            buffers={**ask.buffers, "mean": no_mean(site.net)}, refs={GLOBAL_MEAN: site.public[GLOBAL_MEAN]},
        )  # fmt: skip

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor:
        buffers = self.buffers_of(mine, down)
        return Predictor(
            fn=biased_outputs, params={"shared": down["shared"], "private": mine["private"]},
            buffers={"buffers": buffers} if buffers else {},
        )  # fmt: skip


def feddbe(
    *, rounds: int, training: Training = Training(), buffers: Buffers = "average", cohort: Cohort = Everyone(),
    kappa: float = 50.0, mean_momentum: float = 1.0,
) -> Plan:  # fmt: skip
    """FedAvg whose clients keep the bias of their features to themselves; one round more, in which means are taken."""
    measure = MeasureMeans(training=training, buffers=buffers, mean_momentum=mean_momentum)
    method = FedDbe(training=training, buffers=buffers, kappa=kappa, mean_momentum=mean_momentum)
    return (Phase("means", 1, measure, Everyone()), Phase("train", rounds, method, cohort))
