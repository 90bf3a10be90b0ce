"""What the tests of the engine's answers share: one small ask, its data, and the documented order of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from by_hand import generator
from torch import Tensor

from coterie.engine.answers import Context, answer
from coterie.method import SGD, Batch, Loss, Net, Round, Train, Trained
from coterie.models.nets import mlp
from coterie.randomness import Key
from coterie.tensors import Groups, Tensors

F64 = torch.float64
ROUND = Round(index=3, total=10, phase="p", phase_index=2, phase_rounds=8, cohort=(0,), num_clients=1)
DATA = {"x": torch.arange(22, dtype=F64).reshape(11, 2) / 10, "id": torch.arange(11)}
NET = mlp(2, 3, hidden=(4,)).to("cpu", F64)


def context(net: Net = NET, key: Key = Key(5, ("here",))) -> Context:
    return Context(net, ROUND, key)


def ask(**changes: Any) -> Train:
    base: dict[str, Any] = {
        "params": {"shared": {"w": torch.tensor([1.0, -2.0], dtype=F64), "b": torch.tensor(0.5, dtype=F64)}},
        "optim": SGD(lr=0.1), "streams": {"local": DATA}, "loss": curved, "batch_size": 4, "steps": 10,
    }  # fmt: skip
    return Train(**{**base, **changes})


def trained(train: Train, **more: Any) -> Trained:
    got = answer(train, context(**more))
    assert isinstance(got, Trained)
    return got


def curve(w: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return ((x @ w + b).sin() + 0.1 * (w**4).sum() + b**2).mean()


def curved(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    p = params["shared"]
    return Loss(curve(p["w"], p["b"], batch["local"]["x"]))


def order_of(name: str, ordinal: int, total: int = 11, size: int = 4) -> Iterator[np.ndarray]:
    """The documented order of batches: pass e is a Philox shuffle keyed by (seed, here, name, ordinal, "order", "local", e)."""
    epoch = 0
    while True:
        shuffled = generator(5, "here", name, ordinal, "order", "local", epoch).permutation(total)
        yield from (shuffled[start : start + size] for start in range(0, total, size))
        epoch += 1


def ramp(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    """A gradient of 1 everywhere, so that a parameter moves by minus the sum of the rates."""
    return Loss(sum((v.sum() for group in params.values() for v in group.values()), torch.zeros((), dtype=F64)))


def pull_to_zero(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensor:
    return params["shared"]["w"].square().sum()


def assert_close(found: Tensors, expected: Tensors, atol: float = 1e-12) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=atol)
