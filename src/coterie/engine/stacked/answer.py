"""The answers to many asks of one signature at once: the reference's steps under vmap, stepped outside it in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.data.examples import View
from coterie.engine.answers import (
    as_examples,
    common_length,
    corrected,
    count_steps,
    optimizer,
    per_example,
    place_of,
    positions_of,
    turns_of,
)
from coterie.engine.optim import rate
from coterie.engine.stacked.batches import Batches, in_turn, narrowed
from coterie.engine.stacked.steps import StackedStepper, lifted
from coterie.method import Batch, Loss, LossFn, Net, Round, Sweep, Train, Trained
from coterie.randomness import Draw, Key, draw
from coterie.tensors import Groups, Tensors


@dataclass(frozen=True, eq=False)
class Member:
    """One client's part of a question that is asked of many: its ask, and the key of its random numbers."""

    ask: Train | Sweep
    key: Key


def train_stacked(members: Sequence[Member], net: Net, round: Round) -> list[Trained]:
    """What `answers.train` gives for every member, from steps that all of them take together.

    Clients stand in the order of their number of steps, so that those who are done drop off at the end.
    """
    order = sorted(range(len(members)), key=lambda i: -_steps(members[i]))
    sorted_members = [members[i] for i in order]
    found = _StackedTrain(sorted_members, net, round).run()
    return [trained for _, trained in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]


class _StackedTrain:
    def __init__(self, members: Sequence[Member], net: Net, round: Round) -> None:
        self.members = members
        self.asks: list[Train] = [member.ask for member in members if isinstance(member.ask, Train)]
        self.ask = self.asks[0]
        self.net = net
        self.num_steps = [count_steps(ask, _streams(ask)) for ask in self.asks]
        self.params_G = stacked([ask.params for ask in self.asks])
        self.buffers_G = stacked([ask.buffers for ask in self.asks])
        self.refs_G, self.refs_axes = expanded([ask.refs for ask in self.asks])
        self.frozen_G = stacked([{"frozen": ask.frozen or {}} for ask in self.asks])["frozen"]
        self.device, self.dtype = place_of(self.params_G)
        self.streams = self.batches_of_streams()
        self.steppers = {
            group: StackedStepper(group, values_G, optimizer(self.ask, group), [ask.memory for ask in self.asks])
            for group, values_G in self.params_G.items()
        }
        rates = {
            group: [
                [rate(optimizer(ask, group), round, step, count) if step < count else 0.0 for ask, count in self.counted()]
                for step in range(self.num_steps[0])
            ]
            for group in self.params_G
        }
        self.rates_SG = {group: torch.tensor(table, dtype=torch.float64, device=self.device) for group, table in rates.items()}
        self.lr_sums = [dict.fromkeys(self.params_G, 0.0) for _ in self.asks]
        for group, table in rates.items():
            times = sum(group in moves for _, moves in turns_of(self.ask))
            for client, count in enumerate(self.num_steps):
                self.lr_sums[client][group] = _added(table[step][client] for step in range(count) for _ in range(times))
        self.totals_G: Tensors = {}

    def counted(self) -> Iterable[tuple[Train, int]]:
        return zip(self.asks, self.num_steps, strict=True)

    def batches_of_streams(self) -> dict[str, Batches]:
        streams = [_streams(ask) for ask in self.asks]
        return {
            name: Batches.of(
                [own[name] for own in streams],
                [
                    positions_of(len(own[name]), self.ask.batch_size, member.key.fold("order", name))
                    for own, member in zip(streams, self.members, strict=True)
                ],
                self.num_steps, self.ask.batch_size,
            )
            for name in self.ask.streams
        }  # fmt: skip

    def run(self) -> list[Trained]:
        for step in range(self.num_steps[0]):
            self.step(step, width=sum(count > step for count in self.num_steps))
        return [self.trained(client) for client in range(len(self.asks))]

    def step(self, step: int, width: int) -> None:
        padded = any(stream.padded(step, width) for stream in self.streams.values())
        net = self.net.masked() if padded else self.net
        batch_G = self.batch(step, width)
        params_G, frozen_G = narrowed(self.params_G, width), {n: v[:width] for n, v in self.frozen_G.items()}
        refs_G = narrowed_refs(self.refs_G, self.refs_axes, width)
        told_G: Tensors = {}
        for loss_fn, moves in turns_of(self.ask):
            one = _Gradients(self.ask, loss_fn, moves, net)
            axes = (0, 0, self.refs_axes, 0, 0)
            grads_G, loss_G, metrics_G, after_G = torch.func.vmap(one, in_dims=axes)(
                params_G, narrowed(self.buffers_G, width), refs_G, batch_G, frozen_G
            )
            for group, values in after_G.items():
                for name, value in values.items():
                    self.buffers_G[group][name][:width] = value
            for group in grads_G:
                self.steppers[group].step(grads_G[group], self.rates_SG[group][step, :width], self.frozen_G)
            if self.ask.project is not None:
                self.write(torch.func.vmap(self.ask.project, in_dims=(0, self.refs_axes))(params_G, refs_G), width)
            objective_G = told_G["objective"] + loss_G if told_G else loss_G
            told_G = {**told_G, **metrics_G, "objective": objective_G}
        for name, value_G in told_G.items():
            if name not in self.totals_G:
                self.totals_G[name] = torch.zeros(len(self.asks), dtype=torch.float64, device=value_G.device)
            self.totals_G[name][:width] += value_G.double()

    def batch(self, step: int, width: int) -> dict[str, Tensors]:
        batch_G: dict[str, Tensors] = {name: stream.batch(step, width) for name, stream in self.streams.items()}
        # as many numbers as a whole batch needs: those of a short one are the first of them
        keys = [member.key for member in self.members[:width]]
        batch_G["noise"] = {
            name: torch.stack([draw(key.fold("noise", name), step, spec, self.ask.batch_size, self.device, self.dtype) for key in keys])
            for name, spec in self.ask.noise.items()
        }
        return batch_G

    def write(self, projected_G: Groups, width: int) -> None:
        """What a projection gives, except where a parameter is frozen."""
        for group, values in projected_G.items():
            for name, value in values.items():
                own = self.params_G[group][name][:width]
                if name in self.frozen_G:
                    value = torch.where(lifted(self.frozen_G[name][:width], own.dim()), own, value)
                own.copy_(value)

    def trained(self, client: int) -> Trained:
        steps = self.num_steps[client]
        memory = {name: values for stepper in self.steppers.values() for name, values in stepper.memory(client).items()}
        return Trained(
            params=row_of(self.params_G, client),
            buffers=row_of(self.buffers_G, client),
            memory=memory if steps else {},
            num_steps=steps,
            lr_sum=self.lr_sums[client],
            metrics={name: float(total[client]) / steps for name, total in self.totals_G.items()} if steps else {},
        )


@dataclass(frozen=True, eq=False)
class _Gradients:
    """One client's corrected gradient in one turn, for vmap."""

    ask: Train
    loss_fn: LossFn
    moves: frozenset[str]
    net: Net

    def __call__(
        self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, frozen: Tensors
    ) -> tuple[Groups, Tensor, Tensors, Groups]:
        net = self.net.freezing(frozen) if frozen else self.net

        def compute(at: Groups, buffers: Groups) -> tuple[Groups, Loss]:
            def objective(moving: Groups) -> tuple[Tensor, Any]:
                point = {**at, **moving}
                loss = self.loss_fn(point, buffers, refs, batch, net)
                total = loss.value
                for term in self.ask.terms:
                    total = total + term(point, buffers, refs, batch, net)
                return total, (total, loss.buffers, loss.metrics)

            moving = {group: at[group] for group in at if group in self.moves}
            grads, (total, after, metrics) = torch.func.grad(objective, has_aux=True)(moving)
            return grads, Loss(total, after, metrics)

        grads, loss = corrected(self.ask, compute, params, buffers, refs, frozen)
        return grads, loss.value, loss.metrics, loss.buffers


def padding_matters(member: Member, net: Net, round: Round) -> bool:
    """Whether this ask gives other numbers for a padded batch than for the same one without padding.

    A loss that forgets the mask of its batch does; it must not be answered together with clients of other sizes.
    """
    ask, streams = member.ask, _streams(member.ask)
    if not streams:
        return False
    rows = {name: next(positions_of(len(view), ask.batch_size, member.key)) for name, view in streams.items()}
    size = max(map(len, rows.values())) + 1
    plain, padded = ({name: _rows(view, rows[name], extra) for name, view in streams.items()} for extra in (0, size))
    device, dtype = place_of(ask.params or ask.refs or ask.buffers, net)
    sizes = (len(next(iter(rows.values()))), len(next(iter(padded.values()))["mask"]))
    for batch, count in zip((plain, padded), sizes, strict=True):
        batch["noise"] = {name: draw(member.key, 0, spec, count, device, dtype) for name, spec in ask.noise.items()}
    if isinstance(ask, Sweep):
        with torch.no_grad():
            found = [ask.fn(ask.params, ask.buffers, ask.refs, batch, net) for batch in (plain, padded)]
        if ask.gather == "rows":
            found[1] = {name: value[: sizes[0]] for name, value in found[1].items()}
        return not _close(*found)
    for loss_fn, moves in turns_of(ask):
        one, other = (_Gradients(ask, loss_fn, moves, own) for own in (net, net.masked()))
        results = [
            fn(ask.params, ask.buffers, ask.refs, batch, ask.frozen or {}) for fn, batch in ((one, plain), (other, padded))
        ]
        if not all(_close(a, b) for a, b in zip(*results, strict=True)):
            return True
    return False


def _rows(view: View, positions: Tensor, extra: int) -> Tensors:
    """A batch with this many padded rows after the real ones."""
    columns = view.rows(torch.cat([positions, positions[:1].expand(extra)]))
    mask = torch.arange(len(positions) + extra) < len(positions)
    return {**columns, "mask": mask.to(next(iter(columns.values())).device)}


def _close(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor):
        return all(_close(a[name], b[name]) for name in a)
    if a.shape != b.shape:
        return False
    rounding = 1e-8 if a.dtype == torch.float64 else 1e-3
    scale = float(a.detach().abs().max()) if a.numel() and a.is_floating_point() else 0.0
    return torch.allclose(a.detach().double(), b.detach().double(), rtol=rounding, atol=rounding * (scale + 1e-30), equal_nan=True)


def sweep_stacked(members: Sequence[Member], net: Net) -> list[Tensors]:
    """What `answers.sweep` gives for every member."""
    order = sorted(range(len(members)), key=lambda i: -_length(members[i].ask))
    found = _sweep_sorted([members[i] for i in order], net)
    return [out for _, out in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]


def _sweep_sorted(members: Sequence[Member], net: Net) -> list[Tensors]:
    asks = [member.ask for member in members if isinstance(member.ask, Sweep)]
    ask, totals = asks[0], [_length(member.ask) for member in members]
    size = min(ask.batch_size, totals[0])
    num_batches = [-(-total // size) for total in totals]
    streams = {
        name: Batches.of(
            [_streams(own)[name] for own in asks], [in_turn(total, size) for total in totals], num_batches, size
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
            batch_G = {name: stream.batch(step, width) for name, stream in streams.items()}
            batch_G["noise"] = {
                name: torch.stack([_slice(value, ask.noise[name], step * size, size) for value in values[:width]])
                for name, values in noise.items()
            }
            out_G = many(
                narrowed_refs(params_G, params_axes, width), narrowed_refs(buffers_G, buffers_axes, width),
                narrowed_refs(refs_G, refs_axes, width), batch_G,
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


def stacked(groups: Sequence[Groups]) -> Groups:
    """Groups of G clients with a leading axis, as tensors of their own."""
    return {
        group: {name: torch.stack([own[group][name].detach() for own in groups]) for name in values}
        for group, values in groups[0].items()
    }


def expanded(groups: Sequence[Groups]) -> tuple[Groups, dict[str, dict[str, int | None]]]:
    """Like `stacked`, but what is one tensor for all stays one; with the axis of clients of each (None: for all)."""
    found: Groups = {}
    axes: dict[str, dict[str, int | None]] = {}
    for group, values in groups[0].items():
        found[group], axes[group] = {}, {}
        for name, value in values.items():
            same = all(own[group][name] is value for own in groups)
            found[group][name] = value if same else torch.stack([own[group][name].detach() for own in groups])
            axes[group][name] = None if same else 0
    return found, axes


def narrowed_refs(groups_G: Groups, axes: dict[str, dict[str, int | None]], width: int) -> Groups:
    return {
        group: {name: value if axes[group][name] is None else value[:width] for name, value in values.items()}
        for group, values in groups_G.items()
    }


def row_of(groups_G: Groups, client: int) -> Groups:
    return {group: {name: value[client].clone() for name, value in values.items()} for group, values in groups_G.items()}


def _streams(ask: Train | Sweep) -> dict[str, View]:
    found = {name: as_examples(stream) for name, stream in ask.streams.items()}
    assert all(isinstance(stream, View) for stream in found.values()), "the signature lets only views pass"
    return found  # type: ignore[return-value]


def _steps(member: Member) -> int:
    assert isinstance(member.ask, Train)
    return count_steps(member.ask, _streams(member.ask))


def _length(ask: Train | Sweep) -> int:
    return common_length(_streams(ask))


def _added(numbers: Iterable[float]) -> float:
    """In the order of the steps, as the reference adds them."""
    total = 0.0
    for number in numbers:
        total += number
    return total


