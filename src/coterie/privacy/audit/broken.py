"""Mechanisms that do not do what they claim. An audit that does not find them is worth nothing.

Each runs the same guards as everybody and changes one thing: where the noise comes from, or what the clip lets through.
The claim stays that of the sound mechanism.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from coterie.privacy.guards import Guards
from coterie.privacy.noise import NoiseSource
from coterie.tensors import Tensors

Fault = Literal["none", "noise-off", "noise-halved", "seed-reused", "clip-off"]

PUSH = 10.0  # how far beyond the clip a canary goes where no clip holds it


class NoNoise(NoiseSource):
    """Adds nothing."""

    def add(self, values: Tensors, std: float) -> Tensors:
        return {name: value.double() for name, value in values.items()}

    def add_discrete(self, values: Tensors, std: float, step: float) -> Tensors:
        return self.add(values, std)


class HalfNoise(NoiseSource):
    """Adds half of what is asked for."""

    def add(self, values: Tensors, std: float) -> Tensors:
        return super().add(values, std / 2.0)

    def add_discrete(self, values: Tensors, std: float, step: float) -> Tensors:
        return super().add_discrete(values, std / 2.0, step)


@dataclass(frozen=True, kw_only=True)
class FaultyNoise(Guards):
    """Guards whose noise has this fault. With "seed-reused" every round draws the numbers of the first one."""

    fault: Fault = "none"

    def source(self, round: int) -> NoiseSource:
        if self.fault == "noise-off":
            return NoNoise(self.audit_seed, round)
        if self.fault == "noise-halved":
            return HalfNoise(self.audit_seed, round)
        return super().source(0 if self.fault == "seed-reused" else round)


def broken(guards: Guards, fault: Fault, seed: int) -> Guards:
    """These guards with this fault in them; `seed` is the one that is used again and again."""
    if fault not in get_args(Fault):
        raise ValueError(f"A fault must be one of {', '.join(get_args(Fault))}, found '{fault}'. Use one of those.")
    if fault == "none":
        return guards
    if fault == "clip-off":
        return _unclipped(guards)
    kept = {field.name: getattr(guards, field.name) for field in fields(guards)}
    return FaultyNoise(**{**kept, "audit_seed": seed if fault == "seed-reused" else guards.audit_seed, "fault": fault})


def _unclipped(guards: Guards) -> Guards:
    """The same noise and the same weight block, with a bound so wide that it never holds anything back."""
    assert guards.clip is not None
    wide = 10.0 * PUSH
    kappa = guards.kappa / wide
    noise = guards.noise / wide * math.sqrt((1.0 + guards.kappa**2) / (1.0 + kappa**2))
    return replace(guards, clip=guards.clip * wide, kappa=kappa, noise=noise)


def push_of(fault: Fault) -> float:
    """How many times the clip a canary's update is long."""
    return PUSH if fault == "clip-off" else 1.0
