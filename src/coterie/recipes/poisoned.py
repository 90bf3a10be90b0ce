"""Attackers and robust reductions from the command line: the keys that recipes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.attacks.poison import Attack
from coterie.attacks.poison.named import named_attack
from coterie.method import Cohort, Poisson
from coterie.options import OptionGroup
from coterie.randomness import Key
from coterie.reduce.named import named_reduce


@dataclass(frozen=True, kw_only=True)
class Poisoning(OptionGroup):
    """Who poisons a run, and how updates are reduced, for methods that average updates.

    --reduce median      how one update is made of many (coterie list)
    --attack signflip10  by some clients; means are over the honest ones, and nothing is private (default: nobody attacks)
    --attackers 0.2      share of clients that attack, or that a reduction is made for
    --attack-from 5      the first round in which they attack
    """

    reduce: str = "mean"
    attack: str | None = None
    attackers: float = 0.2
    attack_from: int = 1

    def options(self, cohort: Cohort, clients: int) -> dict[str, Any]:
        """What `Session.run` must know: reduction and attack, for cohorts of this kind."""
        found: Attack | None = None
        if self.attack is not None:
            found = named_attack(self.attack, share=self.attackers, from_round=self.attack_from)
        size = max(1, int(cohort.rate * clients)) if isinstance(cohort, Poisson) else len(cohort.draw(clients, Key(0)))
        return {"reduce": named_reduce(self.reduce, size, max(1, int(self.attackers * size + 0.5))), "attack": found}
