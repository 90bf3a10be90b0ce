"""The idx files of MNIST and its relatives: four files, plain or gzipped (http://yann.lecun.com/exdb/mnist/)."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.examples import Pixels
from coterie.data.table import Table

_FASHION = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def fashion_mnist(folder: Path) -> Table:
    """Zalando's 60,000 + 10,000 grey pictures of clothes, 28x28 (Xiao et al. 2017, arXiv 1708.07747)."""
    return read_idx_folder(folder, "fashion_mnist", _FASHION)


def mnist(folder: Path) -> Table:
    """60,000 + 10,000 handwritten digits, 28x28 (LeCun et al. 1998)."""
    return read_idx_folder(folder, "mnist", tuple("0123456789"))


def read_idx_folder(folder: Path, name: str, classes: tuple[str, ...]) -> Table:
    """Train and test split as the four files `train-` and `t10k-` of `images-idx3-ubyte` and `labels-idx1-ubyte`."""

    def split(prefix: str, central_test: Table | None) -> Table:
        images = read_idx(_file(folder, f"{prefix}-images-idx3-ubyte"))
        labels = read_idx(_file(folder, f"{prefix}-labels-idx1-ubyte"))
        x = torch.from_numpy(images[:, None].copy())
        y = torch.from_numpy(labels.astype(np.int64))
        return Table(name, {"x": x, "y": y}, classes, decode=Pixels(), central_test=central_test)

    return split("train", split("t10k", None))


def read_idx(path: Path) -> NDArray[Any]:
    """One idx file: two zero bytes, a type, the number of dimensions, their sizes (big-endian), the values."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise ValueError(f"'{path}' is no idx file: it starts with {data[:4].hex() or 'nothing'}. Download it again.")
    dims = data[3]
    shape = struct.unpack(f">{dims}I", data[4 : 4 + 4 * dims]) if len(data) >= 4 + 4 * dims else (-1,)
    dtype = np.dtype(_TYPES[data[2]])
    expected = 4 + 4 * dims + int(np.prod(shape)) * dtype.itemsize
    if len(data) != expected:
        raise ValueError(f"'{path}' holds {len(data)} bytes, its header promises {expected}. Download it again.")
    return np.frombuffer(data, dtype, offset=4 + 4 * dims).reshape(shape)


def _file(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz", folder / name.replace("-idx", ".idx")):
        if candidate.exists():
            return candidate
    raise ValueError(f"Folder '{folder}' has no file '{name}' or '{name}.gz'. Put the four idx files there.")
