"""FedPer: the encoder is averaged, the head stays with its client, both are trained together.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019, arXiv 1912.00818, Algorithms 1 and 2:

    client   (W_B,k, W_P,k) <- SGD from (W_B, W_P,k)
    server   W_B <- sum_k gamma_k W_B,k,   gamma_k = n_k / sum_j n_j

paper symbol -> our name: base layers W_B -> "shared"; personalisation layers W_P,k -> "private" (K_P = 1: the last
linear layer). We follow the algorithms as printed, with the mean over the clients that took part.

With `normalise` the head reads the feature's direction only, z / ||z||. That is no part of the paper: it is what FABLE
is to be compared with, whose logits are linear in the normalised feature as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from coterie.message import Message
from coterie.method import Batch, Cohort, Everyone, Loss, Net, Phase, Plan, Predictor, Site, Train
from coterie.methods.fedavg import Buffers, FedAvg, PrivateNames, Training, gather, head_names, predictor
from coterie.tensors import Groups, Tensors

_SMALLEST_NORM = 1e-8


@dataclass(frozen=True, kw_only=True)
class FedPer(FedAvg):
    """A shared encoder, and a head of one's own."""

    private: PrivateNames = head_names
    normalise: bool = False  # the head reads z / ||z||

    def ask(self, mine: Groups, down: Message, site: Site) -> Train:
        ask = super().ask(mine, down, site)
        if not self.normalise:
            return ask
        return replace(ask, loss=NormalisedLoss(tuple(ask.params), running_statistics=self.buffers == "server"))

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor:
        deployed = predictor({"shared": down["shared"], "private": mine["private"]}, self.buffers_of(mine, down))
        return replace(deployed, fn=NormalisedOutputs(tuple(deployed.params))) if self.normalise else deployed


@dataclass(frozen=True)
class NormalisedLoss:
    """The task's loss of head(z / ||z||)."""

    groups: tuple[str, ...]
    running_statistics: bool

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        columns = batch["local"]
        net = net.with_running_statistics() if self.running_statistics else net
        outputs, after = normalised_outputs(net, gather(self.groups, params, refs), buffers, columns, train=True)
        value, metrics = net.loss(outputs, columns)
        return Loss(value, {"buffers": after} if buffers else {}, metrics)


@dataclass(frozen=True)
class NormalisedOutputs:
    """head(z / ||z||) for evaluation."""

    groups: tuple[str, ...]

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
        outputs, _ = normalised_outputs(net, gather(self.groups, params, refs), buffers, batch["local"], train=False)
        return {"logits": outputs}


def normalised_outputs(
    net: Net, model: Tensors, buffers: Groups, columns: Tensors, *, train: bool
) -> tuple[torch.Tensor, Tensors]:
    z, after = net.encode(model, buffers.get("buffers", {}), columns, train=train)
    return net.head(model, F.normalize(z, dim=1, eps=_SMALLEST_NORM)), after


def fedper(
    *, rounds: int, training: Training = Training(), buffers: Buffers = "average", cohort: Cohort = Everyone(),
    normalise: bool = False,
) -> Plan:  # fmt: skip
    """A shared encoder under each client's own head."""
    return (Phase("train", rounds, FedPer(training=training, buffers=buffers, normalise=normalise), cohort),)
