"""Masks: 256-bit keys stretched to vectors of ring elements, and added to a vector in place.

The stream is AES-256 in counter mode from 0: a key serves one mask only. It runs in pieces that stay in the processor's
cache between encryption and addition; both release Python's lock.
"""

from __future__ import annotations

import numpy as np

from coterie.privacy.secure_sum.fixed_point import Whole
from coterie.privacy.secure_sum.keys import library

_PIECE = 1 << 17  # bytes
_ZEROS = bytes(_PIECE)
_BLOCK = 16  # bytes; older versions of cryptography ask for room for one more


def add_mask(total: Whole, key: bytes, sign: int) -> None:
    """total += sign * PRG(key), modulo 2^bits, in place. Bytes of the stream are read as little-endian numbers."""
    crypto = library()
    stream = crypto.cipher(crypto.aes(key), crypto.counter(bytes(16))).encryptor()
    width = total.itemsize
    raw = bytearray(_PIECE + _BLOCK)
    piece = np.frombuffer(raw, total.dtype.newbyteorder("<"))
    combine = np.add if sign > 0 else np.subtract
    for start in range(0, total.size, _PIECE // width):
        part = total[start : start + _PIECE // width]
        stream.update_into(_ZEROS[: part.size * width], raw)
        combine(part, piece[: part.size], out=part)
