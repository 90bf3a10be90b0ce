"""A client's side of one secure sum (Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
CCS 2017; four phases, a server that may see everything on the wire).

    y_k = encode(u_k) + PRG(b_k) + sum_{j > k} PRG(s_kj) - sum_{j < k} PRG(s_kj)   mod 2^bits

s_kj follows from both clients' masking keys, b_k from the client's own seed; both secrets are shared t-of-n among the client and
its neighbours. For one client only shares of one kind are ever told: of b_k if it stayed, of the masking key if it did not.
"""

from __future__ import annotations

import struct
from collections.abc import Set

from coterie.privacy.secure_sum.fixed_point import Whole
from coterie.privacy.secure_sum.keys import KeyPair, derive, fresh_seed, seal, unseal
from coterie.privacy.secure_sum.masks import add_mask
from coterie.privacy.secure_sum.messages import KeyList, Keys, MaskedInput, Refused, SealedShares, UnmaskAnswer, UnmaskRequest
from coterie.privacy.secure_sum.shamir import SHARE_BYTES, share


class Client:
    """One client in one round. Its secrets stay in here; every phase takes and gives bytes, and none can be done twice."""

    def __init__(self, client: int, round: int, threshold: int) -> None:
        self.client, self.round, self.threshold = client, round, threshold
        self._sealing, self._masking = KeyPair.fresh(), KeyPair.fresh()
        self._seed = fresh_seed()
        self._keys: dict[int, Keys] = {}  # of the neighbours
        self._shares: dict[int, tuple[int, int]] = {}  # client -> our share of its (self mask's seed, masking key)
        self._phase = 0
        self._told: UnmaskRequest | None = None

    def advertise(self) -> bytes:
        """Phase 1: our public keys."""
        self._enter(1)
        return Keys(self._sealing.public, self._masking.public).to_bytes()

    def share_keys(self, listed: bytes) -> bytes:
        """Phase 2: shares of our two secrets, sealed for each neighbour."""
        self._enter(2)
        keys = dict(KeyList.from_bytes(listed).keys)
        own = keys.pop(self.client, None)
        if own != Keys(self._sealing.public, self._masking.public):
            raise Refused(f"Client {self.client} was sent a list of keys without its own. The list is not the cohort's.")
        self._enough({self.client, *keys}, "advertised keys")
        if 2 * self.threshold <= len(keys) + 1:
            raise Refused(
                f"{len(keys) + 1} clients would hold shares of client {self.client}'s secrets: two separate groups of {self.threshold} could be "
                "asked for both kinds. The threshold must be more than half of them."
            )
        public = [key for other in (own, *keys.values()) for key in (other.sealing, other.masking)]
        if len(set(public)) < len(public):
            raise Refused(f"Client {self.client} was sent one key twice. Two clients, or two purposes, never share a key.")
        self._keys = keys
        places = [place_of(other) for other in (self.client, *keys)]
        seeds = share(int.from_bytes(self._seed, "big"), self.threshold, places)
        masking = share(int.from_bytes(self._masking.private, "big"), self.threshold, places)
        self._shares[self.client] = (seeds[place_of(self.client)], masking[place_of(self.client)])
        sealed = {}
        for other in keys:
            content = b"".join(shares[place_of(other)].to_bytes(SHARE_BYTES, "big") for shares in (seeds, masking))
            sealed[other] = seal(self._sealing_key(other), content, self._bound(self.client, other))
        return SealedShares(sealed).to_bytes()

    def receive_shares(self, routed: bytes) -> None:
        """The end of phase 2: who shared keys with us is who we mask with."""
        self._enter(3)
        sealed = SealedShares.from_bytes(routed).sealed
        strangers = sorted(sealed.keys() - self._keys.keys())
        if strangers:
            raise Refused(f"Client {self.client} was sent shares of client {strangers[0]}, whose keys it never got.")
        self._enough({self.client, *sealed}, "shared keys")
        for other, content in sealed.items():
            opened = unseal(self._sealing_key(other), content, self._bound(other, self.client))
            if opened is None:
                raise Refused(
                    f"The shares of client {other} for client {self.client} in round {self.round + 1} were changed, "
                    "or were sealed for another round or client."
                )
            self._shares[other] = (int.from_bytes(opened[:SHARE_BYTES], "big"), int.from_bytes(opened[SHARE_BYTES:], "big"))

    def mask(self, values: Whole) -> bytes:
        """Phase 3: our encoded vector under its masks."""
        self._enter(4)
        total = values.copy()
        add_mask(total, self_mask_key(self._seed, self.round, self.client), 1)
        for other in self._shares:
            if other != self.client:
                add_mask(total, pair_mask_key(self._masking, self._keys[other].masking, self.round, self.client, other),
                         pair_sign(self.client, other))  # fmt: skip
        return MaskedInput(total).to_bytes()

    def unmask(self, asked: bytes) -> bytes:
        """Phase 4: one share for each client, of the kind that its staying or dropping out asks for."""
        if self._phase < 4:
            raise Refused(f"Client {self.client} was asked to unmask before it sent its vector.")
        request = UnmaskRequest.from_bytes(asked)
        survivors, dropped = set(request.survivors), set(request.dropped)
        both = sorted(survivors & dropped)
        if both:
            raise Refused(f"The server asks for both shares of client {both[0]}, which would unmask its vector alone.")
        if len(survivors) < len(request.survivors) or len(dropped) < len(request.dropped):
            raise Refused("The server names a client twice in one request.")
        if self._told is not None and (survivors, dropped) != (set(self._told.survivors), set(self._told.dropped)):
            raise Refused("The server asks twice, with other survivors: both shares of one client could be told that way.")
        if self.client not in survivors:
            raise Refused(f"Client {self.client} sent its vector, but is not among the survivors.")
        if survivors | dropped != self._shares.keys():
            odd = sorted((survivors | dropped) ^ self._shares.keys())
            raise Refused(f"The survivors and dropped clients are not those that shared keys: they differ in client {odd[0]}.")
        self._enough(survivors, "survived")
        self._told = request
        return UnmaskAnswer({k: self._shares[k][k in dropped] for k in (*request.survivors, *request.dropped)}).to_bytes()

    def _enough(self, clients: Set[int], did: str) -> None:
        if len(clients) < self.threshold:
            raise Refused(f"Only {len(clients)} clients {did}, fewer than the threshold {self.threshold}. Client {self.client} goes no further.")

    def _enter(self, phase: int) -> None:
        if self._phase != phase - 1:
            raise Refused(f"Client {self.client} was asked for step {phase} of the secure sum after step {self._phase}.")
        self._phase = phase

    def _sealing_key(self, other: int) -> bytes:
        return derive(_agreed(self._sealing, self._keys[other].sealing, other), "seal", self.round, self.client, other)

    def _bound(self, sender: int, recipient: int) -> bytes:
        return struct.pack("<qqq", self.round, sender, recipient)


def self_mask_key(seed: bytes, round: int, client: int) -> bytes:
    return derive(seed, "self mask", round, client, client)


def pair_mask_key(own: KeyPair, other_public: bytes, round: int, client: int, other: int) -> bytes:
    return derive(_agreed(own, other_public, other), "pair mask", round, client, other)


def pair_sign(client: int, other: int) -> int:
    """+1 for whom comes later, -1 for whom came earlier, so that a pair's masks cancel."""
    return 1 if other > client else -1


def _agreed(own: KeyPair, public: bytes, other: int) -> bytes:
    try:
        return own.agree(public)
    except ValueError:
        raise Refused(f"The public key of client {other} is none: it has small order.") from None


def place_of(client: int) -> int:
    """Where a client's shares lie on the polynomials; 0 is the secret's place."""
    return client + 1
