"""The ledger: every byte that crosses, by round, direction and slot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from coterie.message import Message

ONCE = -1  # the round in which content that is sent only once is booked
Way = Literal["up", "down"]
WAYS: tuple[Way, Way] = ("up", "down")


class Entry(TypedDict):
    round: int
    phase: str
    exchange: str | None
    direction: Way
    slot: str
    bytes: int
    clients: int
    once: bool


@dataclass
class Ledger:
    """One round's traffic, gathered Message by Message."""

    round: int
    phase: str
    _bytes: dict[tuple[int, str | None, Way, str], list[int]] = field(
        default_factory=lambda: defaultdict(lambda: [0, 0])
    )

    def count(self, direction: Way, message: Message, exchange: str | None = None) -> None:
        for slot, size in message.bytes_by_slot().items():
            self._book(self.round, exchange, direction, slot, size)

    def count_once(self, name: str, size: int) -> None:
        """Public content that this client receives for the first and only time."""
        self._book(ONCE, None, "down", name, size)

    def count_bytes(self, direction: Way, slot: str, size: int, clients: int = 1) -> None:
        """What is no Message: masked vectors, and the keys and shares of a secure sum."""
        self._book(self.round, None, direction, slot, size, clients)

    def _book(self, round: int, exchange: str | None, direction: Way, slot: str, size: int, clients: int = 1) -> None:
        cell = self._bytes[(round, exchange, direction, slot)]
        cell[0] += size
        cell[1] += clients

    def total(self, direction: Way) -> int:
        return sum(size for (_, _, way, _), (size, _) in self._bytes.items() if way == direction)

    def entries(self) -> Iterable[Entry]:
        """Sorted, because workers book in the order in which they happen to be free."""
        order = sorted(self._bytes.items(), key=lambda cell: (cell[0][0], cell[0][1] or "", *cell[0][2:]))
        for (round, exchange, direction, slot), (size, clients) in order:
            yield {
                "round": round, "phase": self.phase, "exchange": exchange, "direction": direction,
                "slot": slot, "bytes": size, "clients": clients, "once": round == ONCE,
            }  # fmt: skip
