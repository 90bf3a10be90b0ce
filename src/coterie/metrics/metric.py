"""What a metric is: a value that turns one client's predictions into named numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

from coterie.tensors import Tensors

Direction: TypeAlias = Literal["max", "min"]
"""Which end of a number is the good one; "worst" and "best" anywhere in the package mean this."""


class Metric(Protocol):
    """A frozen dataclass with a `__call__`; it sees one client's examples at a time, on any device.

    A number that is not defined for this client (AUROC of a client with one class) is nan: it is skipped over
    clients, and the skipped are counted. A model that broke (nan in its output) is not undefined but bad: its
    rows count as wrong and its loss is inf, so that skipping cannot flatter a method that diverges.
    """

    @property
    def main(self) -> str:
        """The number that runs are compared by."""

    @property
    def directions(self) -> Mapping[str, Direction]:
        """Every number that has a good and a bad end; one without (a prevalence) is only printed."""

    def __call__(self, predictions: Tensors, columns: Tensors) -> dict[str, float]: ...
