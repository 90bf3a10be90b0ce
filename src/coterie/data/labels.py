"""Labels as data sets write them, whole numbers or names, and as models need them: 0, 1, 2 ..."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def whole_numbers(values: ArrayLike, where: str) -> NDArray[np.int64]:
    """One whole number per example, whatever integer or float type holds it; `where` names the place in errors."""
    found = np.asarray(values)
    if found.ndim != 1:
        raise ValueError(f"The labels of {where} have shape {list(found.shape)}. Give one whole number per example.")
    if found.dtype.kind not in "iubf":
        raise ValueError(f"The labels of {where} are of type {found.dtype}. Give one whole number per example.")
    if found.dtype.kind == "f":
        broken = np.flatnonzero(~(np.abs(found) < 2**53) | (found != np.floor(found)))
        if len(broken):
            raise ValueError(
                f"Label {found[broken[0]]} of {where} (example {broken[0]}) is no whole number. Give one whole number per example."
            )
    return found.astype(np.int64)


def numbered(values: Sequence[str], classes: Sequence[str], where: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """(numbers, class names) of labels written as text: whole numbers stay, names are numbered in alphabetical order.

    With `classes`, names are numbered in their order.
    """
    blank = [place for place, value in enumerate(values) if not value.strip()]
    if blank:
        raise ValueError(f"{len(blank)} of {len(values)} labels of {where} are empty, the first is label {blank[0] + 1}. Fill them in.")
    names = tuple(classes)
    if not set(values) <= set(names) and all(value.isascii() and value.isdecimal() for value in values):
        largest = max(map(int, values), default=0)
        if largest >= (len(names) or 2**62):
            raise ValueError(f"Label {largest} of {where} is not among the {len(names)} named classes. Name every class, or none.")
        return np.array([int(value) for value in values], dtype=np.int64), names
    names = names or tuple(sorted(set(values)))
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise ValueError(f"The labels {unknown[:3]} of {where} are not among the classes {list(names)[:10]}. Name every class, or none.")
    place = {name: number for number, name in enumerate(names)}
    return np.array([place[value] for value in values], dtype=np.int64), names
