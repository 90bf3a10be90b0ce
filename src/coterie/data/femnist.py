"""Handwritten characters by writer: LEAF's FEMNIST (Caldas et al. 2018, arXiv 1812.01097) as one `.npz`.

Arrays: `x` uint8 [N, 28, 28] (paper is white = 255, as in LEAF and the inverse of MNIST), `y` 0-61 (digits,
capitals, small letters), `writer` int, and optionally `split` (0 train, 1 test: LEAF's own) and `writer_ids`.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from coterie.data.examples import Pixels
from coterie.data.files import npz_arrays, the_npz
from coterie.data.labels import whole_numbers
from coterie.data.table import Column, Table

_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_NEEDED = ("x", "y", "writer")
_ADVICE = "Give x (bytes [N, 28, 28]), y (0-61) and writer, with one entry each per picture."


def femnist(folder: Path, writers: Literal["all", "complete"] = "all") -> Table:
    """62 classes with the columns "writer" and "split". `writers="complete"` keeps those with training rows of LEAF."""
    if writers not in ("all", "complete"):
        raise ValueError(f"writers must be 'all' or 'complete', found '{writers}'. Use one of these.")
    path = the_npz(folder, _ADVICE)
    arrays = npz_arrays(path, _NEEDED, _ADVICE, ("split", "writer_ids"))
    x = arrays["x"]
    if x.dtype != np.uint8 or x.ndim != 3:
        raise ValueError(f"'x' in '{path}' is {x.dtype} of shape {list(x.shape)}, not bytes [N, 28, 28]. {_ADVICE}")
    columns = {name: whole_numbers(arrays[name], f"'{name}' in '{path}'") for name in ("y", "writer", "split") if name in arrays}
    short = {name: len(column) for name, column in columns.items() if len(column) != len(x)}
    if short:
        raise ValueError(f"'{path}' has {len(x)} pictures, but entries for others: {short}. {_ADVICE}")
    writer = columns["writer"]
    meta: dict[str, Column] = {"writer": _names(writer, arrays["writer_ids"], path) if "writer_ids" in arrays else writer}
    if "split" in columns:
        other = sorted(set(columns["split"].tolist()) - {0, 1})
        if other:
            raise ValueError(f"'split' in '{path}' holds {other[:3]}, not only 0 (train) and 1 (test). {_ADVICE}")
        meta["split"] = np.where(columns["split"] == 1, "test", "train")
    table = Table("femnist", {"x": torch.from_numpy(x[:, None]), "y": torch.from_numpy(columns["y"])}, _CLASSES, meta, Pixels())
    if writers == "all" or "split" not in meta:
        return table
    return table.rows(np.flatnonzero(np.isin(writer, writer[meta["split"] == "train"])))


def _names(writer: Column, names: Column, path: Path) -> Column:
    """The name of each row's writer."""
    wrong = (writer < 0) | (writer >= names.size)
    if names.ndim != 1 or wrong.any():
        found = f"writer {writer[wrong][0]} and {names.size} names" if wrong.any() else f"names of shape {list(names.shape)}"
        raise ValueError(f"'writer' in '{path}' must number the entries of 'writer_ids' from 0, found {found}. {_ADVICE}")
    if len(set(names.tolist())) < len(names):
        raise ValueError(f"'writer_ids' in '{path}' names {len(names)} writers with {len(set(names.tolist()))} names. {_ADVICE}")
    return names[writer]
