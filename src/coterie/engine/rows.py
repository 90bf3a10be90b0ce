"""What a method sees of the server, and the rows that somebody remembers, as a round begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coterie.engine.backend import World
from coterie.method import Hub, Method, Round
from coterie.randomness import Key
from coterie.states import ClientId, ServerState
from coterie.tensors import Groups


def hub_of(world: World, round: Round) -> Hub:
    return Hub(round=round, net=world.net, key=Key(world.seed, ("server", round.index)), data=world.population.public)


def with_server_rows(method: Method, state: ServerState, clients: tuple[ClientId, ...], hub: Hub) -> ServerState:
    """The state with the server's row about every one of these clients; an older phase's row gets the new groups."""
    first = method.server_row(hub)
    rows = {client: state.rows.get(client, {}) for client in clients} if first else {}
    lacking = {client: {**first, **row} for client, row in rows.items() if first.keys() - row.keys()}
    return state.with_rows(lacking) if lacking else state


def row_of(
    world: World, method: Method, rows: Mapping[ClientId, Groups], client: ClientId, round: Round, state: ServerState,
    *, fresh: bool,
) -> Groups:  # fmt: skip
    """A client's row, with the first values of whatever this phase's method adds to it."""
    stored = rows.get(client)
    if stored is not None and not fresh:
        return stored
    site = world.site(client, round, state.public)
    first = method.client_row(replace(site, key=Key(world.seed, ("row", client))))
    return {**first, **(stored or {})}
