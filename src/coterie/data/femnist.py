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
from coterie.data.table import Table

_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)


def femnist(folder: Path, writers: Literal["all", "complete"] = "all") -> Table:
    """62 classes with the columns "writer" and "split". `writers="complete"` keeps those with training rows of LEAF."""
    if writers not in ("all", "complete"):
        raise ValueError(f"writers must be 'all' or 'complete', found '{writers}'. Use one of these.")
    path = folder if folder.suffix == ".npz" else next(iter(sorted(folder.glob("*.npz"))), folder / "part.npz")
    if not path.exists():
        raise ValueError(f"Folder '{folder}' has no .npz file. Put FEMNIST there as one .npz with x, y and writer.")
    with np.load(path, allow_pickle=False) as arrays:
        missing = [name for name in ("x", "y", "writer") if name not in arrays]
        if missing:
            raise ValueError(f"'{path}' has no array {missing}, only {sorted(arrays)}. Give x, y and writer.")
        x, y, writer = arrays["x"], arrays["y"].astype(np.int64), arrays["writer"]
        meta = {"writer": arrays["writer_ids"][writer] if "writer_ids" in arrays else writer}
        if "split" in arrays:
            meta["split"] = np.where(arrays["split"] == 1, "test", "train")
    table = Table("femnist", {"x": torch.from_numpy(x[:, None]), "y": torch.from_numpy(y)}, _CLASSES, meta, Pixels())
    if writers == "all" or "split" not in meta:
        return table
    return table.rows(np.flatnonzero(np.isin(writer, writer[meta["split"] == "train"])))
