"""FABLE: private anchors turn the shared encoder's features into coordinates that only the client can read.

"FABLE: Federated Anchor-Based Learning with Privacy Protection" (anonymous submission).

    r = T_k(z; A_k) = (cos(g(x), g(a_1)), ..., cos(g(x), g(a_m)))          (3)
    r^ = W_k r                                                            (4)
    y^ = h_k(r^)                                                          (2)

Only the encoder g travels (eq. 9, 10); FedAvg averages it. paper symbol -> our name: theta^g -> "shared";
h_k, W_k -> "private" ("decoder.weight", "decoder.bias", "linear.weight"); A_k -> "anchors" (raw samples, drawn once,
fixed); normalised anchor embeddings -> refs["embedded"], encoded once per round at its start with the received
encoder, in evaluation mode and without gradient (FB-D1, FB-D5).

A client with fewer samples than anchors uses m_k = n_k of them: rows beyond m_k are zero and masked, which
equals a narrower decoder (FB-D4). `buffers` is "local" by default, as in the authors' code base (FB-D5).
FB-D11's persistent optimiser state is Training(keep_memory=True).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from coterie.message import Message
from coterie.method import (
    Batch,
    Cohort,
    Everyone,
    Hub,
    Loss,
    Net,
    PersonalRun,
    Phase,
    Plan,
    Predictor,
    Site,
    Sweep,
    Trained,
)
from coterie.methods.fedavg import Buffers, FedAvg, PrivateNames, Training, head_names
from coterie.randomness import Draw, draw
from coterie.tensors import Groups, Tensors

_SMALLEST_NORM = 1e-8


def coordinates(z: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
    """r = (cos(z, a_1), ..., cos(z, a_m)) for anchors that are normalised already."""
    r: torch.Tensor = normalised(z) @ embedded.T  # (3)
    return r


def normalised(z: torch.Tensor) -> torch.Tensor:
    unit: torch.Tensor = z / z.norm(dim=1, keepdim=True).clamp(min=_SMALLEST_NORM)
    return unit


def decode(private: Tensors, z: torch.Tensor, embedded: Tensors) -> torch.Tensor:
    """h(W r), or h(r) without the linear scaling; coordinates of missing anchors stay 0 on the way."""
    r = coordinates(z, embedded["anchors"])
    if "linear.weight" in private:
        r = (r @ private["linear.weight"].T) * embedded["real"]  # (4)
    return F.linear(r, private["decoder.weight"], private["decoder.bias"])  # (2)


@dataclass(frozen=True)
class FableLoss:
    """The task's loss of the decoded coordinates."""

    running_statistics: bool = False

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        columns = batch["local"]
        net = net.with_running_statistics() if self.running_statistics else net
        z, after = net.encode(params["shared"], buffers.get("buffers", {}), columns, train=True)
        value, metrics = net.loss(decode(params["private"], z, refs["embedded"]), columns)
        return Loss(value, {"buffers": after} if buffers else {}, metrics)


def fable_outputs(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    z, _ = net.encode(params["shared"], buffers.get("buffers", {}), batch["local"], train=False)
    return {"logits": decode(params["private"], z, refs["embedded"])}


def embed(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    z, _ = net.encode(params["shared"], buffers.get("buffers", {}), batch["local"], train=False)
    return {"embedded": normalised(z)}


@dataclass(frozen=True, kw_only=True)
class Fable(FedAvg):
    """Private anchors, a private linear scaling and a private decoder on a shared encoder."""

    buffers: Buffers = "local"
    private: PrivateNames = head_names
    anchors: int = 64
    linear: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anchors < 1:
            raise ValueError(f"FABLE needs at least 1 anchor, found {self.anchors}. The paper uses 512.")

    def client_row(self, site: Site) -> Groups:
        """Anchors from the training part only (FB-D15), a decoder for them, and W = identity (FB-D6)."""
        count = min(self.anchors, len(site.data.train))
        chosen = torch.from_numpy(site.key.fold("anchors").numpy().choice(len(site.data.train), count, replace=False))
        rows = site.data.train.rows(chosen)
        return {
            **super().client_row(site),
            "anchors": {name: value for name, value in rows.items() if name != "y"},
            "private": self.first_decoder(site),
        }

    def first_decoder(self, site: Site) -> Tensors:
        """Uniform in +-1/sqrt(m), as torch's linear layer starts; the same for a client whatever its cohort."""
        like = next(iter(site.net.params.values()))
        bound = 1.0 / self.anchors**0.5

        def uniform(name: str, *shape: int) -> torch.Tensor:
            numbers = draw(site.key.fold(name), 0, Draw("uniform", shape), 1, like.device, torch.float64)
            spread: torch.Tensor = (2.0 * numbers - 1.0) * bound
            return spread.to(like.dtype)

        classes = site.net.num_outputs
        private = {"decoder.weight": uniform("decoder.weight", classes, self.anchors), "decoder.bias": uniform("bias", classes)}
        if self.linear:
            private["linear.weight"] = torch.eye(self.anchors, dtype=like.dtype, device=like.device)
        return private

    def train(self, mine: Groups, down: Message, site: Site) -> Generator[Any, Any, Trained]:
        embedded = yield from self.embedded(mine, down, site)
        ask = self.ask(mine, down, site)
        loss = FableLoss(running_statistics=self.buffers == "server")
        return (yield from replace(ask, loss=loss, refs={**ask.refs, "embedded": embedded}))

    def embedded(self, mine: Groups, down: Message, site: Site) -> Generator[Any, Any, Tensors]:
        """Anchor embeddings under the received encoder, padded with zero rows to m, and which rows are real."""
        buffers = self.buffers_of(mine, down)
        got = yield from Sweep(
            fn=embed, params={"shared": down["shared"]}, buffers={"buffers": buffers} if buffers else {},
            streams={"local": mine["anchors"]}, name="anchors",
        )  # fmt: skip
        rows = got["embedded"]
        missing = self.anchors - len(rows)
        real = torch.cat([rows.new_ones(len(rows)), rows.new_zeros(missing)])
        return {"anchors": torch.cat([rows, rows.new_zeros(missing, rows.shape[1])]), "real": real}

    def global_model(self, state: object, hub: Hub) -> None:
        return None  # the server has an encoder and no decoder: nothing to predict with

    def personal(self, mine: Groups, down: Message, site: Site) -> PersonalRun:
        embedded = yield from self.embedded(mine, down, site)
        buffers = self.buffers_of(mine, down)
        return Predictor(
            fn=fable_outputs, params={"shared": down["shared"], "private": mine["private"]},
            buffers={"buffers": buffers} if buffers else {}, refs={"embedded": embedded},
        )  # fmt: skip


def fable(
    *, rounds: int, training: Training = Training(), buffers: Buffers = "local", cohort: Cohort = Everyone(),
    anchors: int = 64, linear: bool = True,
) -> Plan:  # fmt: skip
    """A shared encoder read through private anchors; decoder and anchors never leave the client."""
    method = Fable(training=training, buffers=buffers, anchors=anchors, linear=linear)
    return (Phase("train", rounds, method, cohort),)
