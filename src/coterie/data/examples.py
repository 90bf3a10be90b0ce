"""Views on one table of examples: ten thousand clients cost ten thousand index lists, not copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import torch
from torch import Tensor

from coterie.tensors import Tensors


@dataclass(frozen=True)
class Pixels:
    """Bytes 0..255 in the column "x" become floats: (x / 255 - mean) / std, per channel where several are given."""

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __call__(self, columns: Tensors) -> Tensors:
        x = columns["x"]
        shape = (1, -1) + (1,) * (x.dim() - 2)
        mean = torch.tensor(self.mean, dtype=torch.float32, device=x.device).view(shape)
        std = torch.tensor(self.std, dtype=torch.float32, device=x.device).view(shape)
        return {**columns, "x": (x.float() / 255.0 - mean) / std}


@dataclass(frozen=True)
class InPrecision:
    """Another decoder, with its floats in this precision."""

    decode: Callable[[Tensors], Tensors]
    dtype: torch.dtype

    def __call__(self, columns: Tensors) -> Tensors:
        return {n: v.to(self.dtype) if v.is_floating_point() else v for n, v in self.decode(columns).items()}


@dataclass(frozen=True, eq=False)
class View:
    """The rows `index` of shared columns, decoded by `decode` when they are gathered."""

    columns: Tensors
    index: Tensor
    decode: Callable[[Tensors], Tensors] | None = None

    def __len__(self) -> int:
        return int(self.index.numel())

    def rows(self, positions: Tensor) -> Tensors:
        chosen = self.index[positions.to(self.index.device)]
        gathered = {name: column[chosen.to(column.device)] for name, column in self.columns.items()}
        return self.decode(gathered) if self.decode else gathered

    def all_rows(self) -> Tensors:
        return self.rows(torch.arange(len(self)))

    def column(self, name: str) -> Tensor:
        """One raw column, not decoded (labels, for counts)."""
        return self.columns[name][self.index.to(self.columns[name].device)]


def whole(columns: Tensors, decode: Callable[[Tensors], Tensors] | None = None) -> View:
    """All rows of these columns."""
    count = len(next(iter(columns.values())))
    return View(columns, torch.arange(count), decode)


@dataclass(frozen=True, eq=False)
class ClientParts:
    """A client's own train, validation and test rows."""

    train: View
    validation: View
    test: View
    tainted: View | None = None  # what an attacker trains on instead of `train`
    triggered: View | None = None  # test rows with a backdoor's trigger, labelled with what the attacker wants

    def views(self) -> list[View]:
        return [view for view in (getattr(self, f.name) for f in fields(self)) if view is not None]

    def mapped(self, change: Callable[[View], View]) -> ClientParts:
        """The same parts with every view changed."""
        return replace(self, **{f.name: change(view) for f in fields(self) if (view := getattr(self, f.name)) is not None})


@dataclass(frozen=True)
class Finding:
    """What a check of a population found: a "leak" makes results worthless, a "warning" should be known, a "note" says
    what was not checked."""

    level: Literal["leak", "warning", "note"]
    kind: str
    count: int
    text: str


@dataclass(frozen=True, eq=False)
class Population:
    """All clients of a run, and what the server holds: a central test set and public data."""

    name: str
    names: tuple[str, ...]
    parts: Sequence[ClientParts]
    num_classes: int | None = None
    classes: tuple[str, ...] = ()
    central_test: View | None = None
    public: dict[str, View] = field(default_factory=dict)
    partition: str = ""
    findings: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        if len(self.names) != len(self.parts):
            raise ValueError(f"{len(self.names)} names for {len(self.parts)} clients. Give one name per client.")
        for name, parts in zip(self.names, self.parts, strict=True):
            if len(parts.train) == 0:
                raise ValueError(f"Client '{name}' has no training examples. Use fewer clients, a larger beta, or min_size.")

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[ClientParts]:
        return iter(self.parts)

    def tables(self) -> list[Tensors]:
        """Every distinct set of columns behind the views (to move them to a device or into shared memory once)."""
        views = [view for parts in self.parts for view in parts.views()]
        views += [*self.public.values(), *([self.central_test] if self.central_test is not None else [])]
        return list({id(view.columns): view.columns for view in views}.values())

    def moved(self, move: Callable[[Tensor], Tensor], *, decoded: torch.dtype | None = None) -> Population:
        """The same population with every column moved once by `move`, and what is decoded given in another precision."""
        moved = {id(table): {name: move(column) for name, column in table.items()} for table in self.tables()}

        def view(old: View) -> View:
            decode = InPrecision(old.decode, decoded) if old.decode and decoded else old.decode
            return replace(old, columns=moved[id(old.columns)], decode=decode)

        return replace(
            self,
            parts=[parts.mapped(view) for parts in self.parts],
            central_test=None if self.central_test is None else view(self.central_test),
            public={name: view(old) for name, old in self.public.items()},
        )
