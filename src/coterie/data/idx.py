"""The idx files of MNIST and its relatives: four files, plain or gzipped (http://yann.lecun.com/exdb/mnist/)."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.examples import Pixels
from coterie.data.files import first_line, read_bytes
from coterie.data.labels import whole_numbers
from coterie.data.table import Table

_FASHION = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"


def fashion_mnist(folder: Path) -> Table:
    """Zalando's 60,000 + 10,000 grey pictures of clothes, 28x28 (Xiao et al. 2017, arXiv 1708.07747)."""
    return read_idx_folder(folder, "fashion_mnist", _FASHION)


def mnist(folder: Path) -> Table:
    """60,000 + 10,000 handwritten digits, 28x28 (LeCun et al. 1998)."""
    return read_idx_folder(folder, "mnist", tuple("0123456789"))


def read_idx_folder(folder: Path, name: str, classes: tuple[str, ...]) -> Table:
    """Train and test split as the four files `train-` and `t10k-` of `images-idx3-ubyte` and `labels-idx1-ubyte`."""

    def split(prefix: str, central_test: Table | None) -> Table:
        pictures, numbers = _file(folder, f"{prefix}-images-idx3-ubyte"), _file(folder, f"{prefix}-labels-idx1-ubyte")
        images, labels = read_idx(pictures), read_idx(numbers)
        if images.ndim != 3 or images.dtype != np.uint8:
            found = f"{images.dtype.name} of shape {list(images.shape)}"
            raise ValueError(f"'{pictures}' holds {found}, not grey pictures (bytes [N, height, width]). Download it again.")
        if labels.shape != (len(images),):
            raise ValueError(
                f"'{numbers}' holds labels of shape {list(labels.shape)} for the {len(images)} pictures in '{pictures.name}'. "
                "Use files of one data set and split."
            )
        x, y = torch.from_numpy(images[:, None].copy()), torch.from_numpy(whole_numbers(labels, f"'{numbers}'"))
        return Table(name, {"x": x, "y": y}, classes, decode=Pixels(), central_test=central_test)

    return split("train", split("t10k", None))


def read_idx(path: Path) -> NDArray[Any]:
    """One idx file: two zero bytes, a type, the number of dimensions, their sizes (big-endian), the values."""
    data = read_bytes(path)
    if data[:2] == _GZIP:  # whatever the name says: browsers unpack a .gz and keep its name
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"'{path}' is a damaged gzip file ({first_line(error)}). Download it again.") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise ValueError(f"'{path}' is no idx file: it starts with {data[:4].hex() or 'nothing'}. Download it again.")
    dtype, start = np.dtype(_TYPES[data[2]]), 4 + 4 * data[3]
    if len(data) < start:
        raise ValueError(f"'{path}' ends within its header, after {len(data)} of {start} bytes. Download it again.")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    expected = start + math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise ValueError(f"'{path}' holds {len(data)} bytes, its header promises {expected}. Download it again.")
    try:
        return np.frombuffer(data, dtype, offset=start).reshape(shape)
    except ValueError as error:  # sizes with a zero among them promise nothing, and may still be too large or too many
        raise ValueError(f"'{path}' has {len(shape)} dimensions of impossible sizes in its header. Download it again.") from error


def _file(folder: Path, name: str) -> Path:
    """The file under one of its usual names; torchvision keeps them in a subfolder `raw`."""
    dotted = name.replace("-idx", ".idx")
    for place in (folder, folder / "raw", *sorted(folder.glob("*/raw"))):
        for candidate in (name, f"{name}.gz", dotted, f"{dotted}.gz"):
            if (place / candidate).is_file():
                return place / candidate
    raise ValueError(f"Folder '{folder}' has no file '{name}' or '{name}.gz'. Put the four idx files there.")
