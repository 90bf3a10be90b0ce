"""What anchors turn a feature into (equations 2 to 4 of the paper), in training and in evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from coterie.method import Batch, Loss, Net
from coterie.methods.fedavg import gather
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
    """The task's loss of the decoded coordinates.

    The anchors' embeddings are a constant, refs["embedded"]; with `every_step` they are encoded anew from
    refs["anchors"], in evaluation mode, and no gradient goes through them. An encoder that stands still is in refs.
    """

    running_statistics: bool = False
    every_step: bool = False

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        columns, encoder, before = batch["local"], gather(("shared",), params, refs), buffers.get("buffers", {})
        embedded = encoded_now(encoder, before, refs["anchors"], net) if self.every_step else refs["embedded"]
        net = net.with_running_statistics() if self.running_statistics else net
        z, after = net.encode(encoder, before, columns, train=True)
        value, metrics = net.loss(decode(params["private"], z, embedded), columns)
        return Loss(value, {"buffers": after} if buffers else {}, metrics)


def encoded_now(encoder: Tensors, buffers: Tensors, anchors: Tensors, net: Net) -> Tensors:
    """Embeddings of padded anchors under the encoder as it is in this step."""
    still = {name: value.detach() for name, value in encoder.items()}
    columns = {**anchors, "mask": anchors["real"] > 0}
    z, _ = net.encode(still, buffers, columns, train=False)
    return {"anchors": normalised(z.detach()) * anchors["real"][:, None], "real": anchors["real"]}


def fable_outputs(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    z, _ = net.encode(params["shared"], buffers.get("buffers", {}), batch["local"], train=False)
    return {"logits": decode(params["private"], z, refs["embedded"])}


def embed(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    z, _ = net.encode(params["shared"], buffers.get("buffers", {}), batch["local"], train=False)
    return {"embedded": normalised(z)}
