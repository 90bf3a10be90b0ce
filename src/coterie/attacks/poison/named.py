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

_MAKE: dict[str, tuple[Callable[..., Attack], dict[str, Any], str]] = {
    "signflip": (SignFlip, {}, "send the opposite of what was learned"),
    "signflip10": (SignFlip, {"scale": 10.0}, "the opposite, ten times as long"),
    "random100": (RandomUpdate, {"scale": 100.0}, "noise a hundred times as long as the update, the same from all attackers"),
    "random100alone": (RandomUpdate, {"scale": 100.0, "together": False}, "the same, every attacker its own noise"),
    "innerproduct": (InnerProduct, {"epsilon": 10.0}, "ten times the opposite of the attackers' mean update"),
    "scaled10": (ScaledUpdate, {"scale": 10.0}, "ten times what was learned"),
    "labelflip": (LabelFlip, {}, "train on labels turned round: y becomes C - 1 - y"),
    "backdoor": (Backdoor, {}, "train half of the pictures with a bright patch as class 0"),
    "replacement": (Backdoor, {"scale": 5.0}, "the backdoor, its update five times as long"),
}

ATTACKS: dict[str, str] = {name: told for name, (_, _, told) in _MAKE.items()}
"""Every named attack in a line."""


def named_attack(name: str, *, share: float = 0.2, from_round: int = 1) -> Attack:
    """The attack of this name by this share of the clients."""
    if name not in _MAKE:
        raise ValueError(f"Unknown attack '{name}'. Use one of: {', '.join(_MAKE)}.")
    make, strength, _ = _MAKE[name]
    return make(share=share, from_round=from_round, **strength)
