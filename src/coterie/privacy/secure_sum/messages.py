"""What crosses in the four phases, as bytes. A client's id takes 8 bytes, a key or a share 32, a sealed pair of shares 92.

    phase            client -> server                      server -> client
    1 AdvertiseKeys  `Keys`: 64                            `KeyList`: 72 for each client
    2 ShareKeys      `SealedShares`: 100 for each other    the same, from each other
    3 MaskedInput    `MaskedInput`: 4 or 8 for each number
    4 Unmask         `UnmaskAnswer`: 40 for each client    `UnmaskRequest`: 4, and 8 for each client
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coterie.privacy.secure_sum.fixed_point import Whole, ring
from coterie.privacy.secure_sum.keys import KEY_BYTES, NONCE_BYTES, TAG_BYTES
from coterie.privacy.secure_sum.settings import Bits
from coterie.privacy.secure_sum.shamir import SHARE_BYTES

_ID = struct.Struct("<q")
_COUNT = struct.Struct("<I")
SEALED_BYTES = NONCE_BYTES + 2 * SHARE_BYTES + TAG_BYTES


class Refused(ValueError):
    """A message that is not what the protocol says, or that asks for what must not be told."""


@dataclass(frozen=True)
class Keys:
    """A client's two public keys: one to seal shares, one for masks."""

    sealing: bytes
    masking: bytes

    def to_bytes(self) -> bytes:
        return self.sealing + self.masking

    @classmethod
    def from_bytes(cls, data: bytes) -> Keys:
        if len(data) != 2 * KEY_BYTES:
            raise Refused(f"Two public keys have {2 * KEY_BYTES} bytes, found {len(data)}.")
        return cls(data[:KEY_BYTES], data[KEY_BYTES:])


@dataclass(frozen=True)
class KeyList:
    """The keys of a client and of everybody whom it masks with."""

    keys: Mapping[int, Keys]

    def to_bytes(self) -> bytes:
        return _rows({client: keys.to_bytes() for client, keys in self.keys.items()})

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyList:
        return cls({client: Keys.from_bytes(row) for client, row in _by_client(data, 2 * KEY_BYTES).items()})


@dataclass(frozen=True)
class SealedShares:
    """Sealed pairs of shares: up by who may open them, down by who sealed them."""

    sealed: Mapping[int, bytes]

    def to_bytes(self) -> bytes:
        return _rows(self.sealed)

    @classmethod
    def from_bytes(cls, data: bytes) -> SealedShares:
        return cls(_by_client(data, SEALED_BYTES))


@dataclass(frozen=True, eq=False)
class MaskedInput:
    """A client's vector under all of its masks: uniformly random to everybody who lacks one of them."""

    values: Whole

    def to_bytes(self) -> bytes:
        return self.values.astype(self.values.dtype.newbyteorder("<"), copy=False).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, bits: Bits) -> MaskedInput:
        if len(data) % (bits // 8):
            raise Refused(f"A masked vector has a multiple of {bits // 8} bytes, found {len(data)}.")
        return cls(np.frombuffer(data, dtype=np.dtype(ring(bits)).newbyteorder("<")))


@dataclass(frozen=True)
class UnmaskRequest:
    """Who stayed (their self masks are to be removed) and who dropped out (their pairwise masks are)."""

    survivors: tuple[int, ...]
    dropped: tuple[int, ...]

    def to_bytes(self) -> bytes:
        return _COUNT.pack(len(self.survivors)) + b"".join(map(_ID.pack, (*self.survivors, *self.dropped)))

    @classmethod
    def from_bytes(cls, data: bytes) -> UnmaskRequest:
        if len(data) < _COUNT.size or (len(data) - _COUNT.size) % _ID.size:
            raise Refused(f"A request to unmask has 4 bytes and 8 for each client, found {len(data)}.")
        (count,) = _COUNT.unpack_from(data)
        clients = tuple(client for (client,) in _ID.iter_unpack(data[_COUNT.size :]))
        if count > len(clients):
            raise Refused(f"A request to unmask names {count} survivors, but holds {len(clients)} clients.")
        return cls(clients[:count], clients[count:])


@dataclass(frozen=True)
class UnmaskAnswer:
    """One share for each client of the request: of its self mask's seed, or of its masking key."""

    shares: Mapping[int, int]

    def to_bytes(self) -> bytes:
        return _rows({client: share.to_bytes(SHARE_BYTES, "big") for client, share in self.shares.items()})

    @classmethod
    def from_bytes(cls, data: bytes) -> UnmaskAnswer:
        return cls({client: int.from_bytes(row, "big") for client, row in _by_client(data, SHARE_BYTES).items()})


def _rows(content: Mapping[int, bytes]) -> bytes:
    return b"".join(_ID.pack(client) + row for client, row in content.items())


def _by_client(data: bytes, width: int) -> dict[int, bytes]:
    size = _ID.size + width
    if len(data) % size:
        raise Refused(f"Expected {size} bytes for each client, found {len(data)} in all.")
    found: dict[int, bytes] = {}
    for start in range(0, len(data), size):
        (client,) = _ID.unpack_from(data, start)
        if client in found:
            raise Refused(f"Client {client} is named twice in one message.")
        found[client] = data[start + _ID.size : start + size]
    return found
