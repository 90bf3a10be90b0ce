"""The exact privacy curve of Gaussian noise, and of any number of Gaussian releases together.

A mechanism that adds N(0, sigma^2 I) to a value that one person can move by at most d is mu-Gaussian-DP with
mu = d / sigma (Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8):

    delta(eps) = Phi(mu/2 - eps/mu) - exp(eps) Phi(-mu/2 - eps/mu).

Releases with mu_1, mu_2, ... are together mu-Gaussian-DP with mu^2 = mu_1^2 + mu_2^2 + ..., without any loss (Dong, Roth
and Su, "Gaussian Differential Privacy", JRSS-B 2022, Corollary 3.3). This is exact for Gaussians; it is not the central
limit approximation that goes by the same name, which is no upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch


def gaussian_delta(eps: float, mu: float) -> float:
    """The smallest delta for which a mu-GDP mechanism is (eps, delta)-DP."""
    if mu == 0.0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    first = _log_phi(mu / 2 - eps / mu)
    second = eps + _log_phi(-mu / 2 - eps / mu)
    return math.exp(first) * -math.expm1(min(second - first, 0.0))  # the difference of the two, without cancellation


def gaussian_eps(mu: float, delta: float = 1e-5) -> float:
    """The smallest eps >= 0 for which a mu-GDP mechanism is (eps, delta)-DP."""
    if not mu >= 0.0:
        raise ValueError(f"mu = distance / sigma must be at least 0, found {mu}. Use a distance >= 0 and a sigma > 0.")
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must lie strictly between 0 and 1, found {delta}. Use for example 1e-5.")
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    if math.isinf(mu):
        return math.inf
    return _root(lambda eps: gaussian_delta(eps, mu) - delta)


def gaussian_mu(eps: float, delta: float = 1e-5) -> float:
    """The largest mu for which a mechanism is (eps, delta)-DP."""
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must lie strictly between 0 and 1, found {delta}. Use for example 1e-5.")
    return _root(lambda mu: delta - gaussian_delta(eps, mu))


def _log_phi(x: float) -> float:
    return float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))


def _root(falling: Callable[[float], float]) -> float:
    """Where a falling function crosses 0, for arguments > 0, by doubling and halving."""
    low, high = 0.0, 1.0
    while falling(high) > 0.0:
        low, high = high, 2.0 * high
    while high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if falling(middle) > 0.0 else (low, middle)
    return high
