"""Fixed places for what changes from step to step: batches, noise and rates of many steps, filled at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import TypeAlias

import torch
from torch import Tensor

from coterie.engine.answers import positions_of
from coterie.method import Batch, Examples, Train
from coterie.randomness import Key, Words, draw_many, words_of

_BYTES = {"cpu": 2**25, "cuda": 2**28}  # of a feed: enough that filling it is rare, little beside what a device has
_LONGEST = 128  # steps
_SHORT = 4  # steps of a feed for batches of an odd size, of which a pass has one

Sizes: TypeAlias = tuple[int, ...]
"""Rows of a step's batch, by stream."""
Step: TypeAlias = tuple[Tensor, ...]
"""The positions of a step's rows in every stream."""


class Feed:
    """The steps of one size of batch. `place` counts them on the device, so that a recorded step knows which one it is."""

    def __init__(self, ask: Train, streams: Mapping[str, Examples], first: Step, place: Tensor, dtype: torch.dtype) -> None:
        self._ask, self._place, self._dtype = ask, place, dtype
        self._sizes = dict(zip(streams, map(len, first), strict=True))
        self._rows = next(iter(self._sizes.values()), ask.batch_size)
        samples = {name: stream.rows(chosen[:1]) for (name, stream), chosen in zip(streams.items(), first, strict=True)}
        one = Key(0, ("shape",))
        drawn = {name: draw_many(words_of([one], place.device), 0, spec, self._rows, dtype) for name, spec in ask.noise.items()}
        whole = all(size == ask.batch_size for size in self._sizes.values())
        rows = [v.expand(self._sizes[name], *v.shape[1:]) for name, columns in samples.items() for v in columns.values()]
        self.capacity = min(capacity_of([*rows, *drawn.values()], place.device), _LONGEST if whole else _SHORT)
        self._columns = {
            name: {n: v.new_empty((self.capacity, self._sizes[name], *v.shape[1:])) for n, v in columns.items()}
            for name, columns in samples.items()
        }
        self._masks = {name: torch.ones(size, dtype=torch.bool, device=place.device) for name, size in self._sizes.items()}
        self._noise = {name: value.new_empty((self.capacity, *value.shape[1:])) for name, value in drawn.items()}
        self._rates = {group: place.new_zeros(self.capacity, dtype=torch.float64) for group in ask.params}

    def fill(
        self, streams: Mapping[str, Examples], steps: Sequence[Step], words: Mapping[str, Words], start: int, rates: Mapping[str, Tensor]
    ) -> None:
        """Steps number `start` and following of a training, at most `capacity`; `rates` are of all its steps."""
        count = len(steps)
        for place, (name, stream) in enumerate(streams.items()):
            gathered = stream.rows(torch.cat([step[place] for step in steps]))
            for column, value in gathered.items():
                self._columns[name][column][:count].copy_(value.reshape(count, self._sizes[name], *value.shape[1:]))
        numbers = torch.arange(start, start + count, device=self._place.device)[:, None]
        for name, (low, high) in words.items():
            own = low.expand(count, 1), high.expand(count, 1)
            self._noise[name][:count].copy_(draw_many(own, numbers, self._ask.noise[name], self._rows, self._dtype))
        for group, table in rates.items():
            self._rates[group][:count].copy_(table[start : start + count])
        self._place.zero_()

    def batch(self) -> Batch:
        """The batch of the step that `place` says."""
        batch: Batch = {
            name: {**{n: self._now(v) for n, v in columns.items()}, "mask": self._masks[name]}
            for name, columns in self._columns.items()
        }
        batch["noise"] = {name: self._now(value) for name, value in self._noise.items()}
        return batch

    def rates(self) -> dict[str, Tensor]:
        return {group: self._now(table) for group, table in self._rates.items()}

    def _now(self, table: Tensor) -> Tensor:
        return table.index_select(0, self._place)[0]


def steps_of(ask: Train, streams: Mapping[str, Examples], key: Key, count: int) -> list[Step]:
    """The rows of every step, in the reference's order."""
    orders: list[Iterator[Tensor]] = [
        positions_of(len(stream), ask.batch_size, key.fold("order", name)) for name, stream in streams.items()
    ]
    return list(islice(zip(*orders, strict=True), count)) if orders else [()] * count


def runs_of(steps: Sequence[Step]) -> Iterator[tuple[Sizes, list[Step]]]:
    """Neighbouring steps with batches of one size."""
    for sizes, run in groupby(steps, lambda step: tuple(map(len, step))):
        yield sizes, list(run)


def noise_words(ask: Train, key: Key, device: torch.device) -> dict[str, Words]:
    return {name: words_of([key.fold("noise", name)], device) for name in ask.noise}


def capacity_of(of_a_step: Iterable[Tensor], device: torch.device) -> int:
    """How many steps a feed holds whose every step needs these tensors."""
    size = sum(value.numel() * value.element_size() for value in of_a_step)
    return max(1, min(_BYTES.get(device.type, _BYTES["cpu"]) // max(size, 1), _LONGEST))
