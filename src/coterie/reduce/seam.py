"""The seam between a round and what makes one Message of many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from coterie.message import Message, Slot


class Folding(Protocol):
    """One round's reduction: Messages go in one by one, in any order; `client` names the sender where ties are broken by it."""

    @property
    def counted(self) -> int: ...  # Messages so far that count
    @property
    def kept_bytes(self) -> int: ...  # of Messages that are kept whole until the end of the round
    def add(self, message: Message, client: int = 0) -> None: ...
    def result(self) -> Message | None: ...  # None when nobody came, or everybody counts for nothing


@dataclass(frozen=True)
class Reduce(ABC):
    """How the averaged and summed groups of a round become one; "each" slots are no business of it."""

    @property
    def needs_single_updates(self) -> bool:
        """Whether it looks at single updates, which a secure sum hides and noise drowns."""
        return True

    @property
    def fewest(self) -> int:
        """How many clients must return for it to mean anything."""
        return 1

    @abstractmethod
    def fold(self, slots: Mapping[str, Slot], *, premultiplied: bool, expected: float, by_expected: bool = False) -> Folding:
        """A fresh fold for one round. `premultiplied`: groups hold w x already; `expected`: clients that the round counts on,
        which is what means are divided by where no weights travel (`by_expected`)."""
