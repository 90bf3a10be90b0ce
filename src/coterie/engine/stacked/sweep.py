"""Many Sweeps of one signature as one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.engine.answers import common_length, per_example, place_of
from coterie.engine.stacked.batches import Batches, in_turn
from coterie.engine.stacked.groups import expanded, narrowed
from coterie.engine.stacked.member import Member, longest_first
from coterie.method import Batch, Net, Sweep
from coterie.randomness import Draw, draw
from coterie.tensors import Groups, Tensors


def sweep_stacked(members: Sequence[Member], net: Net) -> list[Tensors]:
    """What `answers.sweep` gives for every member."""
    return longest_first(members, lambda member: common_length(member.streams), lambda ordered: _sweep_sorted(ordered, net))


def _sweep_sorted(members: Sequence[Member], net: Net) -> list[Tensors]:
    asks = [member.ask for member in members if isinstance(member.ask, Sweep)]
    ask, totals = asks[0], [common_length(member.streams) for member in members]
    size = min(ask.batch_size, totals[0])
    num_batches = [-(-total // size) for total in totals]
    streams = {
        name: Batches.of(
            [member.streams[name] for member in members], [in_turn(total, size) for total in totals], num_batches, size
        )
        for name in ask.streams
    }  # fmt: skip
    params_G, params_axes = expanded([own.params for own in asks])
    buffers_G, buffers_axes = expanded([own.buffers for own in asks])
    refs_G, refs_axes = expanded([own.refs for own in asks])
    device, dtype = place_of(ask.params or ask.refs or ask.buffers, net)
    noise = {
        name: [draw(m.key.fold("noise", name), 0, spec, total, device, dtype) for m, total in zip(members, totals, strict=True)]
        for name, spec in ask.noise.items()
    }

    def one(params: Groups, buffers: Groups, refs: Groups, batch: Batch) -> Tensors:
        return ask.fn(params, buffers, refs, batch, net)

    gathered: list[dict[str, list[Tensor]]] = [{} for _ in members]
    many = torch.func.vmap(one, in_dims=(params_axes, buffers_axes, refs_axes, 0))
    first = next(iter(streams.values()))
    with torch.no_grad():
        for step in range(num_batches[0]):
            width = sum(count > step for count in num_batches)
            batch_G = {name: {n: v[0] for n, v in stream.steps(step, 1, width).items()} for name, stream in streams.items()}
            batch_G["noise"] = {
                name: torch.stack([_slice(value, ask.noise[name], step * size, size) for value in values[:width]])
                for name, values in noise.items()
            }
            out_G = many(
                narrowed(params_G, width, params_axes), narrowed(buffers_G, width, buffers_axes),
                narrowed(refs_G, width, refs_axes), batch_G,
            )  # fmt: skip
            for client in range(width):
                real = first.sizes[client][step]
                for name, value_G in out_G.items():
                    _gather(gathered[client].setdefault(name, []), value_G[client], ask.gather, real, totals[client])
    return [
        {name: torch.cat(values) if ask.gather == "rows" else values[0] for name, values in own.items()} for own in gathered
    ]


def _gather(found: list[Tensor], value: Tensor, gather: str, real: int, total: int) -> None:
    if gather == "rows":
        found.append(value[:real])
        return
    term = value * (real / total if gather == "mean" else 1.0)
    found[:] = [found[0] + term] if found else [term]


def _slice(value: Tensor, spec: Draw, start: int, size: int) -> Tensor:
    """The noise of one batch, with zeros for rows that do not exist."""
    if not per_example(spec):
        return value
    own = value[start : start + size]
    return torch.cat([own, own.new_zeros(size - len(own), *own.shape[1:])]) if len(own) < size else own
