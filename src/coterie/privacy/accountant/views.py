"""The three views of one run (PT-D1 of PrivFedTalk's specification): who looks, what is hidden, what one client can change.

1. *local*: the server sees every client's noised Message. Exchanging a client's data moves its Message by at most 2 C, so a
   participation is mu-Gaussian-DP with mu = 2 / z, where z is the multiplier of the noise of *one* Message: sigma, or
   sigma / sqrt(m_min) where every client adds a share. A client is charged for the rounds it took part in; the largest
   charge is told.
2. *central*: only the sum is seen, and who took part. It carries the noise of at least m_min clients, z_c = sigma sqrt(m_min)
   (full) or sigma (share). A removed client sends noise on zeros, which moves the sum by at most C; exchanging its data
   moves it by 2 C and halves z_c.
3. *amplified*: neither the Messages nor who took part is seen, only what the server makes of the sums. The number for Poisson
   cohorts assumes that their sizes stay hidden as well. Every client adds its own noise, so a sum of many clients carries more
   of it, and a model with many parameters shows how much: `sizes_known_epsilon` is what holds even for a reader who knows
   every size. Given its size n, a Poisson cohort is a uniform one of that size out of N clients, and its sum carries the
   noise of n; so the bound without replacement holds, for replacing a client's data.

The weight that travels beside the update (PT-D2) is inside these numbers: (a clip(Delta), kappa C a) is at most
C sqrt(1 + kappa^2) long, and its noise is larger by the same factor, so the multiplier stays `noise`. The bit of an adaptive
clip is one more Gaussian part of the same participation: 1/z^2 = 1/noise^2 + 1/clip_noise^2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from coterie.privacy.release import Release

ViewName = Literal["local", "central", "amplified"]

UNIT = "one client's whole data set"
REPLACED = "one client's data set is replaced by another"
REMOVED = "one client's data set is added or removed (removed: noise on zeros)"
SEES = {
    "local": "whoever sees every noised message and who sent it: the server, unless a secure sum hides them",
    "central": "whoever sees the sums and who took part",
    "amplified": "whoever sees the models only: no message, not who took part",
}


@dataclass(frozen=True, kw_only=True)
class View:
    """One number about privacy with everything that it needs to be true; None with the reason where there is none."""

    name: ViewName
    epsilon: float | None
    delta: float
    relation: str
    sampling: str
    against: str
    accountant: str
    unit: str = UNIT
    replaced_epsilon: float | None = None  # of the relation "replaced", where `relation` is another and it is known
    sizes_known_epsilon: float | None = None  # of the relation "replaced", for a reader who knows every cohort's size
    only_if: str | None = None  # what nobody checked here and the number needs
    reason: str | None = None  # why there is no number

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def told(self) -> str:
        """The number as a person reads it."""
        if self.epsilon is None:
            return "no number" if self.reason is None else f"no number: {self.reason}"
        return self.number(self.epsilon)

    @staticmethod
    def number(epsilon: float) -> str:
        """Four decimals where they mean something."""
        return f"{epsilon:,.{4 if epsilon < 100 else 2 if epsilon < 1000 else 0}f}"


def one_message(release: Release) -> float:
    """z of the noise on one client's Message, relative to the clip."""
    share = math.sqrt(release.min_cohort) if release.split == "share" else 1.0
    return effective(part / share for part in _parts(release))


def whole_sum(release: Release) -> float:
    """z_c of the noise that the sum is guaranteed to carry, relative to the clip."""
    gain = math.sqrt(release.min_cohort) if release.split == "full" else 1.0
    return effective(gain * part for part in _parts(release))


def effective(multipliers: Iterable[float]) -> float:
    """The multiplier of Gaussian parts that are let out together: 1/z^2 = sum of 1/z_i^2."""
    inverse = sum(load(z) for z in multipliers)
    return 1.0 / math.sqrt(inverse) if inverse > 0.0 else math.inf


def load(z: float) -> float:
    """What one release adds to mu^2."""
    return (1.0 / z) * (1.0 / z) if z > 0.0 else math.inf  # a product overflows to infinity, where a power raises


def _parts(release: Release) -> list[float]:
    return [release.noise] if release.clip_noise is None else [release.noise, release.clip_noise]
