"""Federated learning written out by hand: plain loops on raw float64 tensors. Nothing here comes from coterie.

The net is two layers, its weights a dict of raw tensors; gradients are torch's own. The order of batches follows the
documented rule: pass e of an ask shuffles with Philox, keyed by the hash of
(seed, "round", t, "client", k, ask, how often this ask was made, "order", stream, e).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

Weights = dict[str, Tensor]
LossOf = Callable[[Weights, Tensor, Tensor], Tensor]

W1, B1 = "encoder.layer1.1.weight", "encoder.layer1.1.bias"
W2, B2 = "head.weight", "head.bias"


def generator(seed: int, *path: int | str) -> np.random.Generator:
    text = "\x1f".join([str(seed), *(f"{type(part).__name__}:{part}" for part in path)])
    key = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))


def batches(
    t: int, client: int, total: int, size: int, epochs: int, ask: str = "train", seed: int = 0, stream: str = "local", nth: int = 0
) -> Iterator[Tensor]:
    """Row numbers of every batch, the last one of each pass short; `nth` counts asks of the same name."""
    for epoch in range(epochs):
        key = ("round", t, "client", client, ask, nth, "order", stream, epoch)
        order = torch.from_numpy(generator(seed, *key).permutation(total))
        for start in range(0, total, size):
            yield order[start : start + size]


def features(w: Weights, x: Tensor) -> Tensor:
    return (x @ w[W1].T + w[B1]).clamp(min=0)


def logits(w: Weights, x: Tensor) -> Tensor:
    return features(w, x) @ w[W2].T + w[B2]


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    return (scores.exp().sum(1).log() - scores[torch.arange(len(y)), y]).mean()


def plain_loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(logits(w, x), y)


def gradient(loss_of: LossOf, w: Weights, x: Tensor, y: Tensor, moving: Sequence[str] | None = None) -> Weights:
    leaves = {name: w[name].clone().requires_grad_() for name in (moving or w)}
    found = torch.autograd.grad(loss_of({**w, **leaves}, x, y), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def descend(
    w: Weights, x: Tensor, y: Tensor, rows: Iterator[Tensor], lr: float, loss_of: LossOf = plain_loss, *,
    moving: Sequence[str] | None = None, momentum: float = 0.0, weight_decay: float = 0.0,
    extra: Callable[[Weights], Mapping[str, Tensor]] = lambda w: {},
) -> tuple[Weights, int]:  # fmt: skip
    """SGD from w; `extra` is added to the gradient at each step. The weights afterwards, and how many steps."""
    w = dict(w)
    velocity = {name: torch.zeros_like(value) for name, value in w.items()}
    steps = 0
    for chosen in rows:
        g = gradient(loss_of, w, x[chosen], y[chosen], moving)
        added = extra(w)
        for name in g:
            velocity[name] = momentum * velocity[name] + g[name] + added.get(name, 0.0) + weight_decay * w[name]
            w[name] = w[name] - lr * velocity[name]
        steps += 1
    return w, steps


def mean(values: Sequence[Weights], weights: Sequence[float]) -> Weights:
    total = sum(weights)
    return {name: sum(p / total * v[name] for p, v in zip(weights, values, strict=True)) for name in values[0]}


def farthest(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest difference over all entries; the names must be the same."""
    assert set(found) == set(expected), (sorted(found), sorted(expected))
    return max(float((found[name] - expected[name]).abs().max()) for name in expected)
