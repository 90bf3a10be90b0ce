"""FABLE: private anchors turn the shared encoder's features into coordinates that only the client can read.

"FABLE: Federated Anchor-Based Learning with Privacy Protection" (anonymous submission).

    r = T_k(z; A_k) = (cos(g(x), g(a_1)), ..., cos(g(x), g(a_m)))          (3)
    r^ = W_k r                                                            (4)
    y^ = h_k(r^)                                                          (2)

Only the encoder g travels (eq. 9, 10); FedAvg averages it. paper symbol -> our name: theta^g -> "shared";
h_k, W_k -> "private" ("decoder.weight", "decoder.bias", "linear.weight"); A_k -> "anchors" (raw samples, chosen once,
fixed); normalised anchor embeddings -> refs["embedded"].

`refresh` says when anchors are encoded: once per round at its start with the received encoder (the paper's, FB-D1), at the
start of every epoch, in every step, or once for the whole run with its first encoder ("init"). Always in evaluation
mode, with the statistics of the moment and without gradient (FB-D5). What is deployed has them encoded anew, whatever `refresh` is.

A client with fewer samples than anchors uses m_k = n_k of them: rows beyond m_k are zero and masked, which
equals a narrower decoder (FB-D4), or with fill="augment" makes more out of them. Anchors stay in the training data;
`exclude_anchors` takes them out, and then at most half of a client's samples become anchors, so that there is
something to train on. `buffers` is "local" by default, as in the authors' code base (FB-D5). FB-D11's persistent
optimiser state is Training(keep_memory=True).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from coterie.message import Message, Slot
from coterie.method import ClientRun, Hub, Optimizer, PersonalRun, Predictor, Site, Sweep, Train, Trained
from coterie.methods.fable.anchors import Fill, Selection, choose, filled, padded
from coterie.methods.fable.coordinates import FableLoss, embed, fable_outputs
from coterie.methods.fedavg import Buffers, FedAvg, PrivateNames, head_names, linear_layer
from coterie.tensors import Groups, Tensors

Refresh = Literal["round", "epoch", "step", "init"]


@dataclass(frozen=True, kw_only=True)
class Fable(FedAvg):
    """Private anchors, a private linear scaling and a private decoder on a shared encoder."""

    buffers: Buffers = "local"
    private: PrivateNames = head_names
    anchors: int = 64
    linear: bool = True
    selection: Selection = "random"
    refresh: Refresh = "round"
    fill: Fill = "fewer"
    exclude_anchors: bool = False
    private_optim: Optimizer | None = None  # of decoder and scaling; None: as the encoder's

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anchors < 1:
            raise ValueError(f"FABLE needs at least 1 anchor, found {self.anchors}. The paper uses 512.")
        for name, known in (
            ("selection", ("random", "fps", "kmeans")), ("refresh", ("round", "epoch", "step", "init")), ("fill", ("fewer", "augment")),
        ):  # fmt: skip
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, found '{getattr(self, name)}'. Use '{known[0]}'.")
        optims = (self.training.optim, self.private_optim or self.training.optim)
        if self.refresh == "epoch" and any(optim.schedule == "cosine_step" for optim in optims):
            raise ValueError(
                "refresh='epoch' trains every epoch by itself, so schedule='cosine_step' would begin anew in each. "
                "Use schedule='cosine_round', or refresh='round'."
            )

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        if not hub.net.head_names or not hub.net.encoder_names:
            raise ValueError(
                "FABLE puts anchors and a decoder of its own in the place of a net's head, but this net has no encoder and head. "
                "Build it as coterie.models.EncoderHead(encoder, head, num_features)."
            )
        return super().slots(hub)

    def client_row(self, site: Site) -> Groups:
        """Anchors from the training part only (FB-D15), a decoder for them, and W = identity (FB-D6)."""
        chosen = choose(self.selection, self.how_many(site), site.data.train, site.net, site.key.fold("anchors"))
        columns = {name: value for name, value in site.data.train.rows(chosen).items() if name != "y"}
        anchors = filled(columns, self.anchors, self.fill, site.key.fold("fill"))
        row = {**super().client_row(site), "anchors": anchors, "private": self.first_decoder(site)}
        if self.exclude_anchors:
            row["chosen"] = {"positions": chosen}
        if self.refresh == "init":
            with torch.no_grad():
                real = {"mask": torch.ones(len(next(iter(anchors.values()))), dtype=torch.bool)}
                params = {"shared": {name: site.net.params[name] for name in site.net.encoder_names}}
                found = embed(params, {"buffers": site.net.buffers}, {}, {"local": {**anchors, **real}}, site.net)
            row["embedded"] = self.widened(found["embedded"])
        return row

    def how_many(self, site: Site) -> int:
        total = len(site.data.train)
        if not self.exclude_anchors:
            return min(self.anchors, total)
        if total < 2:
            raise ValueError(
                f"Client {site.client} has {total} training sample, which can't be an anchor and left to train on. "
                "Use exclude_anchors=False, or clients with 2 samples or more."
            )
        return min(self.anchors, total // 2)

    def first_decoder(self, site: Site) -> Tensors:
        """Uniform in +-1/sqrt(m), as torch's linear layer starts; the same for a client whatever its cohort."""
        like = next(iter(site.net.params.values()))
        private = linear_layer("decoder", self.anchors, site.net.num_outputs, site.key, like)
        if self.linear:
            private["linear.weight"] = torch.eye(self.anchors, dtype=like.dtype, device=like.device)
        return private

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from super().client(mine, down, site)
        if self.exclude_anchors:  # n_k counts what was trained on
            left = len(site.data.train) - len(mine["chosen"]["positions"])
            up = replace(up, weight=torch.tensor(float(left), dtype=torch.float64))
        return row, up

    def train(self, mine: Groups, down: Message, site: Site) -> Generator[Any, Any, Trained]:
        return (yield from self.with_anchors(self.ask(mine, down, site), mine))

    def ask(self, mine: Groups, down: Message, site: Site) -> Train:
        ask = super().ask(mine, down, site)
        ask = replace(ask, loss=FableLoss(running_statistics=self.buffers == "server", every_step=self.refresh == "step"))
        if self.private_optim is not None:
            ask = replace(ask, optim={"shared": self.training.optim, "private": self.private_optim})
        if self.exclude_anchors:
            left = torch.ones(len(site.data.train), dtype=torch.bool)
            left[mine["chosen"]["positions"].cpu()] = False
            ask = replace(ask, streams={"local": site.data.train.rows(left.nonzero().flatten())})
        return ask

    def with_anchors(self, ask: Train, mine: Groups) -> Generator[Any, Any, Trained]:
        """This training with the anchors in its refs, encoded as often as `refresh` says."""
        encoder = {**ask.refs, **ask.params}["shared"]
        if self.refresh == "step":
            anchors = padded(mine["anchors"], self.anchors, next(iter(mine["private"].values())))
            return (yield from replace(ask, refs={**ask.refs, "anchors": anchors}))
        if self.refresh == "init":
            return (yield from replace(ask, refs={**ask.refs, "embedded": mine["embedded"]}))
        if self.refresh == "round":
            embedded = yield from self.embedded(mine, encoder, ask.buffers)
            return (yield from replace(ask, refs={**ask.refs, "embedded": embedded}))
        got: Trained | None = None
        steps, rates = 0, dict.fromkeys(ask.params, 0.0)
        for part in passes(ask):
            if got is not None:
                part = replace(part, params=got.params, buffers=got.buffers, memory=got.memory or None)
            embedded = yield from self.embedded(mine, {**part.refs, **part.params}["shared"], part.buffers)
            part = replace(part, refs={**part.refs, "embedded": embedded})
            got = yield from part
            steps, rates = steps + got.num_steps, {group: rates[group] + got.lr_sum[group] for group in rates}
        assert got is not None
        return replace(got, num_steps=steps, lr_sum=rates)

    def embedded(self, mine: Groups, encoder: Tensors, buffers: Groups) -> Generator[Any, Any, Tensors]:
        """Anchor embeddings under this encoder, padded with zero rows to m, and which rows are real."""
        got = yield from Sweep(
            fn=embed, params={"shared": encoder}, buffers=buffers, streams={"local": mine["anchors"]}, name="anchors"
        )
        return self.widened(got["embedded"])

    def widened(self, rows: torch.Tensor) -> Tensors:
        missing = self.anchors - len(rows)
        real = torch.cat([rows.new_ones(len(rows)), rows.new_zeros(missing)])
        return {"anchors": torch.cat([rows, rows.new_zeros(missing, rows.shape[1])]), "real": real}

    def global_model(self, state: object, hub: Hub) -> None:
        return None  # the server has an encoder and no decoder: nothing to predict with

    def personal(self, mine: Groups, down: Message, site: Site) -> PersonalRun:
        own = self.buffers_of(mine, down)
        buffers = {"buffers": own} if own else {}
        embedded = yield from self.embedded(mine, down["shared"], buffers)
        return Predictor(
            fn=fable_outputs, params={"shared": down["shared"], "private": mine["private"]}, buffers=buffers,
            refs={"embedded": embedded},
        )  # fmt: skip


def passes(ask: Train) -> list[Train]:
    """One training as several, each of one pass over the data (the last may be shorter, where steps are counted)."""
    if ask.epochs is not None:
        return [replace(ask, epochs=1)] * ask.epochs
    assert ask.steps is not None
    stream = ask.streams["local"]
    total = len(next(iter(stream.values()))) if isinstance(stream, dict) else len(stream)
    whole = -(-total // ask.batch_size)
    return [replace(ask, steps=min(whole, ask.steps - start)) for start in range(0, ask.steps, whole)]
