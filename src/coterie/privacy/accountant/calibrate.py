"""From a budget to a noise multiplier, or to a number of rounds, by the accountant that later counts the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from coterie.privacy.accountant.budget import Budget
from coterie.privacy.accountant.sampled import MISSING, available
from coterie.privacy.accountant.spending import Spending
from coterie.privacy.accountant.views import View
from coterie.privacy.release import Release, Sampling, Split

_CLOSE = 1e-4  # relative; the noise is rounded up by so much, never down
_MOST_NOISE = 1e6
_MOST_ROUNDS = 2**40


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Equal rounds that are planned: everything but the noise and how many.

    `participations`: rounds in which the most frequent client takes part; every round unless one knows better. The local
    and the central view charge by it; the amplified one charges every round. `clients`: all there are, where one knows.
    """

    sampling: Sampling = "poisson"
    rate: float = 1.0
    split: Split = "full"
    min_cohort: int = 1
    secure: bool = False
    clip_noise: float | None = None
    participations: int | None = None
    clients: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0:
            raise ValueError(f"rate must be above 0 and at most 1, found {self.rate}. Use cohort / clients, for example 0.1.")
        if self.sampling == "everyone" and self.rate < 1.0:
            raise ValueError(f"Where everyone takes part the rate is 1, found {self.rate}. Use rate 1, or Poisson or fixed sampling.")
        if self.min_cohort < 1:
            raise ValueError(f"min_cohort must be at least 1, found {self.min_cohort}. Use 1 where nothing is guaranteed.")
        if self.clients is not None and self.min_cohort > self.clients:
            raise ValueError(f"min_cohort is {self.min_cohort}, but there are {self.clients} clients. Use {self.clients} or less.")
        if self.participations is not None and self.participations < 0:
            raise ValueError(f"participations must be at least 0, found {self.participations}. Leave it out for every round.")


def planned(scheme: Scheme, noise: float, rounds: int, budget: Budget = Budget()) -> Spending:
    """What so many rounds with this noise will have spent."""
    check_rounds(rounds)
    if not 0.0 <= noise < math.inf:
        raise ValueError(f"noise must be a finite number of at least 0, found {noise}. Use for example 1.")
    sampling: Sampling = "everyone" if scheme.rate == 1.0 else scheme.sampling
    release = Release(
        round=0, noise=noise, split=scheme.split, min_cohort=scheme.min_cohort, sampling=sampling, rate=scheme.rate,
        participants=(0,), secure=scheme.secure, clip_noise=scheme.clip_noise,
    )  # fmt: skip
    taking_part = rounds if scheme.participations is None else min(scheme.participations, rounds)
    spending = Spending(budget, num_clients=scheme.clients)
    if taking_part:
        spending.add(release, taking_part)
    if rounds > taking_part:
        spending.add(replace(release, participants=()), rounds - taking_part)
    if scheme.clients is not None:
        spending.expect_size(release, max(scheme.min_cohort, round(scheme.rate * scheme.clients)), rounds)
    return spending


def noise_for(budget: Budget, scheme: Scheme, rounds: int) -> float:
    """The smallest noise multiplier with which so many rounds stay within the budget, to five figures, from above.

    Where an adaptive clip adds a part of its own, that part stays as it is.
    """
    target = _target(budget, scheme)
    check_rounds(rounds)
    if epsilon_of(_with_noise(budget, scheme, _MOST_NOISE, rounds)) > target:
        raise ValueError(
            f"No amount of noise brings the {budget.view} view to epsilon {target:g} at delta {budget.delta:g} in {rounds:,} rounds, "
            "because of the noise on the adaptive clip alone. Use more clip noise, a larger epsilon or fewer rounds."
        )
    # Rényi numbers are cheap and at most some ten percent off: they say where to look with the accountant that counts
    quick = replace(budget, accountant="rdp" if scheme.rate < 1.0 else budget.accountant)
    start = _crossing(lambda z: epsilon_of(_with_noise(quick, scheme, z, rounds)), target, 1.0)
    noise = _crossing(lambda z: epsilon_of(_with_noise(budget, scheme, z, rounds)), target, start)
    unit = 10.0 ** (math.floor(math.log10(noise)) - 4)
    return float(f"{math.ceil(noise / unit) * unit:.5g}")  # as one prints it, so that the printed number keeps the promise


def rounds_for(budget: Budget, scheme: Scheme, noise: float) -> int:
    """How many rounds with this noise stay within the budget; 0 if not even one does."""
    target = _target(budget, scheme)

    def fits(rounds: int) -> bool:
        return epsilon_of(planned(scheme, noise, rounds, budget).view(budget.view)) <= target

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
        if high > _MOST_ROUNDS:
            raise ValueError(f"With noise {noise:g} the budget is never used up. Use less noise, or a smaller epsilon.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def epsilon_of(view: View) -> float:
    return math.inf if view.epsilon is None else view.epsilon


def check_rounds(rounds: int) -> None:
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, found {rounds}. Use 1 or more.")


def _with_noise(budget: Budget, scheme: Scheme, noise: float, rounds: int) -> View:
    return planned(scheme, noise, rounds, budget).view(budget.view)


def _target(budget: Budget, scheme: Scheme) -> float:
    if budget.epsilon is None:
        raise ValueError("A budget without an epsilon needs no noise: found none. Give a target epsilon, for example 8.")
    if budget.view == "amplified" and scheme.rate < 1.0 and not available():
        raise ValueError(f"The amplified view can't be computed. {MISSING}")
    tried = _with_noise(budget, scheme, 1.0, 1)
    if tried.reason is not None:
        raise ValueError(f"The {budget.view} view has no number: {tried.reason}. Change --accountant, or --sampling.")
    return budget.epsilon


def _crossing(epsilon: Callable[[float], float], target: float, start: float) -> float:
    """The noise at which a falling epsilon reaches the target, from above: a bracket around `start`, then Brent's method."""
    from scipy.optimize import brentq  # here, because a worker that imports this has no use for it

    found: dict[float, float] = {}

    def excess(log_noise: float) -> float:
        if log_noise not in found:
            found[log_noise] = math.log(max(epsilon(math.exp(log_noise)), 1e-12) / target)
        return found[log_noise] if math.isfinite(found[log_noise]) else 1e3

    low = high = math.log(start)
    step = 0.1
    while excess(high) > 0.0:
        low, high, step = high, high + step, 2.0 * step
    step = 0.1
    while excess(low) <= 0.0:
        high, low, step = low, low - step, 2.0 * step
    root = brentq(excess, low, high, xtol=_CLOSE / 4.0, rtol=1e-12)
    while excess(root) > 0.0:
        root = min(root + _CLOSE / 2.0, high)
    return math.exp(root)
