"""One secure sum with all clients in this process: the real messages of all four phases, counted as they cross."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from coterie.privacy.secure_sum.client import Client
from coterie.privacy.secure_sum.fixed_point import Whole
from coterie.privacy.secure_sum.server import Server
from coterie.privacy.secure_sum.settings import SecureSum

Step: TypeAlias = Literal["keys", "shares", "vector", "unmask"]
STEPS: tuple[Step, ...] = ("keys", "shares", "vector", "unmask")
"""What a client sends in the four phases; one that drops out falls silent from one of them on."""


@dataclass
class Traffic:
    """Bytes and clients by step and direction."""

    cells: dict[tuple[Step, Literal["up", "down"]], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))

    def count(self, step: Step, way: Literal["up", "down"], data: bytes) -> None:
        cell = self.cells[step, way]
        cell[0] += len(data)
        cell[1] += 1

    def total(self, way: Literal["up", "down"], steps: tuple[Step, ...] = STEPS) -> int:
        return sum(size for (step, direction), (size, _) in self.cells.items() if direction == way and step in steps)


class InProcess:
    """Drives one round: `open`, then `add` for whoever has something to send, then `close` for the sum."""

    def __init__(
        self, settings: SecureSum, round: int, cohort: tuple[int, ...], length: int, silent_from: Mapping[int, Step] | None = None
    ) -> None:
        self.traffic = Traffic()
        self.server = Server(settings, round, cohort, length)
        self._silent_from = {client: STEPS.index(step) for client, step in (silent_from or {}).items()}
        self._clients = {client: Client(client, round, self.server.threshold) for client in cohort}

    def open(self) -> None:
        """Phases 1 and 2: keys and their shares, before anybody has a vector."""
        keys = {client: self._up("keys", side.advertise()) for client, side in self._there("keys")}
        lists = self._down("keys", self.server.list_keys(keys))
        shares = {
            client: self._up("shares", side.share_keys(lists[client])) for client, side in self._there("shares")
        }
        for client, data in self._down("shares", self.server.route_shares(shares)).items():
            self._clients[client].receive_shares(data)

    def sends(self, client: int) -> bool:
        """Whether this client lives to send its vector."""
        return self._silent_from.get(client, len(STEPS)) > STEPS.index("vector")

    def add(self, client: int, values: Whole) -> None:
        """Phase 3 of one client."""
        self.server.receive(client, self._up("vector", self._clients[client].mask(values)))

    def close(self) -> Whole:
        """Phase 4: the sum of all vectors that came, modulo 2^bits."""
        asked = self._down("unmask", self.server.request())
        answers = {
            client: self._up("unmask", side.unmask(asked[client])) for client, side in self._there("unmask") if client in asked
        }
        return self.server.unmask(answers)

    def _there(self, step: Step) -> list[tuple[int, Client]]:
        return [(k, side) for k, side in self._clients.items() if self._silent_from.get(k, len(STEPS)) > STEPS.index(step)]

    def _up(self, step: Step, data: bytes) -> bytes:
        self.traffic.count(step, "up", data)
        return data

    def _down(self, step: Step, messages: dict[int, bytes]) -> dict[int, bytes]:
        for data in messages.values():
            self.traffic.count(step, "down", data)
        return messages
