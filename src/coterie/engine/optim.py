"""Optimiser steps on plain tensors, in place on copies that the engine owns."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from coterie.method import SGD, Adam, Optimizer, Round
from coterie.tensors import Groups, Tensors


def rate(optim: Optimizer, round: Round, step: int, num_steps: int) -> float:
    """The learning rate of one step."""
    if optim.schedule == "cosine_round":
        return optim.lr * (1.0 + math.cos(math.pi * round.phase_index / round.phase_rounds)) / 2.0
    if optim.schedule == "cosine_step":
        return optim.lr * (1.0 + math.cos(math.pi * step / num_steps)) / 2.0
    return optim.lr


def added(rates: Iterable[float], times: int) -> float:
    """The sum of every step's rate, added as one step after another adds it, where a step moves a group so many times."""
    total = 0.0
    for value in rates:
        for _ in range(times):
            total += value
    return total


class Stepper:
    """Steps one group of parameters; its state goes out and comes back as named tensors."""

    def __init__(self, group: str, params: Tensors, optim: Optimizer, memory: Groups | None) -> None:
        self._group = group
        self._names = list(params)
        self._params = list(params.values())
        self._optim = optim
        self._state: dict[str, list[Tensor]] = {}
        self._count = 0
        if memory:
            for kind in STATE[type(optim)]:
                kept = memory.get(f"{group}/{kind}")
                if kept:
                    like = zip(self._names, self._params, strict=True)
                    self._state[kind] = [torch.empty_like(value).copy_(kept[name].detach()) for name, value in like]
            if f"{group}/count" in memory:
                self._count = int(memory[f"{group}/count"]["steps"])

    def memory(self) -> Groups:
        kept = {f"{self._group}/{kind}": dict(zip(self._names, values, strict=True)) for kind, values in self._state.items()}
        if self._count:
            kept[f"{self._group}/count"] = {"steps": torch.tensor(float(self._count), dtype=torch.float64)}
        return kept

    def step(self, grads: Tensors, lr: float | Tensor, frozen: Tensors | None) -> None:
        """One step; what `frozen` marks keeps its value and its optimiser state."""
        if not self._names:
            return  # torch's list functions refuse an empty list
        listed = [grads[name] for name in self._names]
        before = self._kept() if frozen is not None else []
        self._counted()
        if isinstance(self._optim, SGD):
            self._sgd(listed, lr, self._optim)
        else:
            self._adam(listed, lr, self._optim)
        if frozen is not None:
            self._restore(before, frozen)

    def _counted(self) -> None:
        self._count += 1

    def _sgd(self, grads: list[Tensor], lr: float | Tensor, optim: SGD) -> None:
        if optim.weight_decay:
            grads = list(torch._foreach_add(grads, self._params, alpha=optim.weight_decay))
        if optim.momentum:
            velocity = self._zeros("momentum")
            torch._foreach_mul_(velocity, optim.momentum)
            torch._foreach_add_(velocity, grads)
            grads = list(torch._foreach_add(grads, velocity, alpha=optim.momentum)) if optim.nesterov else velocity
        self._move(grads, lr)

    def _move(self, directions: list[Tensor], lr: float | Tensor) -> None:
        assert isinstance(lr, float)
        torch._foreach_add_(self._params, directions, alpha=-lr)

    def _adam(self, grads: list[Tensor], lr: float | Tensor, optim: Adam) -> None:
        assert isinstance(lr, float)
        self._decay(1.0 - lr * optim.weight_decay, optim)
        first, denominator = self._moments(grads, optim)
        beta1, beta2 = optim.betas
        torch._foreach_div_(denominator, math.sqrt(1.0 - beta2**self._count))
        torch._foreach_add_(denominator, optim.eps)
        torch._foreach_addcdiv_(self._params, first, denominator, -lr / (1.0 - beta1**self._count))

    def _decay(self, factor: float | Tensor, optim: Adam) -> None:
        if optim.weight_decay:
            torch._foreach_mul_(self._params, factor)

    def _moments(self, grads: list[Tensor], optim: Adam) -> tuple[list[Tensor], list[Tensor]]:
        """The first moment, and the root of the second; neither is corrected for its start."""
        first, second = self._zeros("first"), self._zeros("second")
        beta1, beta2 = optim.betas
        torch._foreach_lerp_(first, grads, 1.0 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1.0 - beta2)
        return first, list(torch._foreach_sqrt(second))

    def _zeros(self, kind: str) -> list[Tensor]:
        if kind not in self._state:
            self._state[kind] = [torch.zeros_like(value) for value in self._params]
        return self._state[kind]

    def _kept(self) -> list[list[Tensor]]:
        for kind in STATE[type(self._optim)] if self._needs_state() else ():
            self._zeros(kind)
        return [[value.clone() for value in values] for values in (self._params, *self._state.values())]

    def _needs_state(self) -> bool:
        return isinstance(self._optim, Adam) or bool(self._optim.momentum)

    def _restore(self, before: list[list[Tensor]], frozen: Tensors) -> None:
        for values, old in zip((self._params, *self._state.values()), before, strict=True):
            for name, value, kept in zip(self._names, values, old, strict=True):
                if name in frozen:
                    value.copy_(torch.where(frozen[name], kept, value))


STATE: dict[type, tuple[str, ...]] = {SGD: ("momentum",), Adam: ("first", "second")}
