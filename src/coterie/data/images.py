"""JPEG, PNG and other picture files or bytes as one tensor of bytes [N, 3, H, W]; the only place that needs Pillow."""

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

from coterie.data.files import first_line, read_bytes

_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP")  # not all that Pillow knows: some start other programs


def decode_images(sources: Sequence[bytes | Path], size: int | None = None, where: str = "") -> Tensor:
    """Decode pictures (grey ones become RGB), resized to `size` x `size` if given; `where` completes errors.

    Without `size` all must be equally large, because they become one tensor.
    """
    if not sources:
        raise ValueError("There are no pictures to read. Check the index and the filters.")
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1, found {size}. Use the side of a picture, such as 64.")
    pillow = _pillow()
    first = _decode(pillow, sources[0], size, _named(sources[0], 0, where))
    try:
        out = np.empty((len(sources), 3, *first.shape[:2]), dtype=np.uint8)
    except MemoryError as error:
        each = f"{first.shape[1]}x{first.shape[0]}"
        raise ValueError(f"{len(sources)} pictures of {each} do not fit into memory. Give size=N to make all N x N.") from error
    for place, source in enumerate(sources):
        named = _named(source, place, where)
        picture = _decode(pillow, source, size, named)
        if picture.shape != first.shape:
            raise ValueError(
                f"Pictures differ in size: {first.shape[1]}x{first.shape[0]} and {picture.shape[1]}x{picture.shape[0]}"
                f"{named}. Give size=N to make all N x N."
            )
        out[place] = picture.transpose(2, 0, 1)
    return torch.from_numpy(out)


def inside(folder: Path, paths: Sequence[str]) -> list[Path]:
    """These paths under `folder`; one that leaves it (also through a link) or does not exist is an error that names it."""
    root = folder.resolve()
    files = [_resolved(root, path) for path in paths]
    outside = [path for path, file in zip(paths, files, strict=True) if file is not None and not file.is_relative_to(root)]
    if outside:
        raise ValueError(
            f"{len(outside)} paths of the index leave the data folder '{folder}', such as '{outside[0]}'. "
            "Use paths relative to that folder, without '..'."
        )
    found = [file for file in files if file is not None and _is_file(file)]
    if len(found) < len(paths):
        missing = [path for path, file in zip(paths, files, strict=True) if file is None or not _is_file(file)]
        shown = ", ".join(repr(path[:100]) for path in missing[:3])
        raise ValueError(
            f"{len(missing)} of {len(paths)} files of the index do not exist in '{folder}', such as {shown}. "
            "Correct the index or restore the files."
        )
    return found


def _resolved(root: Path, path: str) -> Path | None:
    """Where a path leads; nowhere if it is a circle of links, or holds characters that no name may have."""
    try:
        return (root / path).resolve()
    except (OSError, ValueError, RuntimeError):
        return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def _decode(pillow: ModuleType, source: bytes | Path, size: int | None, named: str) -> NDArray[Any]:
    data = source if isinstance(source, bytes) else read_bytes(source)
    try:
        with pillow.open(io.BytesIO(data), formats=_FORMATS) as opened:
            picture = _eight_bits(pillow, opened).convert("RGB")
            if size is not None and picture.size != (size, size):
                picture = picture.resize((size, size), pillow.Resampling.BILINEAR)
            return np.asarray(picture)
    except Exception as error:  # damage, and pictures too large to be meant, give whatever a format's reader stumbles over
        said = first_line(error)
        what = "it is no picture of a known format" if "cannot identify" in said else said
        raise ValueError(f"A picture cannot be decoded{named}: {what}. Replace or remove it.") from error


def _eight_bits(pillow: ModuleType, picture: Any) -> Any:
    """Pillow would cut values of 16 bits off at 255, and make nearly every pixel white."""
    if not picture.mode.startswith("I;16"):
        return picture
    return pillow.fromarray((np.asarray(picture) >> 8).astype(np.uint8))


def _named(source: bytes | Path, place: int, where: str) -> str:
    return f" ('{source}')" if isinstance(source, Path) else f" (picture {place}{where}, counted from 0)"


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError as error:
        raise ValueError("Reading pictures needs Pillow. Install it with: pip install 'coterie[vision]'") from error
    return Image
