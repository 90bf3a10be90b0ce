"""Differential privacy from the command line: the keys that recipes share, and the guards and cohorts that they make."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from coterie.data.examples import Population
from coterie.engine.settings import Settings
from coterie.method import Cohort, Everyone, Fixed, Poisson
from coterie.options import OptionGroup
from coterie.privacy.accountant import Budget, Scheme, ViewName, noise_for
from coterie.privacy.accountant.budget import check_delta
from coterie.privacy.clipping import ClipGroups, ClipMode
from coterie.privacy.guards import Guards
from coterie.privacy.noise import Mechanism
from coterie.privacy.release import Sampling, Split
from coterie.privacy.secure_sum.settings import SMALLEST_COHORT, Bits
from coterie.recipes.secure import secured

_OF_NOISE = ("delta", "view", "split", "mechanism", "audit_seed")


@dataclass(frozen=True, kw_only=True)
class Privacy(OptionGroup):
    """How clients are protected. Without a clip nothing is; with a clip alone the run claims no epsilon.

    --clip 0.5            L2 bound on one client's update; the first one if it is adaptive (default: no guard)
    --clip-mode adaptive  one bound, one for each layer (groups), or one that follows the median of all updates
    --clip-groups slots   what has a bound of its own in clip mode groups: a layer, or a part of the message
    --noise 1.1           noise on the sum, in clips, or leave it to --epsilon (default: none)
    --epsilon 8           the noise follows from it, and the run stops before it spends more (default: none)
    --delta 1e-5          the chance that epsilon does not hold (default: clients^-1.1)
    --view amplified      whom epsilon is about: who sees models only, all sums (central), or all messages (local)
    --sampling poisson    each client alone by chance, or a cohort of fixed size (default: poisson under noise)
    --split full          every client adds its share of the noise, or all of it
    --mechanism discrete  continuous noise, or on a grid and drawn exactly
    --audit-seed 1        noise that can be repeated, for audits: it protects nobody (default: fresh)
    --secure-sum          the server learns the sum of all updates only (needs coterie[privacy])
    --secure-threshold    clients that must stay to the end of a secure sum (default: over 2/3)
    --secure-bits         of the whole numbers that are summed, 32 or 64
    --secure-neighbours   with how many others a client masks (default: all)
    --secure-range        largest coordinate of a client's change (default: 8, or clip and noise)
    --secure-dropout      chance that a client falls silent in a round, for experiments
    """

    clip: float | None = None
    clip_mode: ClipMode = "flat"
    clip_groups: ClipGroups = "layers"
    noise: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    view: ViewName = "amplified"
    sampling: Literal["poisson", "fixed"] | None = None
    split: Split = "share"
    mechanism: Mechanism = "gaussian"
    audit_seed: int | None = None
    secure_sum: bool = False
    secure_threshold: int | None = None
    secure_bits: Bits = 32
    secure_neighbours: int | None = None
    secure_range: float | None = None
    secure_dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.noise and self.epsilon is not None:
            raise ValueError(f"Give --noise or --epsilon, found both ({self.noise:g} and {self.epsilon:g}): the noise follows from epsilon.")
        if self.clip is None and (self.noise or self.epsilon is not None):
            what = "--noise" if self.noise else "--epsilon"
            raise ValueError(f"{what} needs a bound on what one client can change, found no clip. Add for example --clip 0.5.")

        if self.delta is not None:
            check_delta(self.delta)
        if self.clip is None:
            self._refuse_idle(("clip_mode", "clip_groups"), "a clip", "--clip 0.5")

    def _refuse_idle(self, names: tuple[str, ...], missing: str, example: str) -> None:
        """A key that would change nothing is a mistake: somebody believes to be protected by it."""
        defaults = {field.name: field.default for field in fields(self)}
        for name in names:
            if getattr(self, name) != defaults[name]:
                raise ValueError(f"--{name.replace('_', '-')} does nothing without {missing}. Add for example {example}, or leave it out.")

    @property
    def noised(self) -> bool:
        return bool(self.noise) or self.epsilon is not None

    def without_noise(self) -> Privacy:
        """The same clip and secure sum, and nothing that only noise has."""
        defaults: dict[str, Any] = {field.name: field.default for field in fields(self) if field.name in _OF_NOISE}
        return replace(self, noise=None, epsilon=None, **defaults)

    def cohort(self, size: int | None, clients: int) -> Cohort:
        """Who takes part: everybody, or `size` clients (on average, if Poisson: q = size / clients, PT-D6)."""
        if size is None:
            return Everyone()
        if size > clients:
            raise ValueError(f"The cohort ({size}) is larger than the population ({clients}). Use --cohort {clients} or less.")
        if size < 1:
            raise ValueError(f"A cohort needs at least 1 client, found {size}. Use a number between 1 and the population.")
        poisson = self.sampling == "poisson" or (self.sampling is None and self.noised)
        return Poisson(size / clients) if poisson else Fixed(size)

    def guards(self, cohort: Cohort, population: Population, rounds: int, settings: Settings) -> Guards:
        """The guards of a run of so many rounds; with --epsilon the noise that keeps it, and the budget that stops the run."""
        if not self.noised:
            self._refuse_idle(_OF_NOISE, "noise", "--epsilon 8")
        return secured(
            self._noisy(cohort, len(population), rounds, settings), population, secure_sum=self.secure_sum, threshold=self.secure_threshold,
            bits=self.secure_bits, neighbours=self.secure_neighbours, range=self.secure_range, dropout=self.secure_dropout,
        )  # fmt: skip

    def _noisy(self, cohort: Cohort, clients: int, rounds: int, settings: Settings) -> Guards:
        if self.clip is None:
            return Guards()
        least = settings.min_cohort if settings.min_cohort > 1 else smallest_cohort(cohort, clients)
        least = max(least, SMALLEST_COHORT) if self.secure_sum else least
        guards = Guards(
            clip=self.clip, clip_mode=self.clip_mode, clip_groups=self.clip_groups, noise=self.noise or 0.0, split=self.split, mechanism=self.mechanism,
            audit_seed=self.audit_seed, min_cohort=least, n_max=1.0, kappa=0.0,
        )  # fmt: skip
        delta = clients**-1.1 if self.delta is None else self.delta
        if self.epsilon is None:
            return replace(guards, budget=Budget(delta=delta, view=self.view)) if guards.private else guards
        budget = Budget(epsilon=self.epsilon, delta=delta, view=self.view)
        sampling, rate = sampling_of(cohort, clients)
        scheme = Scheme(sampling=sampling, rate=rate, split=self.split, min_cohort=least, secure=self.secure_sum)
        return replace(guards, noise=noise_for(budget, scheme, rounds), budget=budget)


def sampling_of(cohort: Cohort, clients: int) -> tuple[Sampling, float]:
    """How a cohort is drawn, and with what rate, in the accountant's words."""
    if isinstance(cohort, Poisson):
        return "poisson", cohort.rate
    return ("fixed", cohort.size / clients) if isinstance(cohort, Fixed) and cohort.size < clients else ("everyone", 1.0)


def smallest_cohort(cohort: Cohort, clients: int) -> int:
    """m_min where nobody says it: all that are asked, or two deviations below a Poisson cohort's mean (2 % of rounds are smaller)."""
    if isinstance(cohort, Poisson):
        mean = cohort.rate * clients
        return max(1, math.floor(mean - 2.0 * math.sqrt(mean * (1.0 - cohort.rate))))
    return cohort.size if isinstance(cohort, Fixed) else clients


def told(guards: Guards) -> str:
    """The noise and what it is for, in a line for the terminal."""
    if not guards.private:
        return "" if guards.clip is None else f"Updates are clipped to {guards.clip:g}, without noise: no epsilon is claimed."
    budget = guards.budget
    aim = "" if budget is None else f" at delta {budget.delta:.2g} ({budget.view} view)"
    target = f" for epsilon {budget.epsilon:g}{aim}" if budget is not None and budget.epsilon is not None else ""
    each = f"a share each of at least {guards.min_cohort}" if guards.split == "share" else "all of it on every client"
    seeded = " The noise has an audit seed: it protects nobody." if guards.audit_seed is not None else ""
    return f"Noise multiplier {guards.noise:.4g}{target}, clip {guards.clip:g} ({guards.clip_mode}), {each}.{seeded}"
