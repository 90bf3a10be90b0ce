"""The batches of G clients side by side: rows of one table, padded to one size, with a mask for what is real."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from coterie.data.examples import View
from coterie.tensors import Tensors


@dataclass(frozen=True, eq=False)
class Batches:
    """One stream of G clients: which rows of `columns` every client reads in every step."""

    columns: Tensors
    decode: Callable[[Tensors], Tensors] | None
    rows: Tensor  # [G, S, B]
    mask: Tensor  # [G, S, B]
    sizes: list[list[int]]  # of every client's real batches

    @classmethod
    def of(cls, views: Sequence[View], positions: Sequence[Iterable[Tensor]], num_steps: Sequence[int], batch: int) -> Batches:
        """`positions` gives every client's rows of its own view, step by step; a short batch is filled with its first row."""
        columns, indices = one_table(views)
        longest = max(num_steps, default=0)
        rows = torch.zeros(len(views), longest, batch, dtype=torch.long)
        mask = torch.zeros(len(views), longest, batch, dtype=torch.bool)
        sizes: list[list[int]] = []
        for client, (index, steps, count) in enumerate(zip(indices, positions, num_steps, strict=True)):
            sizes.append([])
            for step, chosen in enumerate(islice(steps, count)):
                found = index[chosen.to(index.device)]
                rows[client, step, : len(found)] = found.cpu()
                rows[client, step, len(found) :] = found[0].cpu()
                mask[client, step, : len(found)] = True
                sizes[-1].append(len(found))
        device = next(iter(columns.values())).device
        return cls(columns, views[0].decode, rows.to(device), mask.to(device), sizes)

    def steps(self, start: int, count: int, width: int) -> Tensors:
        """The columns of the first `width` clients in these steps, [count, width, B, ...], and the mask."""
        rows = self.rows[:width, start : start + count].transpose(0, 1)
        gathered = {name: column[rows.flatten()] for name, column in self.columns.items()}
        decoded = self.decode(gathered) if self.decode else gathered
        return {
            **{name: value.reshape(*rows.shape, *value.shape[1:]) for name, value in decoded.items()},
            "mask": self.mask[:width, start : start + count].transpose(0, 1),
        }

    def padded(self, step: int, width: int) -> bool:
        return any(self.sizes[client][step] < self.rows.shape[2] for client in range(width))


def one_table(views: Sequence[View]) -> tuple[Tensors, list[Tensor]]:
    """Columns that hold all rows of these views, and where in them every view's rows are."""
    first = views[0].columns
    if all(view.columns is first for view in views):
        return first, [view.index for view in views]
    columns = {name: torch.cat([view.columns[name][view.index.to(column.device)] for view in views]) for name, column in first.items()}
    places = torch.arange(sum(map(len, views)))
    return columns, list(torch.split(places, [len(view) for view in views]))


def in_turn(total: int, batch: int) -> Iterator[Tensor]:
    """Every row once, in order."""
    return iter(torch.split(torch.arange(total), batch))
