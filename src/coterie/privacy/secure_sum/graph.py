"""Who masks with whom: all pairs, or k neighbours of each client on a ring of random order.

With k neighbours (Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020) a client does k
instead of m - 1 key agreements and masks. What is then hidden is the sum of every connected part of those who stay; the server
ends the round when they fall apart. Their analysis draws the graph at random after the adversary has chosen whom it
controls, and finds k of order log m sufficient; it holds against a server that follows the protocol. A server that
chooses a client's neighbours itself, and controls a threshold of them, can unmask that client.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Set
from typing import TypeAlias

Graph: TypeAlias = Mapping[int, frozenset[int]]
"""client -> its neighbours, without itself."""


def draw_graph(clients: Iterable[int], neighbours: int | None) -> Graph:
    """All pairs, or a ring of random order on which each client meets the k / 2 next on both sides."""
    order = list(clients)
    if neighbours is None or neighbours >= len(order) - 1:
        return {client: frozenset(order) - {client} for client in order}
    secrets.SystemRandom().shuffle(order)
    steps = [step for step in range(-(neighbours // 2), neighbours // 2 + 1) if step]
    return {client: frozenset(order[(place + step) % len(order)] for step in steps) for place, client in enumerate(order)}


def connected(graph: Graph, among: Set[int]) -> bool:
    """Whether these clients hang together over edges between themselves."""
    if not among:
        return False
    reached: set[int] = set()
    waiting = [next(iter(among))]
    while waiting:
        client = waiting.pop()
        if client not in reached:
            reached.add(client)
            waiting.extend((graph[client] & among) - reached)
    return reached == among
