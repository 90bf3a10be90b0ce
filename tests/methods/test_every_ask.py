"""Every Train that a method asks for can be answered for many clients at once, and recorded on an accelerator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from on_meta import step_on_meta
from play import Play
from torch import Tensor

from coterie import methods
from coterie.engine import answers
from coterie.engine.signature import signature
from coterie.method import Loss, Net, Round, Train
from coterie.randomness import Key, draw
from coterie.tensors import Groups


@pytest.mark.parametrize("name", methods.__all__)
def test_two_clients_at_once_equal_one_at_a_time(name: str, play_of: Callable[[str], Play]) -> None:
    """Every Train ask's gradient under vmap(grad): what the stacked and captured backends need."""
    asked: dict[tuple[str, str], dict[object, tuple[Train, Net, Round, Key]]] = {}
    for ask, net, round, key in play_of(name).trained:
        who = key.path[3] if key.path[0] == "round" else ("server", round.index)
        asked.setdefault((round.phase, str(key.path[-2])), {}).setdefault(who, (ask, net, round, key))
    for where, by_client in asked.items():
        pair = (list(by_client.values()) * 2)[:2]  # what only the server asked once is set beside itself, on other rows
        (first, net, _, _), (second, _, _, _) = pair
        inputs = [given(ask, key, rows_of(first, second), shift=i) for i, (ask, _, _, key) in enumerate(pair)]
        step = step_of(first, net)
        alone = [step(*each) for each in inputs]
        stacked = torch.func.vmap(step)(*(stack(parts) for parts in zip(*inputs, strict=True)))
        for i, expected in enumerate(alone):
            for path, value in leaves(expected):
                found = dict(leaves(stacked))[path][i]
                assert (found - value).abs().max() <= 1e-9, f"{where}: {path} of client {i}"


@pytest.mark.parametrize("name", methods.__all__)
def test_every_step_stays_on_its_device(name: str, play_of: Callable[[str], Play]) -> None:
    """On the device "meta", where a number that is read back, or a tensor that lies elsewhere, is found at once.

    A CUDA graph refuses both, and there is no other machine-independent way to see them.
    """
    kinds: dict[object, tuple[Train, Net, Key]] = {}
    for ask, net, _, key in play_of(name).trained:
        kinds.setdefault(signature(ask), (ask, net, key))
    for asked, net, key in kinds.values():
        step_on_meta(asked, net, key)


def rows_of(first: Train, second: Train) -> dict[str, int]:
    """As many rows of each stream as both clients have."""
    sizes = ((name, (answers.as_examples(ask.streams[name]) for ask in (first, second))) for name in first.streams)
    return {name: min(first.batch_size, *map(len, streams)) for name, streams in sizes}


def given(ask: Train, key: Key, rows: Mapping[str, int], shift: int) -> tuple[Any, ...]:
    """What differs from client to client in one step."""
    streams = {name: answers.as_examples(stream) for name, stream in ask.streams.items()}
    batch = {name: answers.with_mask(s.rows((torch.arange(rows[name]) + shift) % len(s))) for name, s in streams.items()}
    device, dtype = answers.place_of(ask.params)
    size = next(iter(rows.values()), ask.batch_size)
    batch["noise"] = {n: draw(key.fold("noise", n), 0, spec, size, device, dtype) for n, spec in ask.noise.items()}
    return ask.params, ask.buffers, ask.refs, batch, ask.frozen or {}


def step_of(ask: Train, net: Net) -> Callable[..., Any]:
    """One step as the engine documents it, up to the optimiser: gradient(loss + terms) -> adjusts, and project."""
    turns = [(ask.loss, set(ask.params))] if ask.loss else [(turn.loss, set(turn.moves)) for turn in ask.turns]

    def step(params: Groups, buffers: Groups, refs: Groups, batch: Any, frozen: dict[str, Tensor]) -> Any:
        own = net.freezing(frozen) if frozen else net
        results = []
        for loss_fn, moves in turns:

            def compute(at: Groups, buffers: Groups, loss_fn: Any = loss_fn, moves: set[str] = moves) -> tuple[Groups, Loss]:
                def objective(moving: Groups) -> tuple[Tensor, Any]:
                    point = {**at, **moving}
                    loss = loss_fn(point, buffers, refs, batch, own)
                    total = loss.value + sum(term(point, buffers, refs, batch, own) for term in ask.terms)
                    return total, (total, loss.buffers, loss.metrics)

                moving = {group: at[group] for group in at if group in moves}
                grads, (total, after, metrics) = torch.func.grad(objective, has_aux=True)(moving)
                return grads, Loss(total, after, metrics)

            grads, loss = ask.gradient(compute, params, buffers, refs) if ask.gradient else compute(params, buffers)
            for adjust in ask.adjusts:
                grads = adjust(grads, refs)
            results.append((grads, loss.value, loss.buffers, loss.metrics))
        return results, ask.project(params, refs) if ask.project else {}

    return step


def stack(parts: tuple[Any, ...]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.stack(parts)
    assert all(part.keys() == first.keys() for part in parts), "two clients' asks hold different names"
    return {name: stack(tuple(part[name] for part in parts)) for name in first}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from leaves(item, f"{path}/{name}")
    else:
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}/{i}")
