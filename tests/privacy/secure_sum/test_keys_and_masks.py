"""Keys, masks and sealed shares, against published vectors and against the standards written out."""

from __future__ import annotations

import hashlib
import hmac
import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from coterie.privacy.secure_sum import InProcess, SecureSum
from coterie.privacy.secure_sum.keys import KeyPair, derive, fresh_seed, seal, unseal
from coterie.privacy.secure_sum.masks import add_mask
from coterie.privacy.secure_sum.shamir import PRIME


def hkdf(secret: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 with SHA-256 and no salt."""
    pseudo = hmac.digest(bytes(32), secret, hashlib.sha256)
    block, found = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.digest(pseudo, block + info + bytes([counter]), hashlib.sha256)
        found += block
    return found[:length]


def stream(key: bytes, length: int) -> bytes:
    """AES-256 of the blocks 0, 1, 2, ..."""
    counted = b"".join(counter.to_bytes(16, "big") for counter in range(-(-length // 16)))
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(counted)[:length]


def test_key_agreement_of_rfc_7748() -> None:
    """Section 6.1: Alice, Bob, and the secret that they share. Clamping a scalar changes no public key."""
    alice = KeyPair.of(bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    bob = KeyPair.of(bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert alice.agree(bob.public).hex() == bob.agree(alice.public).hex() == shared


def test_secrets_fit_shamirs_field_and_never_come_twice() -> None:
    pairs, seeds = [KeyPair.fresh() for _ in range(50)], [fresh_seed() for _ in range(50)]
    assert all(int.from_bytes(pair.private, "big") < PRIME for pair in pairs)
    assert all(len(seed) == 32 and int.from_bytes(seed, "big") < PRIME for seed in seeds)
    assert len({*seeds, *(pair.private for pair in pairs), *(pair.public for pair in pairs)}) == 150


def test_keys_do_not_show_themselves() -> None:
    pair = KeyPair.fresh()
    assert pair.private.hex() not in repr(pair) and repr(pair.private) not in repr(pair)


def test_derived_keys_are_hkdf_sha256() -> None:
    """The function of this file gives test case 3 of RFC 5869; the package gives the function's output for its own context."""
    published = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    assert hkdf(b"\x0b" * 22, b"", 42).hex() == published
    secret = bytes(range(32))
    info = b"coterie secure sum|pair mask" + struct.pack("<qqq", 7, 2, 9)
    assert derive(secret, "pair mask", 7, 9, 2) == derive(secret, "pair mask", 7, 2, 9) == hkdf(secret, info, 32)


def test_another_purpose_round_or_pair_is_another_key() -> None:
    secret = bytes(32)
    places = [("seal", 0, 1, 2), ("pair mask", 0, 1, 2), ("pair mask", 1, 1, 2), ("pair mask", 0, 1, 3), ("self mask", 0, 1, 1)]
    assert len({derive(secret, *place) for place in places}) == len(places)


@pytest.mark.parametrize("width", [np.uint32, np.uint64])
def test_a_mask_is_aes_256_in_counter_mode(width: type) -> None:
    """Its first block is the published answer for an all-zero block (NIST AESAVS, KeySbox256, COUNT 0); all of it is AES of 0, 1, 2, ..."""
    key = bytes.fromhex("c47b0294dbbbee0fec4757f22ffeee3587ca4730c3d33b691df38bab076bc558")
    total = np.zeros(300_000 // np.dtype(width).itemsize + 1, width)  # more than two pieces, and the end of one
    add_mask(total, key, 1)
    found = total.astype(total.dtype.newbyteorder("<")).tobytes()
    assert found[:16].hex() == "46f2fb342d6f0ab477476fc501242c5f"
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    counted = b"".join(counter.to_bytes(16, "big") for counter in range(-(-len(found) // 16)))
    assert found == block.update(counted)[: len(found)]


@pytest.mark.parametrize("client", [0, 2, 3])
def test_what_a_client_sends_is_the_printed_sum(client: int) -> None:
    """y_k = u_k + PRG(b_k) + sum over j > k of PRG(s_kj) - sum over j < k of PRG(s_kj), with Python's whole numbers, modulo 2^32."""
    round, size = 5, 6
    protocol = InProcess(SecureSum(), round, (0, 1, 2, 3), size)
    protocol.open()
    sides = protocol._clients
    u = list(range(2**32 - 3, 2**32 + 3))  # in the middle the modulus

    def prg(secret: bytes, purpose: bytes, one: int, other: int) -> tuple[int, ...]:
        info = b"coterie secure sum|" + purpose + struct.pack("<qqq", round, min(one, other), max(one, other))
        return struct.unpack(f"<{size}I", stream(hkdf(secret, info, 32), 4 * size))

    own = X25519PrivateKey.from_private_bytes(sides[client]._masking.private)
    expected = [a + b for a, b in zip(u, prg(sides[client]._seed, b"self mask", client, client), strict=True)]
    for other in {0, 1, 2, 3} - {client}:
        shared = own.exchange(X25519PublicKey.from_public_bytes(sides[other]._masking.public))
        sign = 1 if other > client else -1
        expected = [a + sign * b for a, b in zip(expected, prg(shared, b"pair mask", client, other), strict=True)]
    sent = sides[client].mask(np.array([value % 2**32 for value in u], np.uint32))
    assert list(struct.unpack(f"<{size}I", sent)) == [value % 2**32 for value in expected]


def test_a_mask_is_taken_off_again_and_wraps_around() -> None:
    before = np.array([0, 1, 2**32 - 1, 12345], np.uint32)
    total = before.copy()
    add_mask(total, bytes(32), 1)
    assert not (total == before).any()
    add_mask(total, bytes(32), -1)
    np.testing.assert_array_equal(total, before)


def test_sealed_content_opens_for_whom_it_was_meant_and_not_if_a_bit_was_changed() -> None:
    key, content = fresh_seed(), bytes(64)
    sealed = seal(key, content, b"from 1 to 2")
    assert len(sealed) == 12 + 64 + 16 and unseal(key, sealed, b"from 1 to 2") == content
    assert unseal(key, sealed, b"from 1 to 3") is None and unseal(fresh_seed(), sealed, b"from 1 to 2") is None
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        assert unseal(key, bytes(changed), b"from 1 to 2") is None
    assert seal(key, content, b"from 1 to 2") != sealed  # a fresh nonce each time
