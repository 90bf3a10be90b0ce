"""Fixed places for the batches, noise and rates of many steps of many clients, filled at once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from coterie.engine.graph.feed import capacity_of
from coterie.engine.stacked.batches import Batches
from coterie.method import Batch, Train
from coterie.randomness import Words, draw_many
from coterie.tensors import Tensors


class StackedFeed:
    """The steps of the first `width` clients. `place` counts them on the device, so that a recorded step knows which one it is."""

    def __init__(self, ask: Train, streams: Mapping[str, Batches], width: int, place: Tensor, dtype: torch.dtype) -> None:
        self._ask, self._width, self._place, self._dtype = ask, width, place, dtype
        samples = {name: stream.steps(0, 1, width) for name, stream in streams.items()}
        one = torch.zeros(width, 1, dtype=torch.long, device=place.device)
        drawn = {name: self._draw(name, (one, one), one[:1, 0], 1) for name in ask.noise}
        self.capacity = capacity_of([*(v for columns in samples.values() for v in columns.values()), *drawn.values()], place.device)
        self._columns = {
            name: {n: v.new_empty((self.capacity, *v.shape[1:])) for n, v in columns.items()} for name, columns in samples.items()
        }
        self._noise = {name: value.new_empty((self.capacity, *value.shape[1:])) for name, value in drawn.items()}
        self._rates = {group: torch.zeros(self.capacity, width, dtype=torch.float64, device=place.device) for group in ask.params}

    def fill(
        self, streams: Mapping[str, Batches], words: Mapping[str, Words], start: int, count: int, rates: Mapping[str, Tensor]
    ) -> None:
        """Steps number `start` and following, at most `capacity`; `rates` are of all steps and all clients."""
        for name, stream in streams.items():
            for column, value in stream.steps(start, count, self._width).items():
                self._columns[name][column][:count].copy_(value)
        numbers = torch.arange(start, start + count, device=self._place.device)
        for name, (low, high) in words.items():
            self._noise[name][:count].copy_(self._draw(name, (low[: self._width], high[: self._width]), numbers, count))
        for group, table in rates.items():
            self._rates[group][:count].copy_(table[start : start + count, : self._width])
        self._place.zero_()

    def _draw(self, name: str, words: Words, numbers: Tensor, count: int) -> Tensor:
        """[steps, clients, ...]: as many numbers as a whole batch needs; those of a short one are the first of them."""
        low, high = (word.repeat(count, 1) for word in words)
        step = numbers.repeat_interleave(self._width)[:, None]
        drawn = draw_many((low, high), step, self._ask.noise[name], self._ask.batch_size, self._dtype)
        return drawn.reshape(count, self._width, *drawn.shape[1:])

    def batch(self) -> Batch:
        """The batches of the step that `place` says, [clients, rows, ...]."""
        batch: Batch = {name: self._now(columns) for name, columns in self._columns.items()}
        batch["noise"] = self._now(self._noise)
        return batch

    def rates(self) -> Tensors:
        return self._now(self._rates)

    def _now(self, tables: Mapping[str, Tensor]) -> Tensors:
        return {name: table.index_select(0, self._place)[0] for name, table in tables.items()}
