"""A small bitmap alphabet, so that a mark can be drawn without any font."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

HEIGHT, WIDTH = 7, 5

# seven rows of five bits, from top to bottom
_BITS = {
    " ": (0, 0, 0, 0, 0, 0, 0),
    "-": (0, 0, 0, 31, 0, 0, 0),
    ".": (0, 0, 0, 0, 0, 12, 12),
    "A": (14, 17, 17, 31, 17, 17, 17),
    "B": (30, 17, 17, 30, 17, 17, 30),
    "C": (14, 17, 16, 16, 16, 17, 14),
    "D": (30, 17, 17, 17, 17, 17, 30),
    "E": (31, 16, 16, 30, 16, 16, 31),
    "F": (31, 16, 16, 30, 16, 16, 16),
    "G": (14, 17, 16, 23, 17, 17, 14),
    "H": (17, 17, 17, 31, 17, 17, 17),
    "I": (14, 4, 4, 4, 4, 4, 14),
    "J": (7, 2, 2, 2, 2, 18, 12),
    "K": (17, 18, 20, 24, 20, 18, 17),
    "L": (16, 16, 16, 16, 16, 16, 31),
    "M": (17, 27, 21, 21, 17, 17, 17),
    "N": (17, 25, 21, 19, 17, 17, 17),
    "O": (14, 17, 17, 17, 17, 17, 14),
    "P": (30, 17, 17, 30, 16, 16, 16),
    "Q": (14, 17, 17, 17, 21, 18, 13),
    "R": (30, 17, 17, 30, 20, 18, 17),
    "S": (15, 16, 16, 14, 1, 1, 30),
    "T": (31, 4, 4, 4, 4, 4, 4),
    "U": (17, 17, 17, 17, 17, 17, 14),
    "V": (17, 17, 17, 17, 17, 10, 4),
    "W": (17, 17, 17, 21, 21, 27, 17),
    "X": (17, 17, 10, 4, 10, 17, 17),
    "Y": (17, 17, 10, 4, 4, 4, 4),
    "Z": (31, 1, 2, 4, 8, 16, 31),
    "0": (14, 17, 19, 21, 25, 17, 14),
    "1": (4, 12, 4, 4, 4, 4, 14),
    "2": (14, 17, 1, 6, 8, 16, 31),
    "3": (31, 2, 4, 2, 1, 17, 14),
    "4": (2, 6, 10, 18, 31, 2, 2),
    "5": (31, 16, 30, 1, 1, 17, 14),
    "6": (6, 8, 16, 30, 17, 17, 14),
    "7": (31, 1, 2, 4, 8, 8, 8),
    "8": (14, 17, 17, 14, 17, 17, 14),
    "9": (14, 17, 17, 15, 1, 2, 12),
}


def lettered(text: str, width: int) -> npt.NDArray[np.bool_]:
    """The text as large as fits into `width` pixels (three quarters of them at most), with a rim of one dot."""
    unknown = sorted(set(text.upper()) - _BITS.keys())
    if unknown:
        raise ValueError(f"Only letters, digits, '-', '.' and spaces can be drawn, found {unknown}. Leave them out.")
    glyphs = [np.array([[row >> (WIDTH - 1 - bit) & 1 for bit in range(WIDTH)] for row in _BITS[c]]) for c in text.upper()]
    dots = np.concatenate([np.pad(glyph, ((1, 1), (0, 1))) for glyph in glyphs], axis=1)
    dots = np.pad(dots, ((0, 0), (1, 0))).astype(bool)
    size = max(1, 3 * width // (4 * dots.shape[1]))
    return dots.repeat(size, axis=0).repeat(size, axis=1)
