"""Where a run ends: with its plan, or before the first round that its budget does not allow."""

from __future__ import annotations

from coterie.engine.backend import World
from coterie.engine.rows import hub_of
from coterie.engine.spending import Account
from coterie.method import Named, Phase, Round
from coterie.privacy.release import Release
from coterie.randomness import Key
from coterie.states import ClientId


class Horizon:
    """Looks at rounds that have not run: their phase, their cohort, and what they would let out."""

    def __init__(self, world: World, account: Account) -> None:
        self.world = world
        self.account = account
        self.total = sum(phase.rounds for phase in world.plan)
        self._everybody = tuple(range(len(world.population)))
        self._stops: dict[tuple[int, int], bool] = {}  # (round, attempts so far) -> whether the budget ends before it

    def phase_at(self, index: int) -> tuple[Phase, int]:
        """The phase of a round, and that phase's first round."""
        first = 0
        for phase in self.world.plan:
            if index < first + phase.rounds:
                return phase, first
            first += phase.rounds
        raise AssertionError(f"round {index} lies behind the plan's {self.total}")

    def round_at(self, index: int, cohort: tuple[ClientId, ...]) -> Round:
        phase, first = self.phase_at(index)
        return Round(index, self.total, phase.name, index - first, phase.rounds, cohort, len(self.world.population))

    def ends_with(self, index: int, done: int) -> bool:
        """Whether this round is the last one, of the plan or of the budget; `done` rounds are over."""
        return index + 1 == self.total or self.stops_before(index + 1, done)

    def stops_before(self, index: int, done: int) -> bool:
        """Whether the budget does not allow this round, after what still runs before it."""
        if self.account.budget is None:
            return False
        key = index, self.account.attempts
        if key not in self._stops:
            begun = max(done, self.account.charged)  # a round is charged a little before it is over
            ahead = [release for at in range(begun, index + 1) if (release := self._planned(at)) is not None]
            self._stops[key] = not self.account.allows(ahead)
        return self._stops[key]

    def _planned(self, index: int) -> Release | None:
        """What a round will let out at most: who it will ask is not drawn yet, so everybody who might be."""
        phase, _ = self.phase_at(index)
        clients = phase.cohort.draw(len(self.world.population), Key(0)) if isinstance(phase.cohort, Named) else self._everybody
        slots = phase.method.slots(hub_of(self.world, self.round_at(index, clients)))
        return self.account.planned(index + 1, phase.cohort, clients, slots)
