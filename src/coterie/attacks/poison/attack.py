"""Attackers as parts of a run: who they are, since when, and the places where they may act.

The threat model is A5 of the specification: malicious clients that know the protocol and work together, but not the server. They act in two
places. `taint` changes what they train on, before any job is made. `tamper` changes what they send, once per
round, all attackers' Messages together: it gets their honest updates (changes against what they received) and has the last word, because
an attacker runs none of the client's guards. What the server does comes after it: border checks and the reduction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.message import Message
from coterie.randomness import Key
from coterie.tensors import Tensors


@dataclass(frozen=True, kw_only=True)
class Attack:
    """`share` of all clients attack, drawn by the run's seed (or by `seed`), or exactly `clients`; from `from_round` (the first is 1)."""

    share: float = 0.2
    clients: tuple[int, ...] = ()
    from_round: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise ValueError(f"The share of attackers must lie between 0 and 1, found {self.share}. Use for example 0.2.")
        if len(set(self.clients)) < len(self.clients):
            raise ValueError(f"An attacker is named more than once: {list(self.clients)}. Name every client once.")
        if self.from_round < 1:
            raise ValueError(f"from_round must be at least 1, found {self.from_round}. Use 1 to attack from the beginning.")

    def key(self, run_seed: int) -> Key:
        """Where all random numbers of the attack come from."""
        return Key(run_seed if self.seed is None else self.seed, ("attack",))

    def attackers(self, num_clients: int, run_seed: int) -> tuple[int, ...]:
        """Who attacks: the same clients in every round, the same for every attack of this share and seed."""
        strangers = [client for client in self.clients if not 0 <= client < num_clients]
        if strangers:
            raise ValueError(f"Attackers {strangers} do not exist; there are {num_clients} clients. Use ids from 0 to {num_clients - 1}.")
        size = len(self.clients) or max(1, int(self.share * num_clients + 0.5))
        if size >= num_clients:
            raise ValueError(f"All {num_clients} clients would attack, and nobody is left to be harmed. Use fewer attackers.")
        if self.clients:
            return tuple(sorted(self.clients))
        chosen = self.key(run_seed).fold("who").numpy().choice(num_clients, size, replace=False)
        return tuple(sorted(int(client) for client in chosen))

    def active(self, index: int) -> bool:
        """Whether the attack has begun in this round (counted from 0)."""
        return index + 1 >= self.from_round

    @property
    def taints(self) -> bool:
        """Whether attackers train on other data than they have."""
        return False

    @property
    def tampers(self) -> bool:
        """Whether attackers send something else than what they trained."""
        return False

    @property
    def omniscient(self) -> bool:
        """Whether attackers see the honest clients' Messages before they send theirs."""
        return False

    def taint(self, columns: Tensors, num_classes: int | None, key: Key) -> Tensors:
        """An attacker's training rows (not decoded yet), changed."""
        return columns

    def trigger(self, columns: Tensors) -> Tensors | None:
        """Test rows that show whether a backdoor works, labelled with what the attacker wants; None where there is none."""
        return None

    def tamper(
        self, messages: Mapping[int, Message], downs: Mapping[int, Message], key: Key, honest: Mapping[int, Message]
    ) -> Mapping[int, Message]:
        """What the attackers send instead of these updates. `honest` holds the others' for an omniscient attack only."""
        return messages

    def facts(self, sizes: Mapping[int, int]) -> dict[str, float]:
        """What can be said of it beforehand, by name; `sizes` are the attackers' numbers of training examples."""
        return {}
