"""What a run has spent: Releases added up, and the three views of them."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, get_args

from coterie.privacy.accountant.budget import Budget
from coterie.privacy.accountant.sampled import MISSING, Group, available, poisson_epsilon, replaced_epsilon
from coterie.privacy.accountant.views import REMOVED, REPLACED, SEES, View, ViewName, load, one_message, whole_sum
from coterie.privacy.gaussian import gaussian_eps
from coterie.privacy.release import Release, Sampling

EXACT = "exact Gaussian"
SAMPLING_WORDS: dict[Sampling, str] = {
    "everyone": "everyone", "poisson": "Poisson: each client alone, with the same chance", "fixed": "a cohort of fixed size, without replacement",
}  # fmt: skip


class _Sizes(NamedTuple):
    """Cohorts of nearly the same size: the fewest that sent, the most that were drawn."""

    least: int
    most: int
    times: int


class Spending:
    """Adds Releases up. Every view costs milliseconds to a fraction of a second, whatever the number of rounds."""

    def __init__(self, budget: Budget = Budget(), releases: Iterable[Release] = (), num_clients: int | None = None) -> None:
        self.budget = budget
        self.num_clients = num_clients  # in all; None where nobody knows
        self.num_releases = 0
        self._local: dict[int, float] = {}  # client -> mu^2 for adding or removing its one Message
        self._central: dict[int, float] = {}  # client -> mu^2 for adding or removing it in the sums it took part in
        self._participations: Counter[int] = Counter()
        self._counts: dict[Sampling, Counter[Group]] = {}
        self._sizes: dict[tuple[float, int], _Sizes] = {}  # of Poisson cohorts, in steps of a tenth
        self._secure = True
        for release in releases:
            self.add(release)

    def add(self, release: Release, times: int = 1) -> None:
        """Charge one attempt of a round (or as many equal ones)."""
        self.num_releases += times
        self._secure = self._secure and release.secure
        message, total = one_message(release), whole_sum(release)
        for client in release.participants:
            self._participations[client] += times
            self._local[client] = self._local.get(client, 0.0) + times * load(message)
            self._central[client] = self._central.get(client, 0.0) + times * load(total)
        self._counts.setdefault(release.sampling, Counter())[total, release.rate] += times
        self._add_size(message, release, len(release.participants), times)

    def _add_size(self, message: float, release: Release, size: int, times: int) -> None:
        """Under Poisson sampling; a cohort that is too small for its round lets out nothing of anybody's data in a sum.

        Those who sent bring the noise, and a client's chance to be among them is that of those who were drawn.
        """
        if release.sampling == "poisson" and size >= release.min_cohort:
            drawn = max(size, release.drawn)
            key = message, round(math.log(size) / math.log(1.1))
            known = self._sizes.get(key, _Sizes(size, drawn, 0))
            self._sizes[key] = _Sizes(min(known.least, size), max(known.most, drawn), known.times + times)

    def expect_size(self, release: Release, size: int, times: int) -> None:
        """Of planned releases, which name no participants but one: the size that their cohorts will have on average."""
        self._sizes.clear()
        self._add_size(one_message(release), release, size, times)

    def plus(self, releases: Iterable[Release]) -> Spending:
        """What would be spent after these as well."""
        ahead = copy.copy(self)
        ahead._local, ahead._central, ahead._participations = dict(self._local), dict(self._central), Counter(self._participations)
        ahead._sizes = dict(self._sizes)
        ahead._counts = {sampling: Counter(counts) for sampling, counts in self._counts.items()}
        for release in releases:
            ahead.add(release)
        return ahead

    @property
    def most_participations(self) -> int:
        return max(self._participations.values(), default=0)

    def exceeds(self) -> bool:
        """Whether more is spent than the budget allows. What can't be bounded is more than any budget."""
        if self.budget.epsilon is None or not self.num_releases:
            return False
        epsilon = self.view(self.budget.view).epsilon
        return epsilon is None or epsilon > self.budget.epsilon

    def views(self, *, sizes: bool = False) -> dict[ViewName, View]:
        """All three, always together; with `sizes` also what holds where cohorts' sizes are known, which takes seconds."""
        found: dict[ViewName, View] = {name: self.view(name) for name in get_args(ViewName)}
        if sizes:
            found["amplified"] = replace(found["amplified"], sizes_known_epsilon=self.sizes_known_epsilon())
        return found

    def sizes_known_epsilon(self) -> float | None:
        """Epsilon of the amplified view, for replacing a client's data, for a reader who knows the size of every cohort.

        Given its size, a Poisson cohort is drawn without replacement. Sizes are taken together in steps of a tenth, as if each
        cohort had the largest rate and the least noise of its step.
        """
        if set(self._counts) - {"poisson", "everyone"} or "poisson" not in self._counts or self.num_clients is None or not available():
            return None
        groups: Counter[Group] = Counter(self._counts.get("everyone", {}))
        for (message, _), sizes in self._sizes.items():
            groups[message * math.sqrt(sizes.least), min(1.0, sizes.most / self.num_clients)] += sizes.times
        return _finite(replaced_epsilon(groups, self.budget.delta)) if all(z > 0.0 for z, _ in groups) else None

    def headline(self) -> ViewName:
        """The view of the budget where there is one; else the strongest that this run's own server could not break."""
        if self.budget.epsilon is not None:
            return self.budget.view
        return "central" if self._secure else "local"

    @property
    def _hidden_messages(self) -> str:
        if self._secure:
            return "fewer than the threshold work with the server, and min_cohort clients of every sum with nobody"
        return "the server can be trusted: it saw every message (no secure sum)"

    def view(self, name: ViewName) -> View:
        if name == "amplified":
            return self._amplified()
        loads = self._local if name == "local" else self._central
        removed = math.sqrt(max(loads.values(), default=0.0))
        replaced = _finite(gaussian_eps(2.0 * removed, self.budget.delta))
        epsilon = replaced if name == "local" else _finite(gaussian_eps(removed, self.budget.delta))
        most = self.most_participations
        return View(
            name=name, epsilon=epsilon, delta=self.budget.delta, relation=REPLACED if name == "local" else REMOVED,
            sampling=f"known, so nothing is amplified; the client that took part most did so {most:,} time{'' if most == 1 else 's'}",
            against=SEES[name], accountant=EXACT, replaced_epsilon=None if name == "local" else replaced,
            only_if=None if name == "local" else self._hidden_messages,
            reason="a release carried no noise" if epsilon is None else None,
        )  # fmt: skip

    def _amplified(self) -> View:
        used = [sampling for sampling, counts in self._counts.items() if counts]
        words = "; ".join(SAMPLING_WORDS[sampling] for sampling in used) or SAMPLING_WORDS["everyone"]
        epsilon, relation, accountant, reason = self._amplified_epsilon()
        replaced = self.view("central").replaced_epsilon if used == ["everyone"] else None
        hidden = "who and how many take part stays hidden" if used and used != ["everyone"] else ""
        return View(
            name="amplified", epsilon=epsilon, delta=self.budget.delta, relation=relation, sampling=words, against=SEES["amplified"],
            accountant=accountant, replaced_epsilon=replaced, only_if=" and ".join(filter(None, [hidden, self._hidden_messages])), reason=reason,
        )  # fmt: skip

    def _amplified_epsilon(self) -> tuple[float | None, str, str, str | None]:
        """Epsilon, relation, accountant, and the reason where there is none."""
        together: Counter[Group] = Counter()
        for counts in self._counts.values():
            together += counts
        if any(z == 0.0 for z, _ in together):
            return None, REMOVED, EXACT, "a release carried no noise"
        asked = self.budget.accountant
        if all(q == 1.0 for _, q in together) and asked in (None, "pld"):  # nothing is sampled: there is a closed form
            mu = math.sqrt(sum(count * load(z) for (z, _), count in together.items()))
            return _finite(gaussian_eps(mu, self.budget.delta)), REMOVED, EXACT, None
        if not available():
            return None, REMOVED, asked or "pld", MISSING
        if "fixed" not in self._counts:
            epsilon, accountant = poisson_epsilon(together, self.budget.delta, asked or "pld")
            return _finite(epsilon), REMOVED, accountant, None
        if "poisson" in self._counts:
            return None, REPLACED, "rdp", "Poisson cohorts and cohorts of fixed size are mixed, and no bound here covers both"
        if asked not in (None, "rdp"):
            return None, REPLACED, asked, f"{asked} needs Poisson cohorts; for cohorts of fixed size there is the accountant rdp"
        return _finite(replaced_epsilon(together, self.budget.delta)), REPLACED, "rdp", None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
