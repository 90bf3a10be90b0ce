"""PrivFedTalk's weighted mean as printed (eq. 21), audited: why the formal mode exists.

    w_k = n_k e^{gamma s_k} / sum_j n_j e^{gamma s_j},   phi <- phi + eta sum_k w_k Delta~_k,   Delta~_k = clip(Delta_k) + N(0, sigma^2 C^2 I).

The naive central claim reads this as a mean of m clients: sensitivity C / m beside noise of sigma C / sqrt(m), so mu = 1 / (sigma
sqrt(m)). But a client chooses its own weight: with n_k large enough it is nearly the whole mean, and nobody else's noise
hides it. The guards of this library bound and noise the weight instead (PT-D2).
"""

from __future__ import annotations

import math

import numpy as np

from coterie.privacy.audit.bounds import Scores
from coterie.privacy.audit.mechanism import check_mechanism

_SIZE = 6


def isfa_weights(examples: Scores, scores: Scores, gamma: float) -> Scores:
    """w_k of eq. 21 for clients in the last axis."""
    raw = examples * np.exp(gamma * scores)
    weights: Scores = raw / raw.sum(axis=-1, keepdims=True)
    return weights


def literal_isfa_scores(
    *, noise: float, clients: int = 20, runs: int = 10_000, gamma: float = 1.0, inflation: float = 1e6, seed: int | None = None
) -> tuple[Scores, Scores]:
    """Scores of a toy server without and with a canary that says it has `inflation` times the examples of the others.

    Without the canary its client is an honest one that moves nothing. Clip norm 1; the score is the projection on the
    canary's direction in units of the noise that the naive claim counts on.
    """
    check_mechanism(noise, 1.0, clients, runs)
    rng = np.random.default_rng(seed)
    reliability = rng.random(clients)
    outcomes: list[Scores] = []
    for examples, push in ((1.0, 0.0), (inflation, 1.0)):
        counts = np.append(np.ones(clients - 1), examples)
        weights = isfa_weights(counts, np.append(reliability[:-1], 1.0), gamma)
        moved = np.zeros((clients, _SIZE))
        moved[:-1, 1] = 1.0  # what the honest ones send stands at right angles to the canary's first coordinate
        moved[-1, 0] = push
        noisy = moved + noise * rng.standard_normal((runs, clients, _SIZE))  # eq. 19
        released = np.einsum("k,rkd->rd", weights, noisy)  # eq. 21, eta = 1
        outcomes.append(released[:, 0] / (noise / math.sqrt(clients)))
    return outcomes[0], outcomes[1]


def naive_mu(noise: float, clients: int) -> float:
    """What the naive central claim says of one release."""
    return 1.0 / (noise * math.sqrt(clients))
