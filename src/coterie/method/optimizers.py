"""How parameters move: values that an ask carries; the engine takes the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Schedule = Literal["constant", "cosine_round", "cosine_step"]
_SCHEDULES = get_args(Schedule)


@dataclass(frozen=True, kw_only=True)
class SGD:
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        _check(self)
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum must lie in [0, 1), found {self.momentum}. Use 0.9, or 0 for none.")


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam with decoupled weight decay (AdamW); weight_decay 0 is plain Adam."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        _check(self)
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas must lie in [0, 1), found {self.betas}. Use (0.9, 0.999).")


Optimizer: TypeAlias = SGD | Adam


def _check(optim: Optimizer) -> None:
    if not 0.0 <= optim.lr < float("inf"):
        raise ValueError(f"The learning rate must be a number >= 0, found {optim.lr}. Use for example 0.05.")
    if not 0.0 <= optim.weight_decay < float("inf"):
        raise ValueError(f"weight_decay must be a number >= 0, found {optim.weight_decay}. Use 0.0005, or 0 for none.")
    if optim.schedule not in _SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(_SCHEDULES)}, found '{optim.schedule}'. Use 'constant' for a fixed rate.")
