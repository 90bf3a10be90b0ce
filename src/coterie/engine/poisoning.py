"""What an attack changes of a run: the data that attackers train on, the tests that show it, and how it is told."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coterie.attacks.poison import Attack
from coterie.data.examples import ClientParts, Population, View, whole
from coterie.engine.record import knobs
from coterie.message import Message, Slot
from coterie.randomness import Key
from coterie.states import ClientId
from coterie.tensors import norm

TRIGGERED = "triggered"


def poisoned(population: Population, attack: Attack | None, seed: int) -> Population:
    """The population with what attackers train on from the attack's first round, and with triggered tests where there is a backdoor."""
    if attack is None:
        return population
    attackers = attack.attackers(len(population), seed)
    parts = list(population.parts)
    if attack.taints:
        for client in attackers:
            train, key = parts[client].train, attack.key(seed).fold("data", client)
            tainted = attack.taint(_columns(train), population.num_classes, key)
            parts[client] = replace(parts[client], tainted=replace(whole(tainted), decode=train.decode))
    return replace(population, parts=[_with_trigger(part, attack) for part in parts])


def _with_trigger(parts: ClientParts, attack: Attack) -> ClientParts:
    rows = attack.trigger(_columns(parts.test))
    return parts if rows is None else replace(parts, triggered=replace(whole(rows), decode=parts.test.decode))


def _columns(view: View) -> dict[str, Any]:
    return {name: view.column(name) for name in view.columns}


def tamper(
    attack: Attack, trained: Mapping[ClientId, Message], downs: Mapping[ClientId, Message], key: Key,
    honest: Mapping[ClientId, Message], slots: Mapping[str, Slot],
) -> tuple[dict[ClientId, Message], list[Tampered]]:  # fmt: skip
    """What attackers send instead of what they trained: only groups that are averaged or summed change."""

    def updates(message: Message) -> Message:
        return replace(message, groups={name: group for name, group in message.groups.items() if slots[name].reduce != "each"})

    own = {client: updates(message) for client, message in trained.items()}
    sent = attack.tamper(own, downs, key, {client: updates(message) for client, message in honest.items()})
    whole = {client: replace(sent[client], groups={**trained[client].groups, **sent[client].groups}) for client in trained}
    return whole, [Tampered.of(client, own[client], sent[client]) for client in trained]


def as_changes(slots: Mapping[str, Slot]) -> dict[str, Slot]:
    """The same slots for Messages from which what was sent has been subtracted already."""
    return {name: slot if slot.reduce == "each" else replace(slot, kind="change") for name, slot in slots.items()}


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


def told_of(tampered: Sequence[Tampered]) -> dict[str, Any]:
    """What a round's log line says of the attackers who changed what they sent."""
    if not tampered:
        return {}
    gains = [one.weight_gain for one in tampered if one.weight_gain is not None]
    lengths = {what: statistics.median(getattr(one, what) for one in tampered) for what in ("trained", "sent")}
    return {"attack": {"attackers": [one.client for one in tampered], **lengths, "weight_gain": max(gains, default=None)}}


def honest_only(
    scores: Mapping[tuple[str, str], Mapping[ClientId, Mapping[str, float]]], attackers: frozenset[ClientId]
) -> dict[tuple[str, str], dict[ClientId, Mapping[str, float]]]:
    """Scores that means are taken over: how well attackers are served is nobody's concern."""
    found = {where: {c: values for c, values in clients.items() if c not in attackers} for where, clients in scores.items()}
    return {where: clients for where, clients in found.items() if clients}


def summarise_attack(
    attack: Attack, population: Population, seed: int, lines: Sequence[Mapping[str, Any]], main: str
) -> dict[str, Any]:
    """What a summary says of an attacked run, and whose numbers its means are."""
    attackers = attack.attackers(len(population), seed)
    gains = [line["attack"]["weight_gain"] for line in lines if line.get("attack", {}).get("weight_gain") is not None]
    success = {line["model"]: line[main] for line in lines if line.get("split") == TRIGGERED}
    return {
        **knobs(attack),
        "attackers": list(attackers),
        "results_over": f"the {len(population) - len(attackers)} honest clients",
        "private": False,
        **({"weight_gain": max(gains)} if gains else {}),
        **({"backdoor_success": success} if success else {}),
        **attack.facts({client: len(population.parts[client].train) for client in attackers}),
    }
