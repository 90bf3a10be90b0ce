"""Trainings of G clients on tensors that stay where they are, so that a step of all of them can be recorded and replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from coterie.engine.answers import count_steps, place_of, positions_of
from coterie.engine.optim import added, rate
from coterie.engine.recording import Track
from coterie.engine.stacked.batches import Batches
from coterie.engine.stacked.feed import StackedFeed
from coterie.engine.stacked.gradients import Gradients
from coterie.engine.stacked.groups import expanded, fill, lifted, narrowed, row_of, stacked
from coterie.engine.stacked.member import Member
from coterie.engine.stacked.steps import StackedStepper
from coterie.engine.step import optimizer, turns_of
from coterie.method import Net, Round, Train, Trained
from coterie.randomness import words_of
from coterie.tensors import Groups, Tensors, copied_to


class StackedProgram:
    """Answers groups of G trainings of one signature, one group after another. Members stand with the most steps first."""

    def __init__(self, asks: Sequence[Train], net: Net) -> None:
        self._ask, self._net, self._count = asks[0], net, len(asks)
        self._device, self._dtype = place_of(asks[0].params)
        self._params_G = stacked([ask.params for ask in asks])
        self._buffers_G = copied_to(self._device, stacked([ask.buffers for ask in asks]))
        refs_G, self._refs_axes = expanded([ask.refs for ask in asks])
        self._refs_G = copied_to(self._device, refs_G)
        self._frozen_G = copied_to(self._device, stacked([{"frozen": ask.frozen or {}} for ask in asks]))["frozen"]
        self._steppers = {
            group: StackedStepper(group, values_G, optimizer(self._ask, group), len(asks)) for group, values_G in self._params_G.items()
        }
        self._place = torch.zeros(1, dtype=torch.long, device=self._device)
        self._totals_G: Tensors = {}
        self._moves: Counter[str] = Counter()  # how often a step moves each group
        self._feeds: dict[int, StackedFeed] = {}
        self._tracks: dict[tuple[int, bool], Track] = {}
        self.told: list[str] = []  # why a step can't be recorded

    def answer(self, members: Sequence[Member], round: Round) -> list[Trained]:
        """What the reference gives for every member."""
        asks = [member.ask for member in members if isinstance(member.ask, Train)]
        counts = [count_steps(ask, member.streams) for ask, member in zip(asks, members, strict=True)]
        longest = max(counts, default=0)
        streams = self._batches(members, counts)
        rates = {
            group: [[rate(optimizer(a, group), round, s, n) if s < n else 0.0 for a, n in zip(asks, counts, strict=True)] for s in range(longest)]
            for group in self._params_G
        }  # fmt: skip
        tables = {group: torch.tensor(table, dtype=torch.float64, device=self._device) for group, table in rates.items()}
        words = {name: words_of([m.key.fold("noise", name) for m in members], self._device) for name in self._ask.noise}
        self._load(asks)
        found: list[Trained] = []
        for active, padded, start, count in _stretches(counts, streams):
            self._finish(found, active, counts, rates)
            width = _width(active, self._count)
            feed, track = self._track(width, padded, streams)
            for at in range(start, start + count, feed.capacity):
                steps = min(feed.capacity, start + count - at)
                feed.fill(streams, words, at, steps, tables)
                track.take(steps)
        self._finish(found, 0, counts, rates)
        return found[::-1]

    def _batches(self, members: Sequence[Member], counts: Sequence[int]) -> dict[str, Batches]:
        size = self._ask.batch_size
        return {
            name: Batches.of(
                [member.streams[name] for member in members],
                [positions_of(len(member.streams[name]), size, member.key.fold("order", name)) for member in members],
                counts, size,
            )
            for name in self._ask.streams
        }  # fmt: skip

    def _track(self, width: int, padded: bool, streams: dict[str, Batches]) -> tuple[StackedFeed, Track]:
        if width not in self._feeds:
            self._feeds[width] = StackedFeed(self._ask, streams, width, self._place, self._dtype)
        feed = self._feeds[width]
        if (width, padded) not in self._tracks:
            track = Track(lambda: self._step(feed, width, padded), self._state, self._device, refused=self.told.append)
            self._tracks[width, padded] = track
        return feed, self._tracks[width, padded]

    def _state(self) -> list[Tensor]:
        """All that a step writes."""
        named = [value for groups in (self._params_G, self._buffers_G) for values in groups.values() for value in values.values()]
        return [*named, *(v for stepper in self._steppers.values() for v in stepper.state()), *self._totals_G.values(), self._place]

    def _step(self, feed: StackedFeed, width: int, padded: bool) -> None:
        net = self._net.masked() if padded else self._net
        batch_G, rates_G = feed.batch(), feed.rates()
        params_G, frozen_G = narrowed(self._params_G, width), {n: v[:width] for n, v in self._frozen_G.items()}
        refs_G = narrowed(self._refs_G, width, self._refs_axes)
        told_G: Tensors = {}
        self._moves = Counter()
        for loss_fn, moves in turns_of(self._ask):
            one = Gradients(self._ask, loss_fn, moves, net)
            grads_G, loss_G, metrics_G, after_G = torch.func.vmap(one, in_dims=(0, 0, self._refs_axes, 0, 0))(
                params_G, narrowed(self._buffers_G, width), refs_G, batch_G, frozen_G
            )
            for group, values in after_G.items():
                for name, value in values.items():
                    _keep(self._buffers_G[group][name], value)
            for group in grads_G:
                self._moves[group] += 1
                self._steppers[group].step(grads_G[group], rates_G[group], self._frozen_G)
            if self._ask.project is not None:
                self._write(torch.func.vmap(self._ask.project, in_dims=(0, self._refs_axes))(params_G, refs_G), width)
            objective_G = told_G["objective"] + loss_G if told_G else loss_G
            told_G = {**told_G, **metrics_G, "objective": objective_G}
        for name, value_G in told_G.items():
            if name not in self._totals_G:
                self._totals_G[name] = torch.zeros(self._count, dtype=torch.float64, device=self._device)
            self._totals_G[name][:width] += value_G.double()
        self._place += 1

    def _write(self, projected_G: Groups, width: int) -> None:
        """What a projection gives, except where a parameter is frozen."""
        for group, values in projected_G.items():
            for name, value in values.items():
                own = self._params_G[group][name][:width]
                if name in self._frozen_G:
                    value = torch.where(lifted(self._frozen_G[name][:width], own.dim()), own, value)
                own.copy_(value)

    def _load(self, asks: Sequence[Train]) -> None:
        fill(self._params_G, [ask.params for ask in asks])
        fill(self._buffers_G, [ask.buffers for ask in asks])
        fill(self._refs_G, [ask.refs for ask in asks], self._refs_axes)
        fill({"frozen": self._frozen_G}, [{"frozen": ask.frozen or {}} for ask in asks])
        for stepper in self._steppers.values():
            stepper.load([ask.memory for ask in asks])
        for total in self._totals_G.values():
            total.zero_()

    def _finish(self, found: list[Trained], active: int, counts: Sequence[int], rates: dict[str, list[list[float]]]) -> None:
        """What those have who take no further step, from the last one on; afterwards their rows are nobody's."""
        done = range(len(counts) - len(found) - 1, active - 1, -1)
        if not done:
            return
        numbers = torch.stack(list(self._totals_G.values())).tolist() if self._totals_G else []
        for client in done:
            steps = counts[client]
            moves = {group: times * (1 if steps else 0) for group, times in self._moves.items()}
            found.append(
                Trained(
                    params=row_of(self._params_G, client),
                    buffers=row_of(self._buffers_G, client),
                    memory={
                        name: values for group, stepper in self._steppers.items()
                        for name, values in stepper.memory_after(client, steps * moves.get(group, 0)).items()
                    },
                    num_steps=steps,
                    lr_sum={group: added([row[client] for row in table[:steps]], moves.get(group, 0)) for group, table in rates.items()},
                    metrics={name: total[client] / steps for name, total in zip(self._totals_G, numbers, strict=True)} if steps else {},
                )
            )  # fmt: skip


def _stretches(counts: Sequence[int], streams: dict[str, Batches]) -> Iterator[tuple[int, bool, int, int]]:
    """Neighbouring steps of the same clients, with or without short batches among them: (active, padded, start, count)."""

    def kind(step: int) -> tuple[int, bool]:
        active = sum(count > step for count in counts)
        return active, any(stream.padded(step, active) for stream in streams.values())

    start = 0
    for (active, padded), steps in groupby(range(max(counts, default=0)), kind):
        count = len(list(steps))
        yield active, padded, start, count
        start += count


def _width(active: int, most: int) -> int:
    """The smallest of a few widths that holds the active clients: halves of the whole; idle rows fill it."""
    width = most
    while (half := -(-width // 2)) >= active and half < width:
        width = half
    return width


def _keep(buffer_G: Tensor, value_G: Tensor) -> None:
    if (value_G.dtype, value_G.shape[1:]) != (buffer_G.dtype, buffer_G.shape[1:]):
        raise ValueError("it gives a buffer another shape or dtype than it had; keep both")
    buffer_G[: len(value_G)] = value_G
