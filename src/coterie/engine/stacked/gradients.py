"""One client's corrected gradient, for vmap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.engine.step import corrected
from coterie.method import Batch, Loss, LossFn, Net, Train
from coterie.tensors import Groups, Tensors


@dataclass(frozen=True, eq=False)
class Gradients:
    """In one turn."""

    ask: Train
    loss_fn: LossFn
    moves: frozenset[str]
    net: Net

    def __call__(
        self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, frozen: Tensors
    ) -> tuple[Groups, Tensor, Tensors, Groups]:
        net = self.net.freezing(frozen) if frozen else self.net

        def compute(at: Groups, buffers: Groups) -> tuple[Groups, Loss]:
            def objective(moving: Groups) -> tuple[Tensor, Any]:
                point = {**at, **moving}
                loss = self.loss_fn(point, buffers, refs, batch, net)
                total = loss.value
                for term in self.ask.terms:
                    total = total + term(point, buffers, refs, batch, net)
                return total, (total, loss.buffers, loss.metrics)

            moving = {group: at[group] for group in at if group in self.moves}
            grads, (total, after, metrics) = torch.func.grad(objective, has_aux=True)(moving)
            return grads, Loss(total, after, metrics)

        grads, loss = corrected(self.ask, compute, params, buffers, refs, frozen)
        return grads, loss.value, loss.metrics, loss.buffers
