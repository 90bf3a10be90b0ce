"""How much may be spent, and by which measure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from coterie.privacy.accountant.sampled import Accountant
from coterie.privacy.accountant.views import ViewName


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A run stops before the round that would bring `view` above `epsilon` at this `delta`. No epsilon: it only tells.

    `accountant` of the amplified view: None for the tightest that knows how cohorts are drawn. `view`: whom the claim is about: "local", "central" or "amplified" (`privacy/accountant/views.py`).
    """

    epsilon: float | None = None
    delta: float = 1e-5
    view: ViewName = "amplified"
    accountant: Accountant | None = None

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        for name, value, known in (("view", self.view, get_args(ViewName)), ("accountant", self.accountant, get_args(Accountant))):
            if value not in known and not (name == "accountant" and value is None):
                raise ValueError(f"A budget's {name} must be one of {', '.join(known)}, found '{value}'. Use one of those.")


def check_epsilon(epsilon: float | None) -> None:
    if epsilon is not None and not 0.0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a finite number above 0, found {epsilon}. Use for example 8.")


def check_delta(delta: float) -> None:
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must lie strictly between 0 and 1, found {delta}. Use for example 1e-5: below 1 / clients.")
