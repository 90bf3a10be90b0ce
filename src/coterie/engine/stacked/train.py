"""Many Trains of one signature as one: the reference's steps under vmap, stepped outside it in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.engine.answers import count_steps, place_of, positions_of
from coterie.engine.optim import rate
from coterie.engine.stacked.batches import Batches
from coterie.engine.stacked.groups import expanded, lifted, narrowed, row_of, stacked
from coterie.engine.stacked.member import Member, longest_first
from coterie.engine.stacked.steps import StackedStepper
from coterie.engine.step import corrected, optimizer, turns_of
from coterie.method import Batch, Loss, LossFn, Net, Round, Train, Trained
from coterie.randomness import draw_many, words_of
from coterie.tensors import Groups, Tensors


def train_stacked(members: Sequence[Member], net: Net, round: Round) -> list[Trained]:
    """What `answers.train` gives for every member, from steps that all of them take together."""
    return longest_first(members, _steps, lambda ordered: _StackedTrain(ordered, net, round).run())


class _StackedTrain:
    """What all members' steps read and write: stacked values, batches, rates."""

    def __init__(self, members: Sequence[Member], net: Net, round: Round) -> None:
        self.members = members
        self.asks: list[Train] = [member.ask for member in members if isinstance(member.ask, Train)]
        self.ask = self.asks[0]
        self.net = net
        self.num_steps = [_steps(member) for member in members]
        self.params_G = stacked([ask.params for ask in self.asks])
        self.buffers_G = stacked([ask.buffers for ask in self.asks])
        self.refs_G, self.refs_axes = expanded([ask.refs for ask in self.asks])
        self.frozen_G = stacked([{"frozen": ask.frozen or {}} for ask in self.asks])["frozen"]
        self.device, self.dtype = place_of(self.params_G)
        self.streams = self.batches_of_streams()
        self.noise_words = {
            name: words_of([member.key.fold("noise", name) for member in members], self.device) for name in self.ask.noise
        }
        self.steppers = {
            group: StackedStepper(group, values_G, optimizer(self.ask, group), [ask.memory for ask in self.asks])
            for group, values_G in self.params_G.items()
        }
        self.rates = {
            group: [
                [rate(optimizer(ask, group), round, step, count) if step < count else 0.0 for ask, count in self.counted()]
                for step in range(self.num_steps[0])
            ]
            for group in self.params_G
        }
        self.rates_SG = {group: torch.tensor(table, dtype=torch.float64, device=self.device) for group, table in self.rates.items()}
        self.moves: Counter[str] = Counter()  # how often a group was stepped
        self.totals_G: Tensors = {}

    def counted(self) -> Iterable[tuple[Train, int]]:
        return zip(self.asks, self.num_steps, strict=True)

    def batches_of_streams(self) -> dict[str, Batches]:
        streams = [member.streams for member in self.members]
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
        refs_G = narrowed(self.refs_G, width, self.refs_axes)
        told_G: Tensors = {}
        for loss_fn, moves in turns_of(self.ask):
            one = Gradients(self.ask, loss_fn, moves, net)
            axes = (0, 0, self.refs_axes, 0, 0)
            grads_G, loss_G, metrics_G, after_G = torch.func.vmap(one, in_dims=axes)(
                params_G, narrowed(self.buffers_G, width), refs_G, batch_G, frozen_G
            )
            for group, values in after_G.items():
                for name, value in values.items():
                    self.keep_buffer(self.buffers_G[group][name], value)
            for group in grads_G:
                self.moves[group] += 1
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
        batch_G["noise"] = {
            name: draw_many((low[:width], high[:width]), step, self.ask.noise[name], self.ask.batch_size, self.dtype)
            for name, (low, high) in self.noise_words.items()
        }
        return batch_G

    def keep_buffer(self, buffer_G: Tensor, value_G: Tensor) -> None:
        if (value_G.dtype, value_G.shape[1:]) != (buffer_G.dtype, buffer_G.shape[1:]):
            raise ValueError("it gives a buffer another shape or dtype than it had; keep both")
        buffer_G[: len(value_G)] = value_G

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
            memory=memory,
            num_steps=steps,
            lr_sum={group: self.lr_sum(group, client) for group in self.params_G},
            metrics={name: float(total[client]) / steps for name, total in self.totals_G.items()} if steps else {},
        )

    def lr_sum(self, group: str, client: int) -> float:
        """Added in the order of the steps, as the reference adds them."""
        times = self.moves[group] // max(self.num_steps[0], 1)
        total = 0.0
        for rates in self.rates[group][: self.num_steps[client]]:
            for _ in range(times):
                total += rates[client]
        return total


@dataclass(frozen=True, eq=False)
class Gradients:
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


def _steps(member: Member) -> int:
    assert isinstance(member.ask, Train)
    return count_steps(member.ask, member.streams)
