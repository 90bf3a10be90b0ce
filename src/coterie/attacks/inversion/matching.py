"""Moving a guess until its gradient is the observed one: distances, the two optimisers, and restarts.

Of several restarts the one with the smallest distance counts: an attacker has no originals to choose by.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Generator, Tensor

from coterie.attacks.inversion.guesses import Guess
from coterie.attacks.inversion.observed import Observed
from coterie.tensors import Tensors, clone

Distance: TypeAlias = Callable[[Tensors, Tensors], Tensor]
Told: TypeAlias = Callable[[int, float], None]
"""(iteration, distance): called as an attack goes on, for a display."""

_DRAWN_AGAIN = 5  # starts that end in NaN do not count, so many times in a row
_SOLVED = 1e-10  # of the gradient's own squared norm: nothing more is to be learnt
_NO_TOLERANCE = 1e-30  # torch stops at slopes of 1e-7, which is where a float64 attack on a sigmoid net still has most of its way to go


def squared(found: Tensors, wanted: Tensors) -> Tensor:
    """sum over layers ||g' - g||^2 (DLG, eq. 1 of FABLE)."""
    return torch.stack([(found[name] - value).square().sum() for name, value in wanted.items()]).sum()


def cosine(found: Tensors, wanted: Tensors) -> Tensor:
    """1 - cos(g', g) over all layers as one vector (Geiping et al. 2020)."""
    product = torch.stack([(found[name] * value).sum() for name, value in wanted.items()]).sum()
    squares = [torch.stack([t.square().sum() for t in side.values()]).sum() for side in (found, wanted)]
    return 1.0 - product / (squares[0] * squares[1]).sqrt().clamp(min=1e-300)


@dataclass(frozen=True, eq=False)
class Attempt:
    """What one attack on one message gave: the pictures as they came out (neither clamped nor un-normalised)."""

    pictures: Tensor
    loss: float  # the distance that was reached
    start: float  # the distance at the start
    iterations: int
    restarts: int  # how often it began, those that ended in NaN included
    seconds: float
    variables: Tensors = field(repr=False, default_factory=dict)

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss)


def lbfgs(
    guess: Guess, observed: Observed, *, distance: Distance = squared, iterations: int = 300, restarts: int = 1,
    line_search: bool = True, seed: int = 0, told: Told | None = None,
) -> Attempt:  # fmt: skip
    """L-BFGS with rate 1, 20 inner steps per iteration, as DLG's code; with a line search, without which it may run away."""
    scale = float(squared({name: torch.zeros_like(value) for name, value in observed.gradient.items()}, observed.gradient))
    solved = _SOLVED * (scale if distance is squared else 1.0)

    def once(variables: Tensors) -> tuple[Tensors, float, float, int]:
        optimiser = torch.optim.LBFGS(
            list(variables.values()), lr=1.0, tolerance_grad=_NO_TOLERANCE, tolerance_change=_NO_TOLERANCE,
            line_search_fn="strong_wolfe" if line_search else None,
        )  # fmt: skip
        best, best_loss, first = clone(variables), math.inf, math.inf

        def closure() -> float:
            optimiser.zero_grad()
            loss = distance(guess.gradient(variables), observed.gradient)
            for variable, slope in zip(variables.values(), torch.autograd.grad(loss, list(variables.values())), strict=True):
                variable.grad = slope
            return float(loss.detach())

        done = 0
        for done in range(1, iterations + 1):
            before = clone(variables)
            loss = float(optimiser.step(closure))  # type: ignore[no-untyped-call]
            first = loss if done == 1 else first
            if not math.isfinite(loss) or not all(bool(v.isfinite().all()) for v in variables.values()):
                break
            if loss < best_loss:  # the loss is that of the variables before this step
                best, stuck, best_loss = before, False, loss
            else:
                stuck = loss == best_loss
            if told is not None:
                told(done, best_loss)
            if best_loss < solved or stuck:
                break
        last = float(distance(guess.gradient(variables), observed.gradient).detach())
        if math.isfinite(last) and last <= best_loss:
            best, best_loss = clone(variables), last
        return best, best_loss, first, done

    return _best_of(guess, once, restarts=restarts, seed=seed, solved=solved)


def signed_adam(
    guess: Guess, observed: Observed, *, variation: float = 1e-1, lr: float = 0.1, iterations: int = 4800, signed: bool = True,
    distance: Distance = cosine, restarts: int = 1, seed: int = 0, told: Told | None = None,
) -> Attempt:  # fmt: skip
    """Adam on the sign of the slope, rate cut to a tenth at 3/8, 5/8 and 7/8, pixels kept in their range, plus total variation."""

    def once(variables: Tensors) -> tuple[Tensors, float, float, int]:
        optimiser = torch.optim.Adam(list(variables.values()), lr=lr)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [iterations * part // 8 for part in (3, 5, 7)], gamma=0.1)
        best, best_loss, first = clone(variables), math.inf, math.inf
        for done in range(1, iterations + 1):
            loss = distance(guess.gradient(variables), observed.gradient) + variation * total_variation(variables["x"])
            value = float(loss.detach())
            first = value if done == 1 else first
            if value < best_loss:
                best, best_loss = clone(variables), value
            if not math.isfinite(value):
                break
            for variable, slope in zip(variables.values(), torch.autograd.grad(loss, list(variables.values())), strict=True):
                variable.grad = slope.sign() if signed else slope
            optimiser.step()
            schedule.step()
            with torch.no_grad():
                variables["x"].clamp_(observed.low, observed.high)
            if told is not None:
                told(done, best_loss)
        return best, best_loss, first, iterations

    return _best_of(guess, once, restarts=restarts, seed=seed, solved=0.0)


def total_variation(x: Tensor) -> Tensor:
    """mean |dx| + mean |dy|."""
    across = (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
    return across + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()


def _best_of(
    guess: Guess, once: Callable[[Tensors], tuple[Tensors, float, float, int]], *, restarts: int, seed: int, solved: float
) -> Attempt:
    if restarts < 1:
        raise ValueError(f"restarts must be at least 1, found {restarts}. Use for example 3.")
    generator = Generator().manual_seed(seed)
    started = time.perf_counter()
    best: Attempt | None = None
    begun = counted = 0
    while counted < restarts and begun < restarts + _DRAWN_AGAIN:
        begun += 1
        variables = {name: value.detach().clone().requires_grad_() for name, value in guess.start(generator).items()}
        found, loss, first, iterations = once(variables)
        finite = math.isfinite(loss)
        counted += finite
        if best is None or (finite and not loss >= best.loss):
            best = Attempt(found["x"], loss, first, iterations, begun, 0.0, found)
        if finite and loss < solved:
            break
    assert best is not None
    return Attempt(best.pictures, best.loss, best.start, best.iterations, begun, time.perf_counter() - started, best.variables)
