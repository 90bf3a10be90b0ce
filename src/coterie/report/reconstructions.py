"""Original pictures beside what attacks made of their gradients: one SVG, the pictures inside it as PNG."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.float64]
"""[C, H, W] in [0, 1], grey or RGB."""

_SIDE, _GAP, _LEFT, _TOP, _CAPTION = 72, 10, 190, 62, 30


@dataclass(frozen=True, eq=False)
class Strip:
    """One row of the picture: what it is, and one picture per column with a caption."""

    name: str
    pictures: Sequence[Pixels]
    captions: Sequence[str]


def reconstructions_svg(strips: Sequence[Strip], title: str, subtitle: str) -> str:
    columns = max(len(strip.pictures) for strip in strips)
    width = max(_LEFT + columns * (_SIDE + _GAP) + _GAP, 20 + 7 * len(subtitle))
    height = _TOP + len(strips) * (_SIDE + _CAPTION + _GAP)
    body = [f'<rect width="{width}" height="{height}" fill="#ffffff"/>', _text(20, 26, title, 15, 600), _text(20, 46, subtitle, 11)]
    for row, strip in enumerate(strips):
        y = _TOP + row * (_SIDE + _CAPTION + _GAP)
        body.append(_text(20, y + _SIDE / 2, strip.name, 12, 600))
        for column, (pixels, caption) in enumerate(zip(strip.pictures, strip.captions, strict=True)):
            x = _LEFT + column * (_SIDE + _GAP)
            data = base64.b64encode(png(pixels)).decode()
            body.append(
                f'<image x="{x}" y="{y}" width="{_SIDE}" height="{_SIDE}" style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>'
            )
            for line, words in enumerate(caption.split("\n")):
                body.append(_text(x, y + _SIDE + 12 + 12 * line, words, 10))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif">\n' + "\n".join(body) + "\n</svg>\n"
    )


def png(pixels: Pixels) -> bytes:
    """A grey or RGB picture as PNG, without a picture library."""
    values = np.round(np.clip(np.nan_to_num(pixels), 0.0, 1.0) * 255).astype(np.uint8).transpose(1, 2, 0)
    height, width, channels = values.shape
    if channels not in (1, 3):
        raise ValueError(f"A picture has 1 or 3 channels, found {channels}. Choose the channels to show.")
    rows = b"".join(b"\x00" + values[y].tobytes() for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _text(x: float, y: float, words: str, size: int, weight: int = 400) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" fill="#1f2933">{escape(words)}</text>'
