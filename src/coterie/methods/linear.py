"""FedAvg and FedPer "w/ linear": a square matrix W between encoder and head, from the identity on.

The control of "FABLE" (anonymous submission), Table 6: whether FABLE's gain comes from its linear scaling alone.

    y^ = h(W z),   W of d x d without a bias, W = I at the start

Where the head is shared (FedAvg), W is too, and is averaged with everything else; where the head stays with its client
(FedPer), so does W. paper symbol -> our name: W -> "linear.weight", in "shared" or in "private".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from coterie.message import Message
from coterie.method import Batch, Cohort, Everyone, Hub, Loss, Net, Phase, Plan, Predictor, Site, Train
from coterie.methods.fedavg import Buffers, FedAvg, Training, gather, head_names, predictor
from coterie.randomness import Key
from coterie.states import ServerState
from coterie.tensors import Groups, Tensors

W = "linear.weight"


def head_and_linear_names(net: Net) -> tuple[str, ...]:
    return (*head_names(net), W)


def scaled_outputs(net: Net, model: Tensors, buffers: Groups, columns: Tensors, *, train: bool) -> tuple[torch.Tensor, Tensors]:
    """h(W z)."""
    z, after = net.encode(model, buffers.get("buffers", {}), columns, train=train)
    return net.head(model, F.linear(z, model[W])), after


@dataclass(frozen=True)
class ScaledLoss:
    """The task's loss of h(W z)."""

    groups: tuple[str, ...]
    running_statistics: bool = False

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        net = net.with_running_statistics() if self.running_statistics else net
        outputs, after = scaled_outputs(net, gather(self.groups, params, refs), buffers, batch["local"], train=True)
        value, metrics = net.loss(outputs, batch["local"])
        return Loss(value, {"buffers": after} if buffers else {}, metrics)


@dataclass(frozen=True)
class ScaledOutputs:
    """h(W z) for evaluation."""

    groups: tuple[str, ...]

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
        return {"logits": scaled_outputs(net, gather(self.groups, params, refs), buffers, batch["local"], train=False)[0]}


@dataclass(frozen=True, kw_only=True)
class WithLinear(FedAvg):
    """W before the head: shared with it, or private with it (`private=head_and_linear_names`)."""

    def first_model(self, net: Net, key: Key) -> Tensors:
        like = next(iter(net.params.values()))
        return {**net.params, W: torch.eye(net.num_features, dtype=like.dtype, device=like.device)}

    def ask(self, mine: Groups, down: Message, site: Site) -> Train:
        ask = super().ask(mine, down, site)
        return replace(ask, loss=ScaledLoss(tuple(ask.params), running_statistics=self.buffers == "server"))

    def global_model(self, state: ServerState, hub: Hub) -> Predictor | None:
        return scaled(super().global_model(state, hub))

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor | None:
        private = {"private": mine["private"]} if mine.get("private") else {}
        return scaled(predictor({"shared": down["shared"], **private}, self.buffers_of(mine, down)))


def scaled(found: Predictor | None) -> Predictor | None:
    return None if found is None else replace(found, fn=ScaledOutputs(tuple(found.params)))


def fedavg_linear(
    *, rounds: int, training: Training = Training(), buffers: Buffers = "average", cohort: Cohort = Everyone()
) -> Plan:
    """FedAvg of a net with one linear layer more, before the head."""
    return (Phase("train", rounds, WithLinear(training=training, buffers=buffers), cohort),)


def fedper_linear(
    *, rounds: int, training: Training = Training(), buffers: Buffers = "average", cohort: Cohort = Everyone()
) -> Plan:
    """A shared encoder under each client's own linear layer and head."""
    method = WithLinear(training=training, buffers=buffers, private=head_and_linear_names)
    return (Phase("train", rounds, method, cohort),)
