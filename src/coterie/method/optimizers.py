"""How parameters move: values that an ask carries; the engine takes the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Schedule = Literal["constant", "cosine_round", "cosine_step"]


@dataclass(frozen=True, kw_only=True)
class SGD:
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        _check_rate(self.lr)
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
        _check_rate(self.lr)


Optimizer: TypeAlias = SGD | Adam


def _check_rate(lr: float) -> None:
    if not lr >= 0.0:
        raise ValueError(f"The learning rate must be a number >= 0, found {lr}. Use for example 0.05.")
