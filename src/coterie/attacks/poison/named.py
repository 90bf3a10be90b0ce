"""Attacks by the names that the command line knows them by, with the strengths that are usual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from coterie.attacks.poison.attack import Attack
from coterie.attacks.poison.backdoor import Backdoor
from coterie.attacks.poison.labels import LabelFlip
from coterie.attacks.poison.updates import InnerProduct, RandomUpdate, ScaledUpdate, SignFlip

AttackName = Literal[
    "signflip", "signflip10", "random100", "random100alone", "innerproduct", "scaled10", "labelflip", "backdoor", "replacement"
]  # fmt: skip

_MAKE: dict[str, tuple[Callable[..., Attack], dict[str, Any]]] = {
    "signflip": (SignFlip, {}),
    "signflip10": (SignFlip, {"scale": 10.0}),
    "random100": (RandomUpdate, {"scale": 100.0}),
    "random100alone": (RandomUpdate, {"scale": 100.0, "together": False}),
    "innerproduct": (InnerProduct, {"epsilon": 10.0}),
    "scaled10": (ScaledUpdate, {"scale": 10.0}),
    "labelflip": (LabelFlip, {}),
    "backdoor": (Backdoor, {}),
    "replacement": (Backdoor, {"scale": 5.0}),
}


def named_attack(name: str, *, share: float = 0.2, from_round: int = 1) -> Attack:
    """The attack of this name by this share of the clients."""
    if name not in _MAKE:
        raise ValueError(f"Unknown attack '{name}'. Use one of: {', '.join(_MAKE)}.")
    make, strength = _MAKE[name]
    return make(share=share, from_round=from_round, **strength)
