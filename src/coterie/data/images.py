"""JPEG and PNG files or bytes as one tensor of bytes [N, 3, H, W]; the only place that needs Pillow."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def decode_images(sources: Sequence[bytes | Path], size: int | None = None) -> Tensor:
    """Decode pictures (grey ones become RGB), resized to `size` x `size` if given.

    Without `size` all must be equally large, because they become one tensor.
    """
    if not sources:
        raise ValueError("There are no pictures to read. Check the index and the filters.")
    pillow = _pillow()
    first = _decode(pillow, sources[0], size)
    out = np.empty((len(sources), 3, *first.shape[:2]), dtype=np.uint8)

    for place, source in enumerate(sources):
        picture = _decode(pillow, source, size)
        if picture.shape != first.shape:
            raise ValueError(
                f"Pictures differ in size: {first.shape[1]}x{first.shape[0]} and {picture.shape[1]}x{picture.shape[0]}"
                f"{_named(source)}. Give size=N to make all N x N."
            )
        out[place] = picture.transpose(2, 0, 1)
    return torch.from_numpy(out)


def inside(folder: Path, paths: Sequence[str]) -> list[Path]:
    """These paths under `folder`; one that leaves it or does not exist is an error that names it."""
    root = folder.resolve()
    files = [(root / path).resolve() for path in paths]
    outside = [path for path, file in zip(paths, files, strict=True) if not file.is_relative_to(root)]
    if outside:
        raise ValueError(
            f"{len(outside)} paths of the index leave the data folder '{folder}', such as '{outside[0]}'. "
            "Use paths relative to that folder, without '..'."
        )
    missing = [path for path, file in zip(paths, files, strict=True) if not file.is_file()]
    if missing:
        shown = ", ".join(f"'{path}'" for path in missing[:3])
        raise ValueError(
            f"{len(missing)} of {len(paths)} files of the index do not exist in '{folder}', such as {shown}. "
            "Correct the index or restore the files."
        )
    return files


def _decode(pillow: ModuleType, source: bytes | Path, size: int | None) -> NDArray[Any]:
    try:
        with pillow.open(io.BytesIO(source) if isinstance(source, bytes) else source) as opened:
            picture = opened.convert("RGB")
            if size is not None and picture.size != (size, size):
                picture = picture.resize((size, size), pillow.Resampling.BILINEAR)
            return np.asarray(picture)
    except OSError as error:
        raise ValueError(f"A picture cannot be decoded{_named(source)}: {error}. Replace or remove it.") from error


def _named(source: bytes | Path) -> str:
    return f" ('{source}')" if isinstance(source, Path) else ""


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError as error:
        raise ValueError("Reading pictures needs Pillow. Install it with: pip install 'coterie[vision]'") from error
    return Image
