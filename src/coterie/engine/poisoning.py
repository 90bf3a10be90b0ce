"""What an attack changes of a run: the data that attackers train on, the tests that show it, and how it is told."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from coterie.attacks.poison import Attack
from coterie.data.examples import ClientParts, Population, View, whole
from coterie.engine.ambush import Tampered
from coterie.engine.backend import World
from coterie.engine.record import knobs
from coterie.states import ClientId
from coterie.tensors import Tensors

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


def _columns(view: View) -> Tensors:
    return {name: view.column(name) for name in view.columns}


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


def told_of_run(summary: Mapping[str, Any], world: World, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A run's summary with how updates were reduced, and what attackers did to it."""
    attack, told = world.attack, {**summary, "reduce": knobs(world.reduce), "attack": None}
    if attack is None:
        return told
    gains = [line["attack"]["weight_gain"] for line in lines if line.get("attack", {}).get("weight_gain") is not None]
    success = {line["model"]: line[world.metric.main] for line in lines if line.get("split") == TRIGGERED}
    told["attack"] = {
        **knobs(attack),
        "attackers": sorted(world.attackers),
        "private": False,
        "results_over": f"the {len(world.population) - len(world.attackers)} honest clients",
        **({"weight_gain": max(gains)} if gains else {}),
        **({"backdoor_success": success} if success else {}),
        **attack.facts({client: len(world.population.parts[client].train) for client in world.attackers}),
    }
    return told
