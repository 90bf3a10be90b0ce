"""A lower bound from one training: many canaries, each included by a fair coin, guessed with the right to abstain.

Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023, arXiv 2305.08846, Theorem 5.2 and
Appendix D: if the training is (eps, delta)-DP, then of r guesses about m coins v or more are right with probability at most

    beta + 2 m delta alpha,   beta = P[X >= v],   alpha = max_{i = 1..v} P[v > X >= v - i] / i,   X ~ Binomial(r, e^eps / (1 + e^eps)).

Nothing is assumed about how canaries disturb each other. The price is a ceiling: k canaries that are all guessed right
show no more than about ln(k / ln(1 / (1 - confidence))), whatever is broken.

Against a claim of mu-Gaussian-DP the whole trade-off curve counts, not one point of it (Mahloujifar, Melis and Chaudhuri,
"Auditing f-Differential Privacy in One Run", arXiv 2410.22235, their audit_rh_with_cap for guesses about coins).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc, expit, ndtr, ndtri

from coterie.privacy.audit.bounds import Bounds, Scores, check_levels, estimated_mu
from coterie.privacy.gaussian import gaussian_eps

_SHARES = (0.15, 1.0)  # of the canaries, that are guessed about; chosen beforehand, and the error is shared among them


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """How likely so many right guesses are, at most, for an (epsilon, delta)-DP training (Theorem 5.2)."""
    probability = float(expit(epsilon))

    def at_least(v: npt.ArrayLike) -> Scores:
        v = np.asarray(v, dtype=np.float64)
        return np.where(v > 0, bdtrc(np.maximum(v - 1, 0), guesses, probability), 1.0)

    beta = float(at_least(correct))
    if delta == 0.0 or correct == 0:
        return beta
    i = np.arange(1, correct + 1)
    alpha = float(((at_least(correct - i) - beta) / i).max())
    return min(1.0, beta + 2.0 * canaries * delta * alpha)


def epsilon_of_guesses(canaries: int, guesses: int, correct: int, *, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon that these guesses refute with this confidence; 0 if they refute none."""
    _check_counts(canaries, guesses, correct)
    return _last_refuted(lambda epsilon: p_value(canaries, guesses, correct, epsilon, delta) <= 1.0 - confidence)


def mu_of_guesses(canaries: int, guesses: int, correct: int, *, confidence: float = 0.95) -> float:
    """The largest mu for which these guesses refute mu-Gaussian-DP with this confidence; 0 if they refute none."""
    _check_counts(canaries, guesses, correct)
    return _last_refuted(lambda mu: _refutes_gaussian(canaries, guesses, correct, mu, 1.0 - confidence))


def one_run_bounds(scores: Scores, included: npt.NDArray[np.bool_], *, delta: float, confidence: float = 0.95) -> Bounds:
    """Bounds from each canary's score and coin. Scores far above the middle are guessed in, far below out, the rest not at all."""
    check_levels(delta, confidence)
    canaries = len(scores)
    if canaries < 20 or not np.isfinite(scores).all():
        raise ValueError(f"A one-run audit needs at least 20 canaries with finite scores, found {canaries}. Use more canaries.")
    if included.all() or not included.any():
        raise ValueError(f"All {canaries} coins fell on the same side, so there is nothing to compare. Use another seed.")
    each = 1.0 - (1.0 - confidence) / (2 * len(_SHARES))  # of several shares, for epsilon and for mu
    centred = scores - middle_of(scores)
    order = np.argsort(-np.abs(centred), kind="stable")  # a guess may depend on all scores, but on no coin
    found: list[tuple[float, float, float, float]] = []
    for share in _SHARES:
        guesses = max(1, int(share * canaries))
        chosen = order[:guesses]
        correct = int(((centred[chosen] > 0) == included[chosen]).sum())
        found.append(
            (
                epsilon_of_guesses(canaries, guesses, correct, delta=delta, confidence=each),
                mu_of_guesses(canaries, guesses, correct, confidence=each),
                epsilon_of_guesses(canaries, guesses, guesses, delta=delta, confidence=each),
                mu_of_guesses(canaries, guesses, guesses, confidence=each),
            )
        )
    epsilon, mu, ceiling, mu_ceiling = (max(values) for values in zip(*found, strict=True))
    estimate = estimated_mu(scores[~included], scores[included])
    return Bounds(
        epsilon=epsilon, mu=mu, gaussian_epsilon=gaussian_eps(mu, delta), estimate_mu=estimate,
        estimate=gaussian_eps(estimate, delta), ceiling=ceiling, gaussian_ceiling=gaussian_eps(mu_ceiling, delta),
        confidence=confidence, delta=delta,
    )  # fmt: skip


def middle_of(scores: Scores) -> float:
    """Between the two heaps that scores of two kinds make: half-way between the means on either side of it."""
    middle = float(np.median(scores))
    for _ in range(100):
        low, high = scores[scores <= middle], scores[scores > middle]
        if not len(low) or not len(high) or (after := float(low.mean() + high.mean()) / 2.0) == middle:
            break
        middle = after
    return middle


def _refutes_gaussian(canaries: int, guesses: int, correct: int, mu: float, error: float) -> bool:
    """Whether so many right guesses are less likely than `error` under mu-GDP.

    From the top down: r bounds the chance of i or more right guesses in the mean over canaries, h that of the wrong ones
    beside them; the curve 1 - f^-1, here Phi(Phi^-1(r) - mu), ties one to the other.
    """
    r, h = error * correct / canaries, error * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        curve = float(ndtr(ndtri(min(r, 1.0)) - mu))
        if curve > h:
            r += i / (guesses - i) * (curve - h)
            h = curve
    return r + h >= guesses / canaries


def _last_refuted(refuted: Callable[[float], bool]) -> float:
    """Where a test that holds for small values ceases to hold, from below."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2.0 * high
        if high > 1e4:
            return math.inf
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _check_counts(canaries: int, guesses: int, correct: int) -> None:
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise ValueError(
            f"Right guesses <= guesses <= canaries must hold, found {correct} right ones of {guesses} about {canaries} canaries. "
            "Count only guesses that were made."
        )
