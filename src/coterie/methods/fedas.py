"""FedAS: what is received is first aligned with the client's own features, and clients count by how much they have learnt.

Yang, Huang and Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024, Algorithm 1:

    prototypes   P_c = mean of f(x; theta_k^{t-1}) over the client's examples of class c
    alignment    theta <- theta^t - eta_a grad sum_c MSE(f(x_c; theta), P_c),   one epoch
    training     theta, h_k <- SGD on the task's loss
    Fisher       F_k = sum over batches of ||grad NLL||^2, over all parameters
    server       theta^{t+1} = sum_k F_k theta_k / sum_j F_j

paper symbol -> our name: encoder theta -> "shared"; head h_k -> "private"; theta_k^{t-1} -> "previous" in the client's
row, at first the initial encoder; eta_a -> `align_lr`; F_k -> the Message's weight (it is no n_k).

The mean squared error of a class is over its examples in the batch and over features. Prototypes and Fisher traces are
taken in evaluation mode, alignment and training in training mode, one after the other on the same statistics.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.message import Message
from coterie.method import SGD, Batch, ClientRun, Cohort, Everyone, Loss, Net, Phase, Plan, Site, Sweep, Trained
from coterie.methods.fedavg import Buffers, FedAvg, PrivateNames, Training, head_names
from coterie.tensors import Groups, Tensors, merge


def one_hot(columns: Tensors, classes: int, like: Tensor) -> Tensor:
    """Rows of real examples mark their class; padded rows are zero."""
    marks = columns["y"][:, None] == torch.arange(classes, device=like.device)
    return (marks & columns["mask"][:, None]).to(like.dtype)


def feature_sums(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    z, _ = net.encode(params["previous"], buffers.get("buffers", {}), batch["local"], train=False)
    marks = one_hot(batch["local"], net.num_outputs, z)
    return {"sums": marks.T @ z, "counts": marks.sum(0)}


@dataclass(frozen=True)
class AlignLoss:
    """sum_c MSE(f(x_c), P_c) over the classes of the batch."""

    running_statistics: bool = False

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        columns = batch["local"]
        net = net.with_running_statistics() if self.running_statistics else net
        z, after = net.encode(params["shared"], buffers.get("buffers", {}), columns, train=True)
        marks = one_hot(columns, net.num_outputs, z)
        errors = (z - marks @ refs["prototypes"]["of_class"]).square().mean(1)
        by_class = (marks.T @ errors) / marks.sum(0).clamp(min=1.0)
        return Loss(by_class.sum(), {"buffers": after} if buffers else {}, {"alignment": by_class.sum().detach()})


def fisher_trace(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    """||grad NLL||^2 of the batch's mean loss."""

    def loss(model: Tensors) -> Tensor:
        outputs, _ = net.apply(model, buffers.get("buffers", {}), batch["local"], train=False)
        return net.loss(outputs, batch["local"])[0]

    grads = torch.func.grad(loss)(merge(params["shared"], params["private"]))
    return {"trace": torch.stack([g.double().square().sum() for g in grads.values()]).sum()}


@dataclass(frozen=True, kw_only=True)
class FedAs(FedAvg):
    """A shared encoder, aligned before it is trained, and a head of one's own; clients weigh by their Fisher trace."""

    private: PrivateNames = head_names
    align_lr: float = 0.01
    align_epochs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.align_lr < float("inf"):
            raise ValueError(f"align_lr must be a number >= 0, found {self.align_lr}. Use 0.01, or 0 to align nothing.")
        if self.align_epochs < 1:
            raise ValueError(f"align_epochs must be at least 1, found {self.align_epochs}. Use 1 or more.")

    def switched_off(self) -> str:
        return "" if self.align_lr else "with align_lr = 0 nothing is aligned, so this is FedPer with Fisher weights"

    def client_row(self, site: Site) -> Groups:
        encoder = self.first_shared(site.net, site.key)
        return {**super().client_row(site), "previous": encoder, "previous_buffers": site.net.buffers}

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from super().client(mine, down, site)
        statistics = self.buffers_of(row, up if self.buffers == "average" else down)
        fisher = yield from Sweep(
            fn=fisher_trace, params={"shared": up["shared"], "private": row["private"]},
            buffers={"buffers": statistics} if statistics else {}, streams={"local": site.data.train},
            gather="sum", batch_size=self.training.batch_size, name="fisher",
        )  # fmt: skip
        return {**row, "previous": up["shared"], "previous_buffers": statistics}, replace(up, weight=fisher["trace"].double())

    def train(self, mine: Groups, down: Message, site: Site) -> Generator[Any, Any, Trained]:
        ask = self.ask(mine, down, site)
        before = mine["previous_buffers"]
        got = yield from Sweep(
            fn=feature_sums, params={"previous": mine["previous"]}, buffers={"buffers": before} if before else {},
            streams=ask.streams, gather="sum", name="prototypes",
        )  # fmt: skip
        prototypes = got["sums"] / got["counts"].clamp(min=1.0)[:, None]
        aligned = yield from replace(
            ask, name="align", params={"shared": ask.params["shared"]}, optim=SGD(lr=self.align_lr),
            loss=AlignLoss(running_statistics=self.buffers == "server"), refs={"prototypes": {"of_class": prototypes}},
            epochs=self.align_epochs, steps=None, clip_norm=None, memory=None,
        )  # fmt: skip
        return (yield from replace(ask, params={**ask.params, **aligned.params}, buffers=aligned.buffers))


def fedas(
    *, rounds: int, training: Training = Training(), buffers: Buffers = "average", cohort: Cohort = Everyone(),
    align_lr: float = 0.01, align_epochs: int = 1,
) -> Plan:  # fmt: skip
    """A shared encoder that each client aligns with its own features before training; own heads, Fisher weights."""
    method = FedAs(training=training, buffers=buffers, align_lr=align_lr, align_epochs=align_epochs)
    return (Phase("train", rounds, method, cohort),)
