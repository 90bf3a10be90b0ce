"""What an audit found, beside what was claimed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from coterie.privacy.audit.bounds import Bounds, Scores, auc, tpr_at
from coterie.privacy.audit.canaries import permuted_auc

Verdict = Literal["consistent", "VIOLATION"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """An upper bound on epsilon. `mu` where the claim is the whole curve of mu-Gaussian-DP, else None."""

    epsilon: float
    delta: float
    mu: float | None
    words: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Finding:
    """An audit's scores, bounds and verdict."""

    claim: Claim
    bounds: Bounds
    without: Scores
    with_canary: Scores
    seed: int | None
    about: dict[str, Any]

    @property
    def verdict(self) -> Verdict:
        """A violation where a lower bound exceeds the claim; a curve is refuted by its mu as well."""
        by_curve = self.claim.mu is not None and self.bounds.mu > self.claim.mu
        return "VIOLATION" if self.bounds.epsilon > self.claim.epsilon or by_curve else "consistent"

    @property
    def could_tell(self) -> bool:
        """Whether an audit of this size could have found any violation of this claim."""
        by_curve = self.claim.mu is not None and self.bounds.gaussian_ceiling > self.claim.epsilon
        return self.bounds.ceiling > self.claim.epsilon or by_curve

    def to_json(self) -> dict[str, Any]:
        """Everything but the single scores; numbers beyond any scale are null."""
        found = {
            **self.about,
            "verdict": self.verdict,
            "could_tell": self.could_tell,
            "claim": asdict(self.claim),
            "bounds": asdict(self.bounds),
            "scores": {
                "with": len(self.with_canary),
                "without": len(self.without),
                "auc": auc(self.without, self.with_canary),
                "tpr_at_fpr_0.05": tpr_at(0.05, self.without, self.with_canary),
                "auc_of_permuted_labels": permuted_auc(self.without, self.with_canary, self.seed or 0),
            },
            "audit_seed": self.seed,
        }
        return {key: _finite(value) for key, value in found.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value
