"""Attackers of one round who change what they send: their updates wait here until all of them have trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from coterie.engine.backend import World
from coterie.engine.client import Finished
from coterie.message import Message, Slot
from coterie.method import Round
from coterie.states import ClientId
from coterie.tensors import norm


@dataclass(frozen=True)
class Tampered:
    """One attacker's Message beside the one that it would have sent."""

    client: ClientId
    trained: float  # the length of its honest update
    sent: float
    weight_gain: float | None

    @classmethod
    def of(cls, client: ClientId, honest: Message, sent: Message) -> Tampered:
        own, claimed = (1.0 if m.weight is None else float(m.weight) for m in (honest, sent))
        trained, arrived = (float(norm(m.groups.values())) for m in (honest, sent))
        return cls(client, trained, arrived, claimed / own if own else None)


class Ambush:
    """Who changes Messages in this round, and what they know; nobody where there is no attack, or before it begins."""

    def __init__(self, world: World, round: Round) -> None:
        attack = world.attack
        acts = attack is not None and attack.tampers and attack.active(round.index)
        self.attack = attack if acts else None
        self.clients = world.attackers if acts else frozenset()
        self.key = None if attack is None else attack.key(world.seed).fold("round", round.index)
        self.told: list[Tampered] = []
        self._downs: dict[ClientId, Message] = {}
        self._theirs: dict[ClientId, tuple[Finished, Message]] = {}
        self._honest: dict[ClientId, Message] = {}

    def __contains__(self, client: ClientId) -> bool:
        return client in self.clients

    def trained(self, client: ClientId, message: Message, down: Message) -> Message:
        """An attacker's honest change, and what it was sent for it."""
        self._downs[client] = down
        return message

    def hold(self, client: ClientId, outcome: Finished, message: Message) -> None:
        self._theirs[client] = outcome, message

    def see(self, client: ClientId, message: Message) -> None:
        """An honest Message passes, which attackers may look at if they are omniscient."""
        if self.attack is not None and self.attack.omniscient:
            self._honest[client] = message

    def sent(self, slots: Mapping[str, Slot]) -> Iterator[tuple[ClientId, Finished, Message, Message]]:
        """What the attackers send instead, and what they had received: only groups that are averaged or summed change."""
        if self.attack is None or self.key is None or not self._theirs:
            return

        reduced = {name for name, slot in slots.items() if slot.reduce != "each"}  # a bit of an adaptive clip is no update

        def updates(message: Message) -> Message:
            return replace(message, groups={name: group for name, group in message.groups.items() if name in reduced})

        own = {client: updates(message) for client, (_, message) in self._theirs.items()}
        honest = {client: updates(message) for client, message in self._honest.items()}
        found = self.attack.tamper(own, self._downs, self.key, honest)
        for client, (outcome, before) in self._theirs.items():
            self.told.append(Tampered.of(client, own[client], found[client]))
            yield client, outcome, replace(found[client], groups={**before.groups, **found[client].groups}), self._downs[client]


def as_changes(slots: Mapping[str, Slot]) -> dict[str, Slot]:
    """The same slots for Messages from which what was sent has been subtracted already."""
    return {name: slot if slot.reduce == "each" else replace(slot, kind="change") for name, slot in slots.items()}
