"""One kind of training on tensors that stay where they are, so that its step can be recorded and replayed for every client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from coterie.engine.answers import as_examples, count_steps, laid_out, place_of
from coterie.engine.graph.feed import Feed, Sizes, Step, noise_words, runs_of, steps_of
from coterie.engine.graph.steps import FixedStepper
from coterie.engine.optim import added, rate
from coterie.engine.recording import Track, Unrecordable
from coterie.engine.step import optimizer, take_step
from coterie.method import Examples, Net, Round, Train, Trained
from coterie.randomness import Key
from coterie.tensors import Groups, Tensors, clone_groups, copied_to


class Program:
    """Answers every Train of one signature, one after another; raises `Unrecordable` where that can't be done."""

    def __init__(self, ask: Train, net: Net) -> None:
        self._device, self._dtype = place_of(ask.params)
        self._params = laid_out(clone_groups(ask.params), net)
        self._buffers = copied_to(self._device, ask.buffers)
        # on the device all of them: a number that stayed with the processor would become part of the recording
        self._refs = laid_out(copied_to(self._device, ask.refs), net)
        self._frozen = None if ask.frozen is None else copied_to(self._device, {"": ask.frozen})[""]
        self._net = net
        self._ask = replace(  # the functions of the step, beside what they may not find elsewhere
            ask, params=self._params, buffers=self._buffers, refs=self._refs, frozen=self._frozen,
            memory=None, streams={}, epochs=None, steps=0,
        )  # fmt: skip
        self._steppers = {
            group: FixedStepper(group, values, optimizer(ask, group), self._device) for group, values in self._params.items()
        }
        self._place = torch.zeros(1, dtype=torch.long, device=self._device)
        self._totals: Tensors = {}
        self._moves: Counter[str] = Counter()  # how often a step moves each group
        self._tracks: dict[Sizes, tuple[Feed, Track]] = {}

    def answer(self, ask: Train, round: Round, key: Key) -> Trained:
        """What the reference gives for this ask."""
        streams = {name: as_examples(stream) for name, stream in ask.streams.items()}
        count = count_steps(ask, streams)
        rates = {group: [rate(optimizer(ask, group), round, step, count) for step in range(count)] for group in self._params}
        tables = {group: torch.tensor(values, dtype=torch.float64, device=self._device) for group, values in rates.items()}
        words = noise_words(ask, key, self._device)
        self._load(ask)
        start = 0
        for sizes, steps in runs_of(steps_of(ask, streams, key, count)):
            feed, track = self._track(ask, streams, sizes, steps[0])
            for part in _parts(steps, feed.capacity):
                feed.fill(streams, part, words, start, tables)
                track.take(len(part))
                start += len(part)
        return self._trained(count, rates)

    def _track(self, ask: Train, streams: Mapping[str, Examples], sizes: Sizes, first: Step) -> tuple[Feed, Track]:
        """All steps with batches of these sizes."""
        if sizes not in self._tracks:
            feed = Feed(ask, streams, first, self._place, self._dtype)
            self._tracks[sizes] = feed, Track(lambda: self._step(feed), self._state, self._device)
        return self._tracks[sizes]

    def _state(self) -> list[Tensor]:
        """All that a step writes."""
        named = [value for groups in (self._params, self._buffers) for values in groups.values() for value in values.values()]
        return [*named, *(v for stepper in self._steppers.values() for v in stepper.state()), *self._totals.values(), self._place]

    def _step(self, feed: Feed) -> None:
        net = self._net if self._frozen is None else self._net.freezing(self._frozen)
        taken = take_step(self._ask, net, self._params, self._buffers, feed.batch(), self._steppers, feed.rates())
        self._keep(taken.buffers)
        for name, value in taken.told.items():
            if name not in self._totals:
                self._totals[name] = torch.zeros_like(value, dtype=torch.float64)
            self._totals[name] += value
        self._moves = Counter(taken.moved)
        self._place += 1

    def _keep(self, buffers: Groups) -> None:
        for group, values in buffers.items():
            own = self._buffers.get(group, {})
            shapes = [{name: (value.shape, value.dtype) for name, value in each.items()} for each in (own, values)]
            if shapes[0] != shapes[1]:
                raise Unrecordable("it gives a buffer another name, shape or dtype than it had; keep all three")
            for name, value in values.items():
                own[name].copy_(value)

    def _load(self, ask: Train) -> None:
        given = ((self._params, ask.params), (self._buffers, ask.buffers), (self._refs, ask.refs))
        for own, groups in given:
            for group, values in groups.items():
                for name, value in values.items():
                    own[group][name].copy_(value.detach())
        for name, flag in (ask.frozen or {}).items():
            assert self._frozen is not None, "the signature says whether anything is frozen"
            self._frozen[name].copy_(flag)
        for stepper in self._steppers.values():
            stepper.load(ask.memory)
        for total in self._totals.values():
            total.zero_()

    def _trained(self, count: int, rates: Mapping[str, list[float]]) -> Trained:
        moves = self._moves if count else Counter()
        lr_sum = {group: added(values, moves[group]) for group, values in rates.items()}
        memory = {n: v for group, stepper in self._steppers.items() for n, v in stepper.memory_after(count * moves[group]).items()}
        numbers = torch.stack(list(self._totals.values())).tolist() if self._totals and count else []
        metrics = {name: number / count for name, number in zip(self._totals, numbers, strict=bool(numbers))}
        return Trained(_copied(self._params), _copied(self._buffers), _copied(memory), count, lr_sum, metrics)


def _parts(steps: list[Step], size: int) -> Iterator[list[Step]]:
    for start in range(0, len(steps), size):
        yield steps[start : start + size]


def _copied(groups: Groups) -> Groups:
    """Tensors of their own, as they would arrive over a wire."""
    return {g: {n: v.clone(memory_format=torch.contiguous_format) for n, v in values.items()} for g, values in groups.items()}
