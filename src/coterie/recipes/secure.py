"""The keys of a secure sum on the command line, and the guards that they make."""

from __future__ import annotations

from dataclasses import replace

from coterie.data.examples import Population
from coterie.privacy.guards import Guards
from coterie.privacy.secure_sum import SecureSum
from coterie.privacy.secure_sum.settings import Bits

RANGE = 8.0  # a coordinate moves far less in a round of any training that works; 32 bits still leave steps below 1e-6 for 100 clients


def secured(
    guards: Guards, population: Population, *, secure_sum: bool, threshold: int | None = None, bits: Bits = 32,
    neighbours: int | None = None, range: float | None = None, dropout: float = 0.0, n_max: float | None = None,
) -> Guards:  # fmt: skip
    """The guards with a secure sum, if one is asked for.

    Without noise weights are divided by `n_max`, so that they lie in [0, 1] and the mean stays the plain one: by default the size of
    the largest client, which is then public. Under noise the guards' own `n_max` holds, and the range follows from clip and noise.
    """
    asked = {"threshold": threshold, "neighbours": neighbours, "range": range, "dropout": dropout or None, "bits": None if bits == 32 else bits}
    if not secure_sum:
        alone = next((name for name, value in asked.items() if value is not None), None)
        if alone is not None:
            raise ValueError(f"--secure-{alone} is for a secure sum, which is not asked for. Add --secure-sum, or leave it out.")
        return guards
    declared = range if range is not None or guards.private else max(RANGE, guards.clip or 0.0)
    secure = SecureSum(threshold=threshold, bits=bits, neighbours=neighbours, range=declared, dropout=dropout)
    if guards.private:
        return replace(guards, secure=secure)
    return replace(guards, secure=secure, n_max=n_max or max(1.0, *(float(len(parts.train)) for parts in population.parts)))
