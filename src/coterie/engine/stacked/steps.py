"""Optimiser steps on stacked parameters: the rules of `coterie.engine.optim`, with a rate and a count per client."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.engine.optim import STATE
from coterie.engine.stacked.groups import lifted, row_of
from coterie.method import SGD, Adam, Optimizer
from coterie.tensors import Groups, Tensors, clone_groups

_COUNT = "count"


class StackedStepper:
    """Steps one group of G clients in place. A client without a memory starts from zeros, which is the same as none."""

    def __init__(self, group: str, params_G: Tensors, optim: Optimizer, clients: int) -> None:
        self._group = group
        self._params_G = params_G
        self._optim = optim
        kinds = STATE[type(optim)] if isinstance(optim, Adam) or optim.momentum else ()
        self._state_G: Groups = {kind: {name: torch.zeros_like(value_G) for name, value_G in params_G.items()} for kind in kinds}
        device = next((value.device for value in params_G.values()), None)
        self._counts_G = torch.zeros(clients, dtype=torch.float64, device=device)
        self._given: list[Groups] = []
        self._begun: list[float] = []

    def load(self, memories: Sequence[Groups | None]) -> None:
        known = [memory or {} for memory in memories]
        kinds, group = STATE[type(self._optim)], self._group
        self._given = [{kind: own[f"{group}/{kind}"] for kind in kinds if own.get(f"{group}/{kind}")} for own in known]
        self._begun = [float(own.get(f"{group}/{_COUNT}", {}).get("steps", 0.0)) for own in known]
        self._counts_G.copy_(torch.tensor(self._begun, dtype=torch.float64))
        for kind, values_G in self._state_G.items():
            for name, value_G in values_G.items():
                value_G.zero_()
                for client, given in enumerate(self._given):
                    if kind in given:
                        value_G[client] = given[kind][name]

    def state(self) -> list[Tensor]:
        return [self._counts_G, *(value for values in self._state_G.values() for value in values.values())]

    def memory_after(self, client: int, steps: int) -> Groups:
        """What came in, and what `steps` steps made of it: a group that never moved remembers nothing new."""
        state = clone_groups(self._given[client])
        if steps and self._params_G:
            state |= row_of(self._state_G, client)
        kept = {f"{self._group}/{kind}": values for kind, values in state.items()}
        count = self._begun[client] + (steps if self._params_G else 0)
        if count:
            kept[f"{self._group}/{_COUNT}"] = {"steps": torch.tensor(count, dtype=torch.float64)}
        return kept

    def step(self, grads_G: Tensors, rates_G: Tensor, frozen_G: Tensors) -> None:
        """One step of the first `len(rates_G)` clients; what `frozen_G` marks keeps its value and its optimiser state."""
        if not self._params_G:
            return  # nothing that could remember a step
        width = len(rates_G)
        self._counts_G[:width] += 1
        for name, value_G in self._params_G.items():
            value = value_G[:width]
            state = {kind: values[name][:width] for kind, values in self._state_G.items()}
            moved, after = self._moved(value, grads_G[name], state, rates_G)
            stands = lifted(frozen_G[name][:width], value.dim()) if name in frozen_G else None
            for old, new in ((value, moved), *((state[kind], after[kind]) for kind in state)):
                old.copy_(new if stands is None else torch.where(stands, old, new))

    def _moved(self, value: Tensor, grad: Tensor, state: Tensors, rates_G: Tensor) -> tuple[Tensor, Tensors]:
        """The parameter and its optimiser state after the step."""
        optim = self._optim

        def per_client(numbers_G: Tensor) -> Tensor:
            return lifted(numbers_G.to(value.dtype), value.dim())

        if isinstance(optim, SGD):
            if optim.weight_decay:
                grad = grad + optim.weight_decay * value
            if optim.momentum:
                state = {"momentum": state["momentum"] * optim.momentum + grad}
                grad = grad + optim.momentum * state["momentum"] if optim.nesterov else state["momentum"]
            return value - per_client(rates_G) * grad, state
        beta1, beta2 = optim.betas
        counts_G = self._counts_G[: len(rates_G)]
        first = state["first"].lerp(grad, 1.0 - beta1)
        second = state["second"] * beta2 + (1.0 - beta2) * grad * grad
        denominator = second.sqrt() / per_client((1.0 - beta2**counts_G).sqrt()) + optim.eps
        decayed = value * per_client(1.0 - rates_G * optim.weight_decay)
        return decayed - per_client(rates_G / (1.0 - beta1**counts_G)) * first / denominator, {"first": first, "second": second}
