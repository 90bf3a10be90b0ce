"""Who takes part, for how many rounds, with which method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coterie.method.hooks import Method
from coterie.randomness import Key
from coterie.states import ClientId


@dataclass(frozen=True)
class Everyone:
    """All clients, every round."""

    def draw(self, num_clients: int, key: Key) -> tuple[ClientId, ...]:
        return tuple(range(num_clients))


@dataclass(frozen=True)
class Fixed:
    """`size` different clients, drawn anew each round."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"A cohort needs at least 1 client, found {self.size}. Use a number between 1 and the population.")

    def draw(self, num_clients: int, key: Key) -> tuple[ClientId, ...]:
        if self.size > num_clients:
            raise ValueError(f"The cohort ({self.size}) is larger than the population ({num_clients}). Use at most {num_clients}.")
        return tuple(sorted(int(c) for c in key.numpy().choice(num_clients, self.size, replace=False)))


@dataclass(frozen=True)
class Poisson:
    """Each client with probability `rate`, independently: what an accountant amplifies by. May be empty."""

    rate: float

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0:
            raise ValueError(f"The sampling rate must lie in (0, 1], found {self.rate}. Use for example 0.1.")

    def draw(self, num_clients: int, key: Key) -> tuple[ClientId, ...]:
        return tuple(int(c) for c in (key.numpy().random(num_clients) < self.rate).nonzero()[0])


@dataclass(frozen=True)
class Named:
    """These clients, every round."""

    clients: Sequence[ClientId]

    def draw(self, num_clients: int, key: Key) -> tuple[ClientId, ...]:
        missing = [c for c in self.clients if not 0 <= c < num_clients]
        if missing:
            raise ValueError(f"Clients {missing} do not exist; there are {num_clients}. Use ids from 0 to {num_clients - 1}.")
        if len(set(self.clients)) < len(self.clients):
            twice = sorted(c for c, times in Counter(self.clients).items() if times > 1)
            raise ValueError(f"Clients {twice} are named more than once. Name every client once.")
        return tuple(sorted(self.clients))


@dataclass(frozen=True)
class Nobody:
    """A phase of the server alone."""

    def draw(self, num_clients: int, key: Key) -> tuple[ClientId, ...]:
        return ()


@dataclass(frozen=True)
class AllBut:
    """Another cohort, drawn among everybody but these clients. An accountant counts it as if all took part."""

    clients: Sequence[ClientId]
    cohort: Cohort = Everyone()

    def draw(self, num_clients: int, key: Key) -> tuple[ClientId, ...]:
        absent = set(Named(self.clients).draw(num_clients, key))
        others = [c for c in range(num_clients) if c not in absent]
        if not others:
            raise ValueError(f"All {num_clients} clients are left out of a cohort. Leave out fewer.")
        return tuple(others[place] for place in self.cohort.draw(len(others), key))


Cohort: TypeAlias = Everyone | Fixed | Poisson | Named | Nobody | AllBut


@dataclass(frozen=True)
class Phase:
    """Some rounds of one method. Groups and rows of the same name carry over from the phase before."""

    name: str
    rounds: int
    method: Method
    cohort: Cohort = Everyone()

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, found {self.rounds} in phase '{self.name}'. Use 1 or more.")


Plan: TypeAlias = tuple[Phase, ...]
