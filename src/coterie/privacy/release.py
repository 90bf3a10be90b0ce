"""What a round let out of its clients, as the accountant must know it: the one shape between rounds and epsilons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Sampling = Literal["poisson", "fixed", "everyone"]
Split = Literal["full", "share"]


@dataclass(frozen=True, kw_only=True)
class Release:
    """One attempt of a round. There is one per attempt that left a client, also of void and of noise-only rounds.

    `noise`: sigma, the multiplier of the noise on one client's update relative to the clip.
    `split`: every client adds sigma C ("full"), or sigma C / sqrt(min_cohort) ("share").
    `min_cohort`: m_min, honest noise terms that the sum is guaranteed to carry; 1 if nothing is guaranteed.
    `rate`: q of Poisson sampling; cohort / population of a fixed one; 1 for everyone.
    `participants`: the clients whose (noised) Message left them; `drawn`: how many were asked, where that were more.
    `secure`: the server saw the sum only.
    `clip_noise`: noise multiplier of the adaptive clip's bit, relative to the 1/2 by which a client moves it, None without
    adaptive clipping. Both together are what the guards declared (`Guards.release`).
    """

    round: int
    noise: float
    split: Split
    min_cohort: int
    sampling: Sampling
    rate: float
    participants: tuple[int, ...]
    secure: bool
    clip_noise: float | None = None
    drawn: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"A release's noise must be a finite number of at least 0, found {self.noise}. 0 stands for none.")
        if self.clip_noise is not None and not 0 <= self.clip_noise < math.inf:
            raise ValueError(f"A release's clip_noise must be a finite number of at least 0, found {self.clip_noise}. 0 stands for none.")
        for name, value, known in (("split", self.split, get_args(Split)), ("sampling", self.sampling, get_args(Sampling))):
            if value not in known:
                raise ValueError(f"A release's {name} must be one of {', '.join(known)}, found '{value}'. Use one of those.")
        if self.min_cohort < 1:
            raise ValueError(f"A release's min_cohort must be at least 1, found {self.min_cohort}. Use 1 where nothing is guaranteed.")
        if not 0 < self.rate <= 1:
            raise ValueError(f"A release's rate must be above 0 and at most 1, found {self.rate}. Use 1 where everyone takes part.")
        if self.sampling == "everyone" and self.rate != 1:
            raise ValueError(f"A release's rate must be 1 where everyone takes part, found {self.rate}. Use 1, or say how was sampled.")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "participants": list(self.participants)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Release:
        """The Release that `to_json` wrote."""
        known = {field.name for field in fields(cls)}
        if record.keys() != known:
            wrong = sorted(record.keys() ^ known)
            raise ValueError(f"A stored release must have the keys {sorted(known)}, but differs in {wrong}. Use the file as the run wrote it.")
        return cls(**{**record, "participants": tuple(record["participants"])})
