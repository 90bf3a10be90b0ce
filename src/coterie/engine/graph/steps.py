"""Optimiser steps whose rate and count are tensors, so that a recorded step takes them from where they lie."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.engine.optim import STATE, Stepper
from coterie.method import Adam, Optimizer
from coterie.tensors import Groups, Tensors, clone


class FixedStepper(Stepper):
    """The reference's rules on tensors that stay where they are from one client to the next."""

    def __init__(self, group: str, params: Tensors, optim: Optimizer, device: torch.device) -> None:
        super().__init__(group, params, optim, None)
        for kind in STATE[type(optim)] if self._needs_state() else ():
            self._zeros(kind)
        self._steps = torch.zeros((), dtype=torch.float64, device=device)
        self._begun = 0.0
        self._given: Groups = {}

    def load(self, memory: Groups | None) -> None:
        """A client's optimiser state; without one it starts from zeros, which is the same as none."""
        known = memory or {}
        kept = {kind: known.get(f"{self._group}/{kind}") or {} for kind in STATE[type(self._optim)]}
        self._given = {kind: values for kind, values in kept.items() if values}
        self._begun = float(known.get(f"{self._group}/count", {}).get("steps", torch.zeros(())))
        self._steps.fill_(self._begun)
        for kind, values in self._state.items():
            for name, value in zip(self._names, values, strict=True):
                if kept[kind]:
                    value.copy_(kept[kind][name])
                else:
                    value.zero_()

    def state(self) -> list[Tensor]:
        return [self._steps, *(value for values in self._state.values() for value in values)]

    def memory_after(self, steps: int) -> Groups:
        """What came in, and what `steps` steps made of it: a group that never moved remembers nothing new."""
        state = {kind: clone(values) for kind, values in self._given.items()}
        if steps:
            state |= {kind: clone(dict(zip(self._names, values, strict=True))) for kind, values in self._state.items()}
        kept = {f"{self._group}/{kind}": values for kind, values in state.items()}
        if self._begun + steps:
            kept[f"{self._group}/count"] = {"steps": torch.tensor(self._begun + steps, dtype=torch.float64)}
        return kept

    def _counted(self) -> None:
        self._steps += 1

    def _move(self, directions: list[Tensor], lr: float | Tensor) -> None:
        assert isinstance(lr, Tensor)
        torch._foreach_add_(self._params, torch._foreach_mul(directions, -self._as_param(lr)))

    def _adam(self, grads: list[Tensor], lr: float | Tensor, optim: Adam) -> None:
        assert isinstance(lr, Tensor)
        self._decay(self._as_param(1.0 - lr * optim.weight_decay), optim)
        first, denominator = self._moments(grads, optim)
        beta1, beta2 = optim.betas
        torch._foreach_div_(denominator, self._as_param((1.0 - beta2**self._steps).sqrt()))
        torch._foreach_add_(denominator, optim.eps)
        directions = torch._foreach_div(first, denominator)
        self._move(list(directions), lr / (1.0 - beta1**self._steps))

    def _as_param(self, number: Tensor) -> Tensor:
        return number.to(self._params[0].dtype)
