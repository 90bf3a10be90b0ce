"""One step of a `Train`: what every backend computes, whoever owns the tensors.

In this order: gradient(loss + terms) -> adjusts -> frozen -> clip_norm -> optimiser -> project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from coterie.method import SGD, Adam, Batch, GradientFn, Loss, LossFn, Net, Optimizer, Train
from coterie.tensors import Groups, Tensors, squared_norm


class Steps(Protocol):
    """What moves one group of parameters in place."""

    def step(self, grads: Tensors, lr: float | Tensor, frozen: Tensors | None) -> None: ...


@dataclass(frozen=True, eq=False)
class Taken:
    """What a step leaves besides the parameters that it moved."""

    buffers: Groups
    told: Tensors  # numbers for the log, and "objective"
    moved: tuple[str, ...]  # groups, once for every turn that moved them


def take_step(
    ask: Train, net: Net, params: Groups, buffers: Groups, batch: Batch, steppers: Mapping[str, Steps],
    rates: Mapping[str, float] | Mapping[str, Tensor],
) -> Taken:  # fmt: skip
    """One step on one batch. `net` knows already what is frozen; `steppers` own and move `params`."""
    told: Tensors = {}
    moved: list[str] = []
    for loss_fn, moves in turns_of(ask):
        grads, loss = _gradients(ask, loss_fn, moves, params, buffers, batch, net)
        buffers = {**buffers, **{name: _detached(values) for name, values in loss.buffers.items()}}
        for group in grads:
            steppers[group].step(grads[group], rates[group], ask.frozen)
            moved.append(group)
        if ask.project is not None:
            _write(params, ask.project(params, ask.refs), ask.frozen or {})
        objective = told["objective"] + loss.value if told else loss.value
        told = {**told, **loss.metrics, "objective": objective}
    return Taken(buffers, _detached(told), tuple(moved))


def _gradients(
    ask: Train, loss_fn: LossFn, moves: frozenset[str], params: Groups, buffers: Groups, batch: Batch, net: Net
) -> tuple[Groups, Loss]:
    """Gradient of loss and terms, corrected, for the groups that move."""

    def compute(at: Groups, buffers: Groups) -> tuple[Groups, Loss]:
        leaves = {g: {n: v.detach().requires_grad_() for n, v in at[g].items()} for g in at if g in moves}
        with torch.enable_grad():
            point = {**at, **leaves}
            loss = loss_fn(point, buffers, ask.refs, batch, net)
            total = loss.value
            for term in ask.terms:
                total = total + term(point, buffers, ask.refs, batch, net)
            flat = [leaf for group in leaves.values() for leaf in group.values()]
            found = iter(torch.autograd.grad(total, flat, allow_unused=True))
        grads = {g: {n: _or_zero(next(found), leaf) for n, leaf in group.items()} for g, group in leaves.items()}
        return grads, Loss(total.detach(), loss.buffers, loss.metrics)

    return corrected(ask, compute, params, buffers, ask.refs, ask.frozen or {})


def corrected(
    ask: Train, compute: GradientFn, params: Groups, buffers: Groups, refs: Groups, frozen: Tensors
) -> tuple[Groups, Loss]:
    """The gradient as the ask's own rules make it: gradient -> adjusts -> frozen -> clip_norm."""
    grads, loss = ask.gradient(compute, params, buffers, refs) if ask.gradient else compute(params, buffers)
    for adjust in ask.adjusts:
        grads = adjust(grads, refs)
    if frozen:
        grads = {g: {n: v.masked_fill(frozen[n], 0.0) if n in frozen else v for n, v in t.items()} for g, t in grads.items()}
    if ask.clip_norm is not None:  # the factor stays on its device: reading it here would wait for every step
        length = torch.stack([squared_norm(t) for t in grads.values() if t]).sum().sqrt()
        factor = (ask.clip_norm / (length + 1e-12)).clamp(max=1.0)
        grads = {g: {n: v * factor.to(v.dtype) for n, v in t.items()} for g, t in grads.items()}
    return grads, loss


def turns_of(ask: Train) -> list[tuple[LossFn, frozenset[str]]]:
    """Every loss of a step, with the groups that it moves."""
    return [(ask.loss, frozenset(ask.params))] if ask.loss else [(turn.loss, turn.moves) for turn in ask.turns]


def optimizer(ask: Train, group: str) -> Optimizer:
    return ask.optim if isinstance(ask.optim, (SGD, Adam)) else ask.optim[group]


def _or_zero(grad: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if grad is None else grad


def _detached(values: Tensors) -> Tensors:
    return {name: value.detach() for name, value in values.items()}


def _write(params: Groups, values: Groups, frozen: Tensors) -> None:
    """What a projection gives, except where a parameter is frozen."""
    for group, tensors in values.items():
        for name, value in tensors.items():
            own = params[group][name]
            own.copy_(torch.where(frozen[name], own, value.detach()) if name in frozen else value.detach())
