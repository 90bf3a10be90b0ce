"""Epsilons against published numbers and against arithmetic of our own: SciPy's normal distribution, and Rényi sums in numpy."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy import integrate, optimize, special, stats

from coterie.privacy.accountant import Budget, Scheme, planned
from coterie.privacy.accountant.sampled import Accountant, poisson_epsilon
from coterie.privacy.gaussian import gaussian_eps, gaussian_mu

DELTA = 1e-5


def exact_by_scipy(mu: float) -> float:
    """Balle and Wang's curve, solved by SciPy on logarithms of its two parts."""

    def log_delta(eps: float) -> float:
        first, second = stats.norm.logcdf(mu / 2 - eps / mu), eps + stats.norm.logcdf(-mu / 2 - eps / mu)
        return float(first + np.log1p(-np.exp(second - first)))

    # from where the curve is already near delta, since far left of it the two parts are equal in floats
    return float(optimize.brentq(lambda eps: log_delta(eps) - math.log(DELTA), mu**2 / 2 + mu, mu**2 / 2 + 8 * mu, xtol=1e-13, rtol=1e-14))


def renyi_by_numpy(z: float, q: float, rounds: int, orders: range = range(2, 257)) -> float:
    """The sampled Gaussian at whole orders (Mironov, Talwar and Zhang 2019, section 3.3) and the improved conversion."""
    found = []
    for order in orders:
        k = np.arange(order + 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_terms = special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
            log_terms = log_terms + special.xlog1py(order - k, -q) + k * np.log(q) + k * (k - 1) / (2 * z**2)
        divergence = special.logsumexp(log_terms) / (order - 1)
        found.append(rounds * divergence + math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1))
    return min(found)


@pytest.mark.parametrize(
    ("mu", "published"),
    [
        (1.0, 4.3772),
        (2 * math.sqrt(30) / 0.02, 1.5e5),  # sigma .02, 30 rounds, local
        (2 * math.sqrt(100) / 0.3, 2505.6),  # sigma .3, 100 rounds, local
        (math.sqrt(100) / (0.3 * math.sqrt(10)), 99.7),  # the same, central, 10 clients
        (2 * math.sqrt(1000), 2268.8),  # sigma 1, 1,000 rounds, local
        (math.sqrt(1000 / 10), 91.8),  # the same, central, 10 clients
    ],
)
def test_exact_gaussian(mu: float, published: float) -> None:
    assert gaussian_eps(mu, DELTA) == pytest.approx(exact_by_scipy(mu), rel=1e-9, abs=1e-6)
    digits = len(f"{published:.10g}".replace(".", "").rstrip("0"))  # of the published number
    assert gaussian_eps(mu, DELTA) == pytest.approx(published, rel=0.6 * 10 ** (1 - digits))
    assert gaussian_mu(gaussian_eps(mu, DELTA), DELTA) == pytest.approx(mu, rel=1e-9)


@pytest.mark.parametrize(
    ("noise", "min_cohort", "rate", "rounds", "published"),
    [
        (0.3, 10, 10 / 200, 1000, 13.67), (0.5, 10, 10 / 200, 1000, 5.60), (1.0, 10, 10 / 200, 1000, 2.27), (0.3, 10, 0.01, 1000, 2.38),
        (1.1, 1, 0.01, 1000, 1.7253), (1.1, 1, 256 / 60000, 14040, 2.5948), (1.0, 1, 1.0, 1, 4.7527),
    ],
)  # fmt: skip
def test_renyi_at_whole_orders(noise: float, min_cohort: int, rate: float, rounds: int, published: float) -> None:
    scheme = Scheme(rate=rate, min_cohort=min_cohort)
    view = planned(scheme, noise, rounds, Budget(delta=DELTA, accountant="rdp_integer")).view("amplified")
    assert view.accountant == "rdp_integer" and view.epsilon is not None
    assert view.epsilon == pytest.approx(renyi_by_numpy(noise * math.sqrt(min_cohort), rate, rounds), abs=1e-6)
    decimals = len(str(published).split(".")[1])
    assert round(view.epsilon, decimals) == published


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "renyi", "losses"), [(0.1, 1.0, 100, 7.904, 7.047), (0.01, 0.8, 2000, 4.861, 4.293), (1.0, 5.0, 100, 10.726, 9.997)]
)
def test_both_kinds_of_dp_accounting(rate: float, noise: float, rounds: int, renyi: float, losses: float) -> None:
    def epsilon(accountant: Accountant) -> float | None:
        return planned(Scheme(rate=rate), noise, rounds, Budget(delta=DELTA, accountant=accountant)).view("amplified").epsilon

    assert epsilon("rdp") == pytest.approx(renyi, abs=1e-3)
    assert epsilon("pld") == pytest.approx(losses, abs=1e-3)


def test_privacy_losses_of_one_sampled_release_against_an_integral() -> None:
    """delta(eps) = the larger of the two integrals of max(0, p - e^eps p') over what is let out."""
    z, q = 0.8, 0.2
    eps, accountant = poisson_epsilon({(z, q): 1}, DELTA, "pld")
    assert accountant == "pld"

    def without(x: float) -> float:
        return float(stats.norm.pdf(x, 0, z))

    def with_it(x: float) -> float:
        return (1 - q) * without(x) + q * float(stats.norm.pdf(x, 1, z))

    def delta(upper: bool, eps: float) -> float:
        p, other = (with_it, without) if upper else (without, with_it)
        return float(integrate.quad(lambda x: max(0.0, p(x) - math.exp(eps) * other(x)), -12, 13, limit=500, points=[2, 3, 4, 5], epsabs=1e-13)[0])

    def worst(eps: float) -> float:
        return max(delta(True, eps), delta(False, eps))

    exact = optimize.brentq(lambda e: math.log(max(worst(e), 1e-300)) - math.log(DELTA), 0.5, 10)
    assert exact <= eps <= exact + 1e-3  # never below the truth, and at most some steps of its tables above


def test_a_fixed_cohort_has_the_bound_without_replacement() -> None:
    """100 of 1,000, multiplier 2 relative to what replacing moves (which is twice the clip), 100 rounds: 5.379."""
    view = planned(Scheme(sampling="fixed", rate=0.1), 4.0, 100, Budget(delta=DELTA)).view("amplified")
    assert view.epsilon == pytest.approx(5.379, abs=1e-3)
    assert view.accountant == "rdp" and "replaced by another" in view.relation


@pytest.mark.parametrize(("z", "q", "rounds"), [(1.1, 256 / 60000, 14040), (245.0, 0.1, 100), (0.9, 0.05, 300)])
def test_steps_of_the_privacy_loss_add_next_to_nothing(z: float, q: float, rounds: int) -> None:
    """Beside dp-accounting's own steps, also in many rounds and with so much noise that one release costs less than such a step."""
    own = PLDAccountant()
    own.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), rounds)
    assert poisson_epsilon({(z, q): rounds}, DELTA, "pld")[0] == pytest.approx(own.get_epsilon(DELTA), abs=1e-3)


def test_beyond_the_tables_of_privacy_losses_the_renyi_bound_is_told() -> None:
    assert poisson_epsilon({(2.0, 0.1): 100}, 1e-30, "pld") == poisson_epsilon({(2.0, 0.1): 100}, 1e-30, "rdp")
