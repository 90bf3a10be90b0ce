"""Keys of one client in one round, and what is derived from them. Everything random comes from the operating system.

X25519 (RFC 7748) agrees on a secret with every other client, HKDF-SHA256 (RFC 5869) turns it into keys for one purpose, one
round and one pair, AES-256 in counter mode stretches a key into a mask, and ChaCha20-Poly1305 (RFC 8439) seals shares.
"""

from __future__ import annotations

import functools
import secrets
import struct
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from coterie.privacy.secure_sum.shamir import PRIME

KEY_BYTES = 32
NONCE_BYTES, TAG_BYTES = 12, 16


class _Library(NamedTuple):
    """The parts of `cryptography` that are used, which is an extra."""

    x25519: ModuleType
    hkdf: Any
    sha256: Any
    cipher: Any
    aes: Any
    counter: Any
    sealing: Any
    invalid_tag: type[Exception]


@functools.cache
def library() -> _Library:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.asymmetric import x25519
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import CTR
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError:
        raise ValueError("A secure sum needs cryptography. Install it with: pip install 'coterie[privacy]'") from None
    return _Library(x25519, HKDF, SHA256, Cipher, AES, CTR, ChaCha20Poly1305, InvalidTag)


@dataclass(frozen=True, repr=False)
class KeyPair:
    """An X25519 pair; `private` is the clamped scalar, below 2^255, so that it can be shared in Shamir's field."""

    private: bytes
    public: bytes

    @classmethod
    def fresh(cls) -> KeyPair:
        return cls.of(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def of(cls, private: bytes) -> KeyPair:
        scalar = bytearray(private)
        scalar[0] &= 248  # the clamping of RFC 7748, section 5
        scalar[31] = scalar[31] & 127 | 64
        key = library().x25519.X25519PrivateKey.from_private_bytes(bytes(scalar))
        return cls(bytes(scalar), key.public_key().public_bytes_raw())

    def agree(self, other: bytes) -> bytes:
        """The secret that the owner of the public key `other` gets from ours. A key of small order is refused."""
        own = library().x25519.X25519PrivateKey.from_private_bytes(self.private)
        shared: bytes = own.exchange(library().x25519.X25519PublicKey.from_public_bytes(other))
        return shared


def fresh_seed() -> bytes:
    """256 bits for a self mask, below Shamir's prime."""
    return secrets.randbelow(PRIME).to_bytes(KEY_BYTES, "big")


def derive(secret: bytes, purpose: str, round: int, first: int, second: int) -> bytes:
    """HKDF-SHA256 of `secret` for one purpose, round and pair of clients (the same for both of them)."""
    info = b"coterie secure sum|" + purpose.encode() + struct.pack("<qqq", round, min(first, second), max(first, second))
    hkdf = library().hkdf
    key: bytes = hkdf(algorithm=library().sha256(), length=KEY_BYTES, salt=None, info=info).derive(secret)
    return key


def seal(key: bytes, content: bytes, bound_to: bytes) -> bytes:
    """Encrypted and authenticated; `bound_to` says who sends what to whom, and is authenticated with it."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    sealed: bytes = library().sealing(key).encrypt(nonce, content, bound_to)
    return nonce + sealed


def unseal(key: bytes, sealed: bytes, bound_to: bytes) -> bytes | None:
    """The content, or None where it was made for somebody else, in another round, or was changed on its way."""
    try:
        content: bytes = library().sealing(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound_to)
    except library().invalid_tag:
        return None
    return content
