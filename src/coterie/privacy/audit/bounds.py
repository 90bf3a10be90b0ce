"""Lower bounds on epsilon from an attacker's scores with and without a canary.

A mechanism that is (eps, delta)-DP keeps every test of "with" against "without" at (Kairouz et al., ICML 2015, Theorem 2.1)

    TPR <= e^eps FPR + delta    and    TNR <= e^eps FNR + delta,

and one that is mu-Gaussian-DP at Phi^-1(TPR) - Phi^-1(FPR) <= mu (Dong et al., "Gaussian Differential Privacy", JRSS B 2022).
Rates are not known but counted, so Clopper-Pearson bounds stand in for them. The threshold is chosen on one half of the
scores and counted on the other: a threshold chosen on the scores that it is judged by would find something in any noise.
The scores of either kind must be independent of each other, which runs are and canaries of one training are only nearly
(one_run.py does without).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtri

from coterie.privacy.gaussian import gaussian_eps

Scores = npt.NDArray[np.float64]
_LEAST = 20  # scores of either kind: below, no bound can say anything


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What scores show. All lower bounds hold together with this confidence.

    `epsilon`: whatever the mechanism is. `mu`, `gaussian_epsilon`: for a mechanism whose claim is mu-Gaussian-DP, which
    promises more than one point (eps, delta), so that more can be held against it. `estimate`: the likely value, no bound.
    `ceiling`, `gaussian_ceiling`: what would come out if every score told the truth; no audit of this size can show more.
    """

    epsilon: float
    mu: float
    gaussian_epsilon: float
    estimate_mu: float
    estimate: float
    ceiling: float
    gaussian_ceiling: float
    confidence: float
    delta: float


def lower_bound_of(successes: npt.ArrayLike, trials: int, confidence: float) -> Scores:
    """One-sided Clopper-Pearson: a probability is at least this, with this confidence."""
    k = np.asarray(successes, dtype=np.float64)
    found: Scores = np.where(k > 0, betaincinv(np.maximum(k, 1), trials - np.maximum(k, 1) + 1, 1 - confidence), 0.0)
    return found


def upper_bound_of(successes: npt.ArrayLike, trials: int, confidence: float) -> Scores:
    """One-sided Clopper-Pearson: a probability is at most this, with this confidence."""
    found: Scores = 1.0 - lower_bound_of(trials - np.asarray(successes, dtype=np.float64), trials, confidence)
    return found


def epsilon_of_rates(tpr: npt.ArrayLike, fpr: npt.ArrayLike, delta: float) -> Scores:
    """The eps that a test with at least this TPR and at most this FPR proves; TNR >= 1 - fpr and FNR <= 1 - tpr come with it."""
    tpr, fpr = np.asarray(tpr, dtype=np.float64), np.asarray(fpr, dtype=np.float64)
    with np.errstate(divide="ignore"):
        first = np.log(np.maximum(tpr - delta, 0.0)) - np.log(fpr)
        second = np.log(np.maximum(1.0 - fpr - delta, 0.0)) - np.log1p(-tpr)
    found: Scores = np.maximum(0.0, np.maximum(first, second))
    return found


def mu_of_rates(tpr: npt.ArrayLike, fpr: npt.ArrayLike) -> Scores:
    """The mu that a test with at least this TPR and at most this FPR proves of a Gaussian-DP mechanism."""
    tpr, fpr = np.asarray(tpr, dtype=np.float64), np.asarray(fpr, dtype=np.float64)
    told = (tpr > 0.0) & (fpr < 1.0)
    found: Scores = np.maximum(0.0, ndtri(np.where(told, tpr, 0.5)) - ndtri(np.where(told, fpr, 0.5)))
    return found


def bounds_of(without: Scores, with_canary: Scores, *, delta: float, confidence: float = 0.95) -> Bounds:
    """Bounds from scores that are larger where the canary took part. Scores stand in any order that does not depend on them.

    One threshold serves epsilon, another mu; each needs its TPR and its FPR bounded, so four bounds share the error.
    """
    check_scores(without, with_canary, delta, confidence)
    each = 1.0 - (1.0 - confidence) / 4.0

    def judged(measure: Callable[[Scores, Scores], Scores]) -> float:
        # chosen on the even scores, counted on the odd ones
        candidates = np.unique(np.concatenate([without[::2], with_canary[::2]]))
        threshold = candidates[np.argmax(measure(*_rates(without[::2], with_canary[::2], candidates, each)))]
        return float(measure(*_rates(without[1::2], with_canary[1::2], np.array([threshold]), each))[0])

    mu = judged(mu_of_rates)
    best = lower_bound_of(len(with_canary[1::2]), len(with_canary[1::2]), each)
    least = upper_bound_of(0, len(without[1::2]), each)
    estimate = estimated_mu(without, with_canary)
    return Bounds(
        epsilon=judged(lambda tpr, fpr: epsilon_of_rates(tpr, fpr, delta)),
        mu=mu,
        gaussian_epsilon=gaussian_eps(mu, delta),
        estimate_mu=estimate,
        estimate=gaussian_eps(estimate, delta),
        ceiling=float(epsilon_of_rates(best, least, delta)),
        gaussian_ceiling=gaussian_eps(float(mu_of_rates(best, least)), delta),
        confidence=confidence,
        delta=delta,
    )


def estimated_mu(without: Scores, with_canary: Scores) -> float:
    """How far apart the scores stand in units of their spread, as one-shot estimation fits it: two normal distributions.

    Andrew et al., "One-shot Empirical Privacy Estimation for Federated Learning", ICLR 2024, arXiv 2302.03098; here with one
    spread for both, as a Gaussian mechanism has.
    """
    apart = float(with_canary.mean() - without.mean())
    freedom = len(without) + len(with_canary) - 2
    inside = float(((without - without.mean()) ** 2).sum() + ((with_canary - with_canary.mean()) ** 2).sum())
    spread = math.sqrt(inside / freedom)
    return 0.0 if apart <= 0 else apart / spread if spread > 1e-12 * apart else math.inf  # below, it is rounding


def auc(without: Scores, with_canary: Scores) -> float:
    """The probability that a score with the canary is above one without; equal scores count half."""
    order = np.sort(without)
    below, up_to = np.searchsorted(order, with_canary, side="left"), np.searchsorted(order, with_canary, side="right")
    return float((below + up_to).sum() / (2.0 * len(without) * len(with_canary)))


def tpr_at(fpr: float, without: Scores, with_canary: Scores) -> float:
    """The share of scores with the canary above the (1 - fpr) quantile of those without."""
    return float((with_canary > np.quantile(without, 1.0 - fpr)).mean())


def check_scores(without: Scores, with_canary: Scores, delta: float, confidence: float) -> None:
    if min(len(without), len(with_canary)) < _LEAST:
        raise ValueError(
            f"An audit needs at least {_LEAST} scores with and without the canary, found {len(with_canary)} and {len(without)}. "
            "Use more runs or canaries."
        )
    if not (np.isfinite(without).all() and np.isfinite(with_canary).all()):
        raise ValueError("An audit needs finite scores, found NaN or infinite ones. The training has diverged: use a smaller rate.")
    check_levels(delta, confidence)


def check_levels(delta: float, confidence: float) -> None:
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must lie strictly between 0 and 1, found {delta:g}. Use for example 1e-5.")
    if not 0.5 <= confidence < 1.0:
        raise ValueError(f"confidence must be at least 0.5 and below 1, found {confidence:g}. Use for example 0.95.")


def _rates(without: Scores, with_canary: Scores, thresholds: Scores, confidence: float) -> tuple[Scores, Scores]:
    """At least this TPR and at most this FPR of guessing "with" from each threshold on."""
    hits = len(with_canary) - np.searchsorted(np.sort(with_canary), thresholds, side="left")
    alarms = len(without) - np.searchsorted(np.sort(without), thresholds, side="left")
    return lower_bound_of(hits, len(with_canary), confidence), upper_bound_of(alarms, len(without), confidence)
