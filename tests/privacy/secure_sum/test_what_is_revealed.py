"""What a server can see and ask: uniform vectors, sealed shares, one kind of share for each client, and nothing below the threshold."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare, ks_2samp

from coterie.privacy.secure_sum import Aborted, Client, InProcess, Refused, SecureSum, Server
from coterie.privacy.secure_sum import server as server_module
from coterie.privacy.secure_sum.client import pair_mask_key, pair_sign, self_mask_key
from coterie.privacy.secure_sum.masks import add_mask
from coterie.privacy.secure_sum.messages import KeyList, Keys, MaskedInput, SealedShares, UnmaskAnswer, UnmaskRequest
from coterie.privacy.secure_sum.shamir import reconstruct

COHORT = tuple(range(6))
UNLIKELY = 1e-7  # masks come from the operating system: a right program fails once in ten million runs


class Round:
    """Six clients and a server, driven step by step; the threshold is 5."""

    def __init__(self, round: int = 0, length: int = 4) -> None:
        self.server = Server(SecureSum(), round, COHORT, length)
        self.clients = {k: Client(k, round, self.server.threshold) for k in COHORT}
        self.lists = self.server.list_keys({k: side.advertise() for k, side in self.clients.items()})

    def shared(self) -> Round:
        self.sealed = {k: side.share_keys(self.lists[k]) for k, side in self.clients.items()}
        self.routed = self.server.route_shares(self.sealed)
        return self

    def received(self) -> Round:
        self.shared()
        for k, side in self.clients.items():
            side.receive_shares(self.routed[k])
        return self

    def masked(self, senders: tuple[int, ...] = COHORT) -> Round:
        self.received()
        for k in senders:
            self.server.receive(k, self.clients[k].mask(np.full(self.server.length, k, np.uint32)))
        return self


def everything_in(thing: object, seen: set[int] | None = None) -> Iterator[object]:
    """All values that can be reached from an object, by its attributes and contents."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    yield thing
    if isinstance(thing, Mapping):
        inside: list[Any] = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        inside = list(thing)
    else:
        inside = list(vars(thing).values()) if hasattr(thing, "__dict__") and not isinstance(thing, type) else []
    for value in inside:
        yield from everything_in(value, seen)


def holds(thing: object, secret: bytes) -> bool:
    """Whether these 32 bytes stand anywhere in it, as bytes or as a number."""
    number = int.from_bytes(secret, "big")
    return any((isinstance(v, bytes) and secret in v) or (type(v) is int and v == number) for v in everything_in(thing))


# --- the server has no way to a secret -----------------------------------------------------------------------------------------


def test_the_server_never_holds_a_seed_or_a_private_key() -> None:
    """The search finds the secrets in the clients, so it would find them in the server."""
    found = Round()
    answers: dict[int, bytes] = {}

    def ask() -> None:
        asked = found.server.request()
        answers.update({k: found.clients[k].unmask(asked[k]) for k in asked})

    moments: list[Callable[[], object]] = [
        lambda: None, lambda: found.masked(COHORT[1:]), ask, lambda: found.server.unmask(answers),
    ]  # fmt: skip
    for moment in moments:
        moment()
        for side in found.clients.values():
            for secret in (side._seed, side._masking.private, side._sealing.private):
                assert holds(side, secret) and not holds(found.server, secret)


def test_unmasking_tells_one_secret_of_each_client_and_never_both(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(server_module, "reconstruct", lambda shares: told.append(reconstruct(shares)) or told[-1])
    found = Round().masked(COHORT[1:])
    asked = found.server.request()
    total = found.server.unmask({k: found.clients[k].unmask(asked[k]) for k in asked})
    assert total.tolist() == [sum(COHORT[1:])] * 4
    seeds = {k: int.from_bytes(side._seed, "big") for k, side in found.clients.items()}
    keys = {k: int.from_bytes(side._masking.private, "big") for k, side in found.clients.items()}
    assert sorted(told) == sorted([*(seeds[k] for k in COHORT[1:]), keys[0]])


def test_all_that_answers_hold_does_not_unmask_one_client() -> None:
    """The survivors' shares, put together in every possible way, give the dropped client's key and no survivor's."""
    found = Round().masked(COHORT[1:])
    asked = found.server.request()
    shares: dict[int, dict[int, int]] = {k: {} for k in COHORT}
    for holder in asked:
        for about, value in UnmaskAnswer.from_bytes(found.clients[holder].unmask(asked[holder])).shares.items():
            shares[about][holder + 1] = value
    for k, side in found.clients.items():
        secret = reconstruct(shares[k])
        assert (secret == int.from_bytes(side._seed, "big")) == (k != 0)
        assert (secret == int.from_bytes(side._masking.private, "big")) == (k == 0)


# --- a masked vector --------------------------------------------------------------------------------------------------------------


def masked(values: np.ndarray) -> np.ndarray:
    return MaskedInput.from_bytes(Round(length=values.size).received().clients[2].mask(values), 32).values


@pytest.mark.parametrize("value", [0, 1, 2**31])
def test_a_single_masked_vector_is_uniform(value: int) -> None:
    """Each of its four bytes by chi-square, neighbours by correlation, whatever is masked."""
    found = masked(np.full(60_000, value, np.uint32))
    for place in range(4):
        counts = np.bincount((found >> np.uint32(8 * place)) & np.uint32(255), minlength=256)
        assert chisquare(counts).pvalue > UNLIKELY
    scaled = found / 2.0**32 - 0.5
    assert abs(np.corrcoef(scaled[1:], scaled[:-1])[0, 1]) < 6 / np.sqrt(60_000)


def test_masked_vectors_of_two_inputs_can_not_be_told_apart() -> None:
    """Two samples by Kolmogorov-Smirnov; no correlation between a structured input and what is sent."""
    ramp = np.arange(60_000, dtype=np.uint32) * np.uint32(70_000)
    one, two = masked(np.zeros(60_000, np.uint32)), masked(ramp)
    assert ks_2samp(one, two).pvalue > UNLIKELY
    assert abs(np.corrcoef(two / 2.0**32, ramp / 2.0**32)[0, 1]) < 6 / np.sqrt(60_000)
    assert not (one == masked(np.zeros(60_000, np.uint32))).mean() > 1e-3  # the same input again looks like another


def test_the_running_sum_stays_masked_until_the_last_answer() -> None:
    """Before the answers, and with too few of them, what the server holds is as uniform as a single vector."""
    protocol = InProcess(SecureSum(), 0, COHORT, 30_000, {4: "unmask", 5: "unmask"})
    protocol.open()
    for k in COHORT:
        protocol.add(k, np.zeros(30_000, np.uint32))
    with pytest.raises(Aborted, match=r"4 clients told their shares of client 0's secrets, fewer than the threshold 5"):
        protocol.close()
    held = protocol.server._total
    assert chisquare(np.bincount(held >> np.uint32(24), minlength=256)).pvalue > UNLIKELY


def test_each_of_the_two_masks_hides_a_vector_alone() -> None:
    """After an honest round the server knows every survivor's self mask; if it lies that a client dropped out, the pairwise ones.

    A vector that is kept from phase 3 stays uniform either way: zeros minus the one kind of mask is the other.
    """
    values = np.zeros(40_000, np.uint32)
    found = Round(length=values.size).received()
    kept = MaskedInput.from_bytes(found.clients[2].mask(values), 32).values.copy()
    without_self, without_pairs = kept.copy(), kept.copy()
    add_mask(without_self, self_mask_key(found.clients[2]._seed, 0, 2), -1)
    for other in COHORT:
        if other != 2:
            key = pair_mask_key(found.clients[2]._masking, found.server.keys[other].masking, 0, 2, other)
            add_mask(without_pairs, key, -pair_sign(2, other))
    for held in (without_self, without_pairs):
        assert chisquare(np.bincount(held >> np.uint32(24), minlength=256)).pvalue > UNLIKELY
    add_mask(without_pairs, self_mask_key(found.clients[2]._seed, 0, 2), -1)
    assert not without_pairs.any()  # both kinds together would tell it, which is why no client tells both


# --- below the threshold ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "text"),
    [("keys", "4 of 6 clients advertised keys"), ("shares", "4 of 6 clients shared keys"), ("vector", "4 of 6 clients sent a masked vector"),
     ("unmask", "4 clients told their shares")],
)  # fmt: skip
def test_too_few_clients_end_the_round_in_every_phase(step: Any, text: str) -> None:
    protocol = InProcess(SecureSum(), 6, COHORT, 3, {0: step, 1: step})
    with pytest.raises(Aborted, match=rf"The secure sum of round 7 ended without a result: {text}.*fewer than the threshold 5"):
        protocol.open()
        for k in COHORT:
            if protocol.sends(k):
                protocol.add(k, np.zeros(3, np.uint32))
        protocol.close()


def test_clients_themselves_refuse_to_go_on_with_too_few() -> None:
    """Whatever the server says: fewer keys, fewer shares or fewer survivors than the threshold end it at the client."""
    found = Round()
    few = KeyList({k: keys for k, keys in KeyList.from_bytes(found.lists[0]).keys.items() if k < 4})
    with pytest.raises(Refused, match=r"Only 4 clients advertised keys, fewer than the threshold 5\. Client 0 goes no further"):
        found.clients[0].share_keys(few.to_bytes())
    found = Round().shared()
    some = SealedShares({k: s for k, s in SealedShares.from_bytes(found.routed[0]).sealed.items() if k < 4})
    with pytest.raises(Refused, match=r"Only 4 clients shared keys"):
        found.clients[0].receive_shares(some.to_bytes())
    found = Round().masked()
    with pytest.raises(Refused, match=r"Only 4 clients survived, fewer than the threshold 5"):
        found.clients[0].unmask(UnmaskRequest((0, 1, 2, 3), (4, 5)).to_bytes())


# --- requests that would unmask one client -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("survivors", "dropped", "text"),
    [
        (COHORT, (3,), r"asks for both shares of client 3"),
        ((0, 1, 2, 3, 4), (), r"not those that shared keys: they differ in client 5"),
        ((0, 1, 2, 3, 4), (5, 77), r"they differ in client 77"),
        ((1, 2, 3, 4, 5), (0,), r"Client 0 sent its vector, but is not among the survivors"),
        ((0, 1, 2, 3, 4, 4), (5,), r"names a client twice"),
    ],
)
def test_requests_that_do_not_fit_are_refused(survivors: tuple[int, ...], dropped: tuple[int, ...], text: str) -> None:
    found = Round().masked()
    with pytest.raises(Refused, match=text):
        found.clients[0].unmask(UnmaskRequest(survivors, dropped).to_bytes())


def test_a_second_request_with_other_survivors_is_refused_and_the_same_one_answered_again() -> None:
    found = Round().masked()
    first = UnmaskRequest((0, 1, 2, 3, 4), (5,)).to_bytes()
    answer = found.clients[0].unmask(first)
    with pytest.raises(Refused, match=r"asks twice, with other survivors"):
        found.clients[0].unmask(UnmaskRequest(COHORT, ()).to_bytes())
    assert found.clients[0].unmask(first) == answer


def test_nobody_unmasks_before_it_sent_its_vector_and_no_phase_comes_twice() -> None:
    found = Round().received()
    with pytest.raises(Refused, match=r"asked to unmask before it sent its vector"):
        found.clients[0].unmask(UnmaskRequest(COHORT, ()).to_bytes())
    found.clients[0].mask(np.zeros(4, np.uint32))
    for again in (lambda: found.clients[0].mask(np.ones(4, np.uint32)), lambda: found.clients[0].advertise()):
        with pytest.raises(Refused, match=r"was asked for step [14] of the secure sum after step 4"):
            again()  # a second vector under the same masks would show its difference to the first


# --- what is forged, replayed or misplaced ---------------------------------------------------------------------------------------------


def test_sealed_shares_that_were_changed_replayed_or_sent_to_somebody_else_are_noticed() -> None:
    def flipped(found: Round) -> bytes:
        content = SealedShares.from_bytes(found.routed[0]).sealed[3]
        return bytes([content[0] ^ 1]) + content[1:]

    forgeries: list[Callable[[Round], bytes]] = [
        flipped,
        lambda found: SealedShares.from_bytes(found.routed[1]).sealed[3],  # meant for client 1
        lambda found: SealedShares.from_bytes(found.routed[0]).sealed[2],  # made by client 2
        lambda found: SealedShares.from_bytes(Round().shared().routed[0]).sealed[3],  # of another run of this round
        lambda found: secrets.token_bytes(92),
    ]
    for forged in forgeries:
        found = Round().shared()
        content = {**SealedShares.from_bytes(found.routed[0]).sealed, 3: forged(found)}
        with pytest.raises(Refused, match=r"shares of client 3 for client 0 in round 1 were changed, or were sealed for another round"):
            found.clients[0].receive_shares(SealedShares(content).to_bytes())


def test_the_same_keys_in_another_round_open_nothing() -> None:
    """A replay where even the keys are the same: round, sender and recipient are bound to the sealed shares."""
    old, new = Round(round=4).shared(), Round(round=5)
    for k, side in new.clients.items():
        side._sealing, side._masking, side._keys = old.clients[k]._sealing, old.clients[k]._masking, dict(old.clients[k]._keys)
        side._phase = 2
    with pytest.raises(Refused, match=r"in round 6 were changed, or were sealed for another round"):
        new.clients[0].receive_shares(old.routed[0])


def test_lists_of_keys_that_can_not_be_true_are_refused() -> None:
    listed = dict(KeyList.from_bytes(Round().lists[0]).keys)
    with pytest.raises(Refused, match=r"without its own"):
        Round().clients[0].share_keys(KeyList(listed).to_bytes())  # another round's list
    found = Round()
    invented = {100 + k: Keys(secrets.token_bytes(32), secrets.token_bytes(32)) for k in range(4)}
    with pytest.raises(Refused, match=r"10 clients would hold shares of client 0's secrets: two separate groups of 5 could be asked for both"):
        found.clients[0].share_keys(KeyList({**KeyList.from_bytes(found.lists[0]).keys, **invented}).to_bytes())
    found = Round()
    listed = dict(KeyList.from_bytes(found.lists[0]).keys)
    with pytest.raises(Refused, match=r"sent one key twice"):
        found.clients[0].share_keys(KeyList({**listed, 3: listed[4]}).to_bytes())
    found = Round()
    listed = dict(KeyList.from_bytes(found.lists[0]).keys)
    with pytest.raises(Refused, match=r"public key of client 3 is none: it has small order"):
        found.clients[0].share_keys(KeyList({**listed, 3: Keys(bytes(32), bytes([1, *bytes(31)]))}).to_bytes())


def test_the_server_refuses_what_is_out_of_turn_or_of_another_length() -> None:
    found = Round().received()
    vector = found.clients[0].mask(np.zeros(4, np.uint32))
    with pytest.raises(Refused, match=r"Client 0 sent 3 masked numbers, expected 4"):
        found.server.receive(0, vector[:12])
    found.server.receive(0, vector)
    for client in (0, 99):
        with pytest.raises(Refused, match=rf"Client {client} sent a masked vector out of turn"):
            found.server.receive(client, vector)
    with pytest.raises(Refused, match=r"a multiple of 4 bytes, found 7"):
        found.server.receive(1, vector[:7])


def test_a_wrong_share_of_a_dropped_clients_key_is_noticed() -> None:
    found = Round().masked(COHORT[1:])
    asked = found.server.request()
    answers = {k: UnmaskAnswer.from_bytes(found.clients[k].unmask(asked[k])).shares for k in asked}
    answers[2] = {**answers[2], 0: answers[2][0] ^ 1}
    with pytest.raises(Refused, match=r"client 0's masking key do not fit its public key: somebody told a wrong share"):
        found.server.unmask({k: UnmaskAnswer(shares).to_bytes() for k, shares in answers.items()})
