"""A data set before anybody owns a part of it: one table of examples, with what is known about each."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.examples import View
from coterie.tensors import Tensors

Column: TypeAlias = NDArray[Any]
"""One value per row: a writer, a group, a method. Strings or integers."""

_KEEP_TOGETHER = ("group", "source_id", "video_id")


@dataclass(frozen=True, eq=False)
class Table:
    """Named examples: tensors that a model sees, and `meta`, what only partitions and checks look at.

    "x" may stay bytes when `decode` turns them into floats as a batch is gathered; "y" is int64.
    `central_test` is the official test split where the data set has one.
    """

    name: str
    columns: Tensors
    classes: tuple[str, ...] = ()
    meta: Mapping[str, Column] = field(default_factory=dict)
    decode: Callable[[Tensors], Tensors] | None = None
    central_test: Table | None = None

    def __post_init__(self) -> None:
        if not self.columns.get("y", torch.zeros(1)).numel():
            raise ValueError(f"Table '{self.name}' has no examples. Check its files and filters.")
        missing = [name for name in ("x", "y") if name not in self.columns]
        if missing:
            raise ValueError(f"Table '{self.name}' has no column {missing}, only {sorted(self.columns)}. Give 'x' and 'y'.")
        sizes = {name: len(column) for name, column in self.columns.items()}
        sizes |= {name: len(column) for name, column in self.meta.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"The columns of table '{self.name}' differ in length: {sizes}. Give one entry per row in each.")

    def __len__(self) -> int:
        return len(self.columns["y"])

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.columns["y"].numpy().astype(np.int64, copy=False)

    @property
    def num_classes(self) -> int:
        """As many as are named, or one more than the highest label of the table and its test set."""
        labels = [self.columns["y"]] + ([] if self.central_test is None else [self.central_test.columns["y"]])
        return len(self.classes) or 1 + max(int(part.max()) for part in labels if len(part))

    @property
    def together(self) -> str | None:
        """The column whose rows must stay on one client and in one part: frames of one video, versions of one photo."""
        return next((name for name in _KEEP_TOGETHER if name in self.meta), None)

    def column(self, name: str) -> Column:
        """A column of `meta`, or the label."""
        if name in self.meta:
            return self.meta[name]
        if name in ("y", "label"):
            return self.labels
        near = difflib.get_close_matches(name, list(self.meta), 1)
        hint = f"Did you mean '{near[0]}'?" if near else "Use one of these, or 'label'."
        raise ValueError(f"Data set '{self.name}' has no column '{name}', only {sorted(self.meta)}. {hint}")

    def rows(self, index: Column) -> Table:
        """A smaller table of these rows, copied."""
        chosen = torch.as_tensor(index, dtype=torch.int64)
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return replace(self, columns=columns, meta={name: column[chosen.numpy()] for name, column in self.meta.items()})

    def whole(self) -> View:
        return View(self.columns, torch.arange(len(self)), self.decode)

    def with_test_rows(self) -> Table:
        """Train and official test split as one table, as PFLlib does before it partitions; "split" says which is which."""
        if self.central_test is None:
            return self
        test = self.central_test
        meta = {name: np.concatenate([self.meta[name], test.meta[name]]) for name in self.meta if name in test.meta}
        meta.setdefault("split", np.repeat(np.array(["train", "test"]), [len(self), len(test)]))
        columns = {name: torch.cat([self.columns[name], test.columns[name]]) for name in self.columns}
        return replace(self, columns=columns, meta=meta, central_test=None)
