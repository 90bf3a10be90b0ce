"""The server's side of one secure sum: it routes, adds up, and removes masks from the sum only.

It holds public keys, who is still there, and one running sum modulo 2^bits. Seeds and masking keys come to it as shares in
the last phase alone: of a client that stayed the seed of its self mask, of one that dropped out its masking key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

import numpy as np

from coterie.privacy.secure_sum.client import pair_mask_key, pair_sign, place_of, self_mask_key
from coterie.privacy.secure_sum.fixed_point import Whole, ring
from coterie.privacy.secure_sum.graph import connected, draw_graph
from coterie.privacy.secure_sum.keys import KEY_BYTES, KeyPair
from coterie.privacy.secure_sum.masks import add_mask
from coterie.privacy.secure_sum.messages import KeyList, Keys, MaskedInput, Refused, SealedShares, UnmaskAnswer, UnmaskRequest
from coterie.privacy.secure_sum.settings import SMALLEST_COHORT, Aborted, SecureSum
from coterie.privacy.secure_sum.shamir import reconstruct


class Server:
    """One round's secure sum over `cohort` of vectors with `length` numbers. Each phase may end in `Aborted`."""

    def __init__(self, settings: SecureSum, round: int, cohort: tuple[int, ...], length: int) -> None:
        self.round, self.cohort, self.length, self.bits = round, cohort, length, settings.bits
        self.threshold = max(settings.threshold_among(len(cohort)), SMALLEST_COHORT)
        self.graph = draw_graph(cohort, settings.neighbours)
        self.keys: dict[int, Keys] = {}
        self.shared: frozenset[int] = frozenset()
        self.survivors: set[int] = set()
        self._total = np.zeros(length, ring(self.bits))
        self._asked: UnmaskRequest | None = None

    def list_keys(self, arrived: Mapping[int, bytes]) -> dict[int, bytes]:
        """Phase 1: who advertised gets the keys of its neighbours that did, and its own."""
        self._known(arrived, set(self.cohort))
        self.keys = {client: Keys.from_bytes(data) for client, data in arrived.items()}
        self._enough(self.keys.keys(), "advertised keys")
        return {
            client: KeyList({k: self.keys[k] for k in sorted(self._near(client, self.keys.keys()))}).to_bytes() for client in self.keys
        }

    def route_shares(self, arrived: Mapping[int, bytes]) -> dict[int, bytes]:
        """Phase 2: every sealed pair of shares to whom it is for; the server can't open them, and keeps none."""
        self._known(arrived, self.keys.keys())
        self.shared = frozenset(arrived)
        self._enough(self.shared, "shared keys")
        boxes: dict[int, dict[int, bytes]] = {client: {} for client in arrived}
        for sender in sorted(arrived):
            sealed = SealedShares.from_bytes(arrived[sender]).sealed
            if sealed.keys() != self._near(sender, self.keys.keys()) - {sender}:
                raise Refused(f"Client {sender} sealed shares for other clients than its neighbours.")
            for recipient, content in sealed.items():
                if recipient in boxes:
                    boxes[recipient][sender] = content
        return {client: SealedShares(box).to_bytes() for client, box in boxes.items()}

    def receive(self, client: int, data: bytes) -> None:
        """Phase 3: one masked vector, added at once and kept nowhere."""
        if client not in self.shared or client in self.survivors or self._asked is not None:
            raise Refused(f"Client {client} sent a masked vector out of turn.")
        values = MaskedInput.from_bytes(data, self.bits).values
        if values.size != self.length:
            raise Refused(f"Client {client} sent {values.size} masked numbers, expected {self.length}.")
        self._total += values
        self.survivors.add(client)

    def request(self) -> dict[int, bytes]:
        """Phase 4: each survivor is asked about itself and its neighbours, one kind of share for each."""
        self._enough(self.survivors, "sent a masked vector", also=self._bereft())
        if not connected(self.graph, self.survivors):
            raise Aborted(f"{self._head}: the survivors fall apart into groups whose sums would be told. Use more neighbours.")
        self._asked = UnmaskRequest(tuple(sorted(self.survivors)), tuple(sorted(self.shared - self.survivors)))
        return {client: self._ask(client).to_bytes() for client in self._asked.survivors}

    def unmask(self, answers: Mapping[int, bytes]) -> Whole:
        """The modular sum of the survivors' vectors, and nothing else."""
        if self._asked is None:
            raise Refused("The survivors must be asked before their answers can unmask anything.")
        self._known(answers, self.survivors)
        shares: dict[int, dict[int, int]] = {client: {} for client in self.shared}
        for holder, data in answers.items():
            told = UnmaskAnswer.from_bytes(data).shares
            if set(told) != set(self._near(holder, self.shared)):
                raise Refused(f"Client {holder} answered about other clients than it was asked.")
            for client, value in told.items():
                shares[client][place_of(holder)] = value
        needed = [*self._asked.survivors, *self._bereft()]
        for client in needed:
            if len(shares[client]) < self.threshold:
                raise Aborted(
                    f"{self._head}: {len(shares[client])} clients told their shares of client {client}'s secrets, fewer than the "
                    f"threshold {self.threshold}."
                )
        for client in needed:
            # the threshold's number of shares is enough, and for all clients the same ones wherever that is possible
            secret = reconstruct(dict(sorted(shares[client].items())[: self.threshold]))
            self._remove(client, secret)
        return self._total

    def _remove(self, client: int, secret: int) -> None:
        if client in self.survivors:
            add_mask(self._total, self_mask_key(secret.to_bytes(KEY_BYTES, "big"), self.round, client), -1)
            return
        pair = KeyPair.of(secret.to_bytes(KEY_BYTES, "big"))
        if pair.public != self.keys[client].masking:
            raise Refused(f"The shares of client {client}'s masking key do not fit its public key: somebody told a wrong share.")
        for other in self.graph[client] & self.survivors:
            key = pair_mask_key(pair, self.keys[other].masking, self.round, client, other)
            add_mask(self._total, key, -pair_sign(other, client))

    def _ask(self, client: int) -> UnmaskRequest:
        assert self._asked is not None
        near = self._near(client, self.shared)
        return UnmaskRequest(*(tuple(k for k in kind if k in near) for kind in (self._asked.survivors, self._asked.dropped)))

    def _near(self, client: int, among: Set[int]) -> Set[int]:
        return (self.graph[client] | {client}) & among

    @property
    def _head(self) -> str:
        return f"The secure sum of round {self.round + 1} ended without a result"

    def _bereft(self) -> list[int]:
        """Who dropped out while others hold pairwise masks with it."""
        return sorted(k for k in self.shared - self.survivors if self.graph[k] & self.survivors)

    def _enough(self, clients: Set[int], did: str, also: Iterable[int] = ()) -> None:
        """Every client that is still there needs a threshold of holders that are; so does who left masks behind."""
        fewest = min((len(self._near(client, clients)) for client in (*clients, *also)), default=0)
        if fewest < self.threshold:
            where = f"of {len(self.cohort)} clients" if len(clients) == fewest else "clients around one of them"
            raise Aborted(f"{self._head}: {fewest} {where} {did}, fewer than the threshold {self.threshold}. Nothing was revealed.")

    def _known(self, arrived: Mapping[int, bytes], expected: Set[int]) -> None:
        strangers = sorted(arrived.keys() - expected)
        if strangers:
            raise Refused(f"Client {strangers[0]} takes no part in this phase of the secure sum.")
