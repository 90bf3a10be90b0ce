"""A data set before anybody owns a part of it: one table of examples, with what is known about each."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.examples import Finding, View
from coterie.tensors import Tensors

Column: TypeAlias = NDArray[Any]
"""One value per row: a writer, a group, a method. Strings or integers."""

KEEP_TOGETHER = ("group", "source_id", "video_id")
"""Columns that name one recording or picture and what was made from it."""

_MAX_CLASSES = 100_000  # unnamed; more are labels that were not numbered from 0, and would fill the memory with counts


def known_or_alone(name: str, values: Sequence[str]) -> Column:
    """A column of texts; where it says what belongs together, a row without a value belongs to no other."""
    if name in (*KEEP_TOGETHER, "identity"):
        values = [value or f"(row {row})" for row, value in enumerate(values)]
    return np.array(values)


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
    findings: tuple[Finding, ...] = ()  # what should be known of how it was read

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
        self._check_values()
        if self.central_test is not None:
            shapes = [list(table.columns["x"].shape[1:]) for table in (self, self.central_test)]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"The examples of table '{self.name}' have shape {shapes[0]}, those of its central test set {shapes[1]}. "
                    "Give both one shape (pictures: size=N)."
                )

    def _check_values(self) -> None:
        y = self.columns["y"]
        if y.dim() != 1 or y.is_floating_point():
            found = f"{y.dtype} of shape {list(y.shape)}"
            raise ValueError(f"The labels of table '{self.name}' are {found}. Give one whole number per example.")
        limit = len(self.classes) or _MAX_CLASSES
        wrong = ((y < 0) | (y >= limit)).nonzero().flatten()
        if len(wrong):
            known = f"{limit} named classes" if self.classes else "labels from 0 on"
            raise ValueError(
                f"Label {int(y[wrong[0]])} in row {int(wrong[0])} of table '{self.name}' ({len(wrong)} such rows) does not fit its "
                f"{known}. Number the classes from 0 without gaps, and name all or none."
            )
        for name, column in self.columns.items():
            if column.is_floating_point() and not torch.isfinite(column).all():
                rows = (~torch.isfinite(column)).reshape(len(column), -1).any(dim=1).nonzero().flatten()
                raise ValueError(
                    f"Column '{name}' of table '{self.name}' holds NaN or infinite numbers in {len(rows)} rows, the first is row "
                    f"{int(rows[0])}. Remove or correct them."
                )

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
        """The column whose rows must stay on one client and in one part: frames of one video, versions of one photo.

        Of several such columns, the one whose values hold those of the others whole; where there is none, the first.
        """
        present = [name for name in KEEP_TOGETHER if name in self.meta]
        if len(present) < 2:
            return present[0] if present else None
        numbers = {name: np.unique(self.meta[name], return_inverse=True)[1] for name in present}

        def holds(wide: str, narrow: str) -> bool:
            pairs = numbers[narrow] * len(self) + numbers[wide]
            return len(np.unique(pairs)) == len(np.unique(numbers[narrow]))

        return next((wide for wide in present if all(holds(wide, narrow) for narrow in present)), present[0])

    def column(self, name: str) -> Column:
        """A column of `meta`, or the label."""
        if name in self.meta:
            return self.meta[name]
        if name in ("y", "label"):
            return self.labels
        near = difflib.get_close_matches(name, list(self.meta), 1)
        hint = f"Did you mean '{near[0]}'?" if near else "Use one of these."
        raise ValueError(f"Data set '{self.name}' has no column '{name}', only {sorted([*self.meta, 'label'])}. {hint}")

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
        return replace(self, columns=columns, meta=meta, central_test=None, findings=self.findings + test.findings)
