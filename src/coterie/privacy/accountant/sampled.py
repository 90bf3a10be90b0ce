"""Epsilon of sampled Gaussian releases, by dp-accounting: amplification for those who don't see who took part.

Poisson sampling (every client alone with probability q), add or remove one client: privacy loss distributions ("pld",
the tightest) or Rényi differential privacy ("rdp", and "rdp_integer" with the whole orders 2 to 256 only, in which papers
often print their numbers). All three are upper bounds; beyond an epsilon of 100, where
the tables of "pld" would fill the memory, the number is that of "rdp", and says so.

A cohort of fixed size, drawn without replacement, has a bound for replacing one client's data only (Wang, Balle and
Kasiviswanathan, "Subsampled Rényi Differential Privacy and Analytical Moments Accountant", AISTATS 2019, Theorem 27
of the arXiv version), and is always computed by "rdp".

A group of equal releases is (multiplier z of the noise in the sum for adding or removing a client, rate, how many).
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache, reduce
from typing import Any, Literal

Accountant = Literal["pld", "rdp", "rdp_integer"]
Group = tuple[float, float]  # multiplier z, rate q
Counts = Mapping[Group, int]

MISSING = "It needs the package dp-accounting, which is not installed. Install it with: pip install 'coterie[privacy]'"
MOST_FOR_PLD = 100.0  # epsilon beyond which a privacy loss distribution is not worth its memory
INTEGER_ORDERS = tuple(float(order) for order in range(2, 257))
_WIDEST, _FINEST = 5e-4, 1e-5  # steps of the privacy loss
_KEPT = 8  # composed distributions in memory


def available() -> bool:
    """Whether dp-accounting is installed."""
    return importlib.util.find_spec("dp_accounting") is not None


def poisson_epsilon(counts: Counts, delta: float, accountant: Accountant) -> tuple[float, Accountant]:
    """Epsilon for adding or removing one client, and the accountant that it is from."""
    renyi = _renyi_epsilon(counts, delta, whole_orders=accountant == "rdp_integer")
    if accountant != "pld" or not 0.0 < renyi <= MOST_FOR_PLD:
        return renyi, "rdp_integer" if accountant == "rdp_integer" else "rdp"
    with _quiet():
        epsilon = float(_LOSSES.composed(counts, renyi).get_epsilon_for_delta(delta))
    return (epsilon, "pld") if math.isfinite(epsilon) else (renyi, "rdp")  # its tables end where delta is below 1e-21


def replaced_epsilon(counts: Counts, delta: float) -> float:
    """Epsilon for replacing one client's data, with cohorts of fixed size (rate 1: everyone)."""
    # replacing moves the sum twice as far as removing does
    return _renyi_epsilon({(z / 2.0, q): n for (z, q), n in counts.items()}, delta, replace=True)


def _renyi_epsilon(counts: Counts, delta: float, *, replace: bool = False, whole_orders: bool = False) -> float:
    from dp_accounting.rdp import compute_epsilon

    orders: tuple[float, ...] = ()
    total: list[float] = []
    for (z, q), count in counts.items():
        orders, divergences = _renyi(z, q, replace, whole_orders)
        total = [have + count * more for have, more in zip(total or [0.0] * len(orders), divergences, strict=True)]
    if not total:
        return 0.0
    with _quiet():
        return float(compute_epsilon(orders, total, delta)[0])


@lru_cache(maxsize=256)
def _renyi(z: float, q: float, replace: bool, whole_orders: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The orders, and the Rényi divergence of one release at each."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    event: Any = dp_accounting.GaussianDpEvent(z)
    if q < 1.0:  # of the two sizes only their ratio counts, and a rate need not be a fraction of whole numbers
        event = dp_accounting.SampledWithoutReplacementDpEvent(1.0, q, event) if replace else dp_accounting.PoissonSampledDpEvent(q, event)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE if replace else dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = RdpAccountant(orders=list(INTEGER_ORDERS) if whole_orders else None, neighboring_relation=relation)
    with _quiet():
        accountant.compose(event)
    return tuple(map(float, accountant.orders)), tuple(map(float, accountant.rdp))


class _Losses:
    """Composed privacy loss distributions; the latest are kept, because the next round adds one release to one of them."""

    def __init__(self) -> None:
        self._known: dict[tuple[float, frozenset[tuple[Group, int]]], Any] = {}

    def composed(self, counts: Counts, about: float) -> Any:
        step = step_of(counts, about)
        key = step, frozenset(counts.items())
        if key not in self._known:
            self._known[key] = self._one_more(counts, step) or self._from_scratch(counts, step)
            while len(self._known) > _KEPT:
                del self._known[next(iter(self._known))]
        return self._known[key]

    def _one_more(self, counts: Counts, step: float) -> Any:
        """A known composition of one release less, and that release."""
        for group, count in counts.items():
            rest = {**counts, group: count - 1}
            before = self._known.get((step, frozenset((group, n) for group, n in rest.items() if n)))
            if before is not None:
                return before.compose(_loss(*group, step))
        return None

    def _from_scratch(self, counts: Counts, step: float) -> Any:
        parts = [_loss(*group, step).self_compose(count) for group, count in counts.items()]
        return reduce(lambda total, part: total.compose(part), parts)


_LOSSES = _Losses()


def step_of(counts: Counts, about: float) -> float:
    """Width of a step of the privacy loss, for an epsilon of about so much.

    Rounding to steps only ever adds to epsilon: by about half a squared step for each release, and by widening the loss where a step is
    not small beside the loss of one release, q / z, nor beside all of it. Kept below 0.001; finer steps take longer. Halved and
    halved again rather than exact, so that rounds that follow each other share it.
    """
    wanted = min(_WIDEST, math.sqrt(1e-4 / sum(counts.values())), max(0.05 * min(q / z for z, q in counts), 5e-4 * about))
    halvings = math.ceil(math.log2(_WIDEST / max(wanted, _FINEST)) - 1e-9)
    return float(_WIDEST / 2**halvings)


@lru_cache(maxsize=64)
def _loss(z: float, q: float, step: float) -> Any:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    return from_gaussian_mechanism(z, sampling_prob=q, value_discretization_interval=step, use_connect_dots=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without dp-accounting's remarks about orders that it leaves out: leaving one out never makes the bound too small."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
