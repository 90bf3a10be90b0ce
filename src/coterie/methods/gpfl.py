"""GPFL: one feature, read once for the task of all and once for the client's own, with embeddings of classes as a guide.

Zhang et al., "GPFL: Simultaneously Learning Global and Personalized Feature Information for Personalized Federated
Learning", ICCV 2023, arXiv 2308.10279, Algorithm 1. E holds one vector per class (GCE), CoV shifts and scales features
under a context:

    CoV(f, c) = ReLU( f (gamma(c) + 1) + beta(c) ),   gamma, beta = LayerNorm(ReLU(linear))
    g = mean_c E_c,   p_k = sum_c (share of class c at client k) E_c      (of the received E, constant for the round)
    L = CE(head(CoV(f, p_k)), y) + CE(cos(CoV(f, g), E), y) + lambda ||CoV(f, g) - E_y||_2 + mu/2 (||E||^2 + ||CoV||^2)

with E_y of the received E in the third term. Encoder, E and CoV travel and are averaged; heads and class shares stay.
paper symbol -> our name: W^fe -> the encoder's names in "shared"; E -> "gce.weight"; CoV -> "cov.gamma.*", "cov.beta.*";
W^hd_k -> "private"; class shares -> "frequencies"; lambda -> `lam`; mu -> `mu`, as a term of the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.message import Message
from coterie.method import Batch, Cohort, Everyone, Loss, Net, Phase, Plan, Predictor, Site, Train
from coterie.methods.fedavg import Buffers, FedAvg, PrivateNames, Training, head_names, linear_layer
from coterie.randomness import Draw, Key, draw
from coterie.tensors import Groups, Tensors, masked_mean, squared_distance, zeros_like

_SMALLEST_NORM = 1e-12  # torch's own for unit vectors
OWN = ("gce.", "cov.")


def covered(model: Tensors, f: Tensor, context: Tensor) -> Tensor:
    """CoV(f, c)."""

    def condition(name: str) -> Tensor:
        hidden = F.relu(F.linear(context, model[f"cov.{name}.linear.weight"], model[f"cov.{name}.linear.bias"]))
        return F.layer_norm(hidden, hidden.shape, model[f"cov.{name}.norm.weight"], model[f"cov.{name}.norm.bias"])

    return F.relu(f * (condition("gamma") + 1.0) + condition("beta"))


@dataclass(frozen=True)
class GpflLoss:
    """The task under the client's context, the classes under everybody's, and two regularisers."""

    lam: float
    mu: float
    running_statistics: bool = False

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        columns, model, contexts = batch["local"], params["shared"], refs["contexts"]
        net = net.with_running_statistics() if self.running_statistics else net
        f, after = net.encode(model, buffers.get("buffers", {}), columns, train=True)
        value, metrics = net.loss(net.head(params["private"], covered(model, f, contexts["personal"])), columns)
        general = covered(model, f, contexts["global"])
        cosines = F.normalize(general, dim=1, eps=_SMALLEST_NORM) @ F.normalize(model["gce.weight"], dim=1, eps=_SMALLEST_NORM).T
        angle = masked_mean(F.cross_entropy(cosines, columns["y"], reduction="none"), columns["mask"])
        length = masked_mean((general - contexts["embeddings"][columns["y"]]).norm(dim=1), columns["mask"])
        own = {name: tensor for name, tensor in model.items() if name.startswith(OWN)}
        total = value + angle + self.lam * length + 0.5 * self.mu * squared_distance(own, zeros_like(own))
        metrics = {**metrics, "angle": angle.detach(), "magnitude": length.detach()}
        return Loss(total, {"buffers": after} if buffers else {}, metrics)


def gpfl_outputs(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    f, _ = net.encode(params["shared"], buffers.get("buffers", {}), batch["local"], train=False)
    return {"logits": net.head(params["private"], covered(params["shared"], f, refs["contexts"]["personal"]))}


@dataclass(frozen=True, kw_only=True)
class Gpfl(FedAvg):
    """A shared encoder with shared class embeddings and a conditional valve, and heads of one's own."""

    private: PrivateNames = head_names
    lam: float = 0.01
    mu: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("lam", self.lam), ("mu", self.mu)):
            if not 0.0 <= value < float("inf"):
                raise ValueError(f"{name} must be a number >= 0, found {value}. Use 0.0001 to 1, or 0 for none.")

    def switched_off(self) -> str:
        return "" if self.lam else "with lam = 0 the magnitudes of features are free, so GPFL's second guide is missing"

    def first_model(self, net: Net, key: Key) -> Tensors:
        like, d, classes = next(iter(net.params.values())), net.num_features, net.num_outputs
        embeddings = draw(key.fold("gce"), 0, Draw("normal", (classes, d)), 1, like.device, torch.float64).to(like.dtype)
        found = {**net.params, "gce.weight": embeddings}
        for name in ("cov.gamma", "cov.beta"):
            found |= linear_layer(f"{name}.linear", d, d, key, like)
            found |= {f"{name}.norm.weight": torch.ones_like(embeddings[0]), f"{name}.norm.bias": torch.zeros_like(embeddings[0])}
        return found

    def client_row(self, site: Site) -> Groups:
        like, labels = next(iter(site.net.params.values())), site.data.train.all_rows()["y"].long()
        shares = torch.bincount(labels, minlength=site.net.num_outputs).to(like) / len(labels)
        return {**super().client_row(site), "frequencies": {"of_class": shares}}

    def ask(self, mine: Groups, down: Message, site: Site) -> Train:
        loss = GpflLoss(self.lam, self.mu, running_statistics=self.buffers == "server")
        return replace(super().ask(mine, down, site), loss=loss, refs={"contexts": contexts(mine, down)})

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor:
        buffers = self.buffers_of(mine, down)
        return Predictor(
            fn=gpfl_outputs, params={"shared": down["shared"], "private": mine["private"]},
            buffers={"buffers": buffers} if buffers else {}, refs={"contexts": contexts(mine, down)},
        )  # fmt: skip


def contexts(mine: Groups, down: Message) -> Tensors:
    """g, p_k and the received E."""
    embeddings = down["shared"]["gce.weight"]
    return {"global": embeddings.mean(0), "personal": mine["frequencies"]["of_class"] @ embeddings, "embeddings": embeddings}


def gpfl(
    *, rounds: int, training: Training = Training(), buffers: Buffers = "average", cohort: Cohort = Everyone(),
    lam: float = 0.01, mu: float = 0.1,
) -> Plan:  # fmt: skip
    """A shared encoder guided by class embeddings, read under a context of all and one of the client's own."""
    return (Phase("train", rounds, Gpfl(training=training, buffers=buffers, lam=lam, mu=mu), cohort),)
