"""What the FL-GAP server computes: signatures, the graph of similar clients, and the mean of each layer group over it.

Numbers are the paper's: (2.9) signature, (2.10) distance, (2.14, 2.15) neighbourhood mean per group ("NULA"),
(C.17) clipping. Where it is silent or contradicts itself: a client is never its own neighbour but always
counts with `self_weight`, even for a group that it did not train, so (2.15) is never 0/0 (a client without an
eligible neighbour keeps its own value); ties go to the smaller id; clipping is `ref + clip(theta - ref)`,
because (C.17) as printed adds the update twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.method import Net
from coterie.randomness import Draw, Key, draw
from coterie.tensors import Tensors, norm, scale

Metric = Literal["euclidean", "cosine"]
Bound = float | Literal["median"] | None

_PROBE_KEY = Key(0, ("fl-gap", "probe"))  # the same probe and projection for every run, round and client


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The data-free input whose features tell models apart: an image of `value` everywhere, plus fixed noise.

    Inputs are normalised, so value 0 is the mean image (the paper's zero input); a black photograph is
    (0 - mean) / std. Noise is the paper's way out for nets without biases and batch norms, which map 0 to 0.
    """

    input_shape: tuple[int, ...]
    value: float = 0.0
    noise_std: float = 0.0
    dim: int = 256

    def __post_init__(self) -> None:
        if self.dim < 1 or not self.input_shape:
            raise ValueError(
                f"A Probe needs an input shape and at least 1 dimension, found {self.input_shape} and {self.dim}. "
                "Give the shape of one example, for example (3, 32, 32)."
            )

    def signature(self, net: Net, params: Tensors, buffers: Tensors) -> Tensor:
        """Features of the probe in evaluation mode (2.9), at most `dim` numbers: more are projected at random."""
        like = next(iter(params.values()))
        noise = draw(_PROBE_KEY, 0, Draw("normal", self.input_shape), 1, like.device, like.dtype)
        x = (self.value + self.noise_std * noise).unsqueeze(0)
        with torch.no_grad():
            features: Tensor = net.encode(params, buffers, {"x": x}, train=False)[0].flatten().double()
        if features.numel() <= self.dim:
            return features
        shape = (self.dim, features.numel())
        projection = draw(_PROBE_KEY, 1, Draw("normal", shape), 1, like.device, torch.float64)
        return (projection @ features) / math.sqrt(self.dim)


def distances(signatures: Tensor, metric: Metric) -> Tensor:
    """d_ij between the rows (2.10); equal rows are at distance exactly 0."""
    if metric == "euclidean":
        return torch.stack([(signatures - row).norm(dim=1) for row in signatures])
    unit = signatures / signatures.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return torch.stack([(unit - row).square().sum(1) / 2 for row in unit])  # = 1 - cosine


def neighbours(signatures: Tensor, knn: int, metric: Metric) -> Tensor:
    """bool [n, n]: who counts for whom. Each row has min(knn, n - 1) others, ties by smaller id."""
    count = len(signatures)
    far = distances(signatures, metric)
    far.fill_diagonal_(torch.inf)
    nearest = far.argsort(dim=1, stable=True)[:, : min(knn, count - 1)]
    return torch.zeros(count, count, dtype=torch.bool, device=far.device).scatter_(1, nearest, True)


def mixing_weights(near: Tensor, trained: Tensor, self_weight: float | None) -> Tensor:
    """Row-stochastic weights [n, n] for one group (2.15): a client and its neighbours that trained the group."""
    knn = int(near.sum(1).max()) if near.numel() else 0
    own = 1.0 / (knn + 1) if self_weight is None else self_weight
    weights = (near & trained).double() / (knn + 1)
    weights = weights + own * torch.eye(len(near), dtype=torch.float64, device=near.device)
    alone = weights.sum(1) == 0  # self_weight 0 and no eligible neighbour: the client keeps its own value
    weights[alone, alone] = 1.0
    return weights / weights.sum(1, keepdim=True)


def mix(values: Sequence[Tensor], weights: Tensor) -> list[Tensor]:
    """theta~_i = sum_j W_ij theta_j (2.17) for one tensor of each client."""
    stacked = torch.stack(list(values))
    mixed = weights.to(stacked) @ stacked.flatten(1)
    return list(mixed.view_as(stacked).unbind())


def clip_changes(changes: Mapping[int, Tensors], bound: Bound) -> dict[int, Tensors]:
    """Each client's change scaled to at most the bound in L2 norm, over all its groups together (C.17)."""
    if bound is None or not changes:
        return dict(changes)
    norms = {client: float(norm([change])) for client, change in changes.items()}
    tau = float(torch.tensor(list(norms.values()), dtype=torch.float64).quantile(0.5)) if bound == "median" else bound
    return {
        client: scale(change, tau / norms[client]) if norms[client] > tau else change
        for client, change in changes.items()
    }


def bound_statistics(reference: Tensors, statistics: Tensors) -> Tensors:
    """Batch-norm statistics within three standard deviations of the reference.

    They are not clipped with the parameters, and an unbounded mean or variance would move the net as much.
    A mean stays within mean +- 3 sigma, a standard deviation within sigma +- 3 sigma (so a variance in [0, 16 sigma^2]).
    """
    bounded = dict(statistics)
    for name in statistics:
        layer, _, kind = name.rpartition(".")
        variance = reference[f"{layer}.running_var"]
        if kind == "running_mean":
            reach = 3 * variance.sqrt()
            bounded[name] = statistics[name].clamp(reference[name] - reach, reference[name] + reach)
        elif kind == "running_var":
            bounded[name] = statistics[name].clamp(torch.zeros_like(variance), 16 * variance)
    return bounded
