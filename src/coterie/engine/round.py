"""One round: send, let clients run, guard and check what comes back, reduce, absorb.

State, rows and log lines are returned and committed together by the caller: a round that is
interrupted leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from coterie.engine.ambush import Ambush, as_changes
from coterie.engine.answers import Context, conclude, conduct
from coterie.engine.backend import Backend, Outcome, TrainJob, World
from coterie.engine.border import NotFinite, Refused, changes, check
from coterie.engine.client import Failure, Finished, failure
from coterie.engine.round_result import RoundResult, Rules, TooFew
from coterie.engine.rows import hub_of, row_of, with_server_rows
from coterie.engine.secure import SecureRound
from coterie.engine.transcript import Tape
from coterie.engine.wire import Ledger, Way
from coterie.message import Message, Slot
from coterie.method import Exchange, Method, Nobody, Round, Sweep, Train, as_run
from coterie.privacy.clipping import BIT
from coterie.privacy.guards import Unguardable
from coterie.privacy.secure_sum import Aborted
from coterie.reduce.seam import Folding
from coterie.states import ClientId, ServerState
from coterie.tensors import Groups, num_bytes

_CLIP_TOLD = Message({BIT: {"clip": torch.zeros((), dtype=torch.float64)}})  # 8 bytes: the clip that clients shall use now


class RoundRunner:
    """Everything one round needs to know, so that its steps can be read one by one."""

    def __init__(
        self, world: World, backend: Backend, rules: Rules, round: Round, state: ServerState,
        rows: Mapping[ClientId, Groups], fresh: frozenset[ClientId], delivered: Mapping[str, set[ClientId]],
        *, attempt: int, evaluate_local: frozenset[ClientId], tape: Tape | None = None,
    ) -> None:  # fmt: skip
        self.world = world
        self.backend = backend
        self.rules = rules
        self.round = round
        self.method: Method = world.method(round.phase)
        self.hub = hub_of(world, round)
        # under noise a cohort that is too small is not even asked; the longest first, so that no worker is left with a large
        # client at the end of a round
        self.too_small = rules.guards.private and len(round.cohort) < rules.min_cohort
        asked = () if self.too_small else round.cohort
        self.order = tuple(sorted(asked, key=lambda client: (-len(world.population.parts[client].train), client)))
        declared = self.method.slots(self.hub)
        self.slots = {name: slot for name, slot in declared.items() if "/" not in name}
        # nothing was sent down under an exchange's names, so what arrives is taken as it is
        self.exchanged = {name: replace(slot, kind="change") for name, slot in declared.items() if "/" in name}
        self.rows = rows
        self.fresh = fresh  # clients whose row may lack groups of this phase's method
        self.attempt = attempt
        self.evaluate_local = evaluate_local
        self.tape = tape
        self.state = with_server_rows(self.method, state, round.cohort, self.hub)
        self.noise = rules.guards.source(round.index)
        self.downs: dict[ClientId, Message] = {}
        self.ambush = Ambush(world, round)
        self.unready: list[tuple[ClientId, Failure]] = []  # whose first row could not be made
        self.left: set[ClientId] = set()  # whose guarded Message left them
        self.silenced: set[ClientId] = set()  # of whom only noise was sent
        self.result = RoundResult(self.state, {}, Ledger(round.index + 1, round.phase), ())
        self.result.delivered = {name: set(clients) for name, clients in delivered.items()}
        self.secure = SecureRound.of(world, rules.guards, self.slots, round, self.order, self.result.ledger, attempt)

    def run(self) -> RoundResult:
        if self.secure is None:
            return self._run()
        try:
            self.secure.open()
            return self._run()
        except Aborted as aborted:
            if not self.rules.guards.private:
                raise TooFew(str(aborted), self.result) from aborted
            return self._void(f"{aborted} Nothing was absorbed.")
        finally:
            self.secure.count_traffic()
            self.result.secure = self.secure.record()

    def _run(self) -> RoundResult:
        result, guards = self.result, self.rules.guards
        fold = self._fold()
        each: dict[ClientId, Message] = {}
        returned: list[ClientId] = []
        for client, outcome, message in self._messages():
            returned.append(client)
            if self.secure is None:
                fold.add(message, client)
                self._record("up", client, message)
            if client in self.silenced:
                continue
            own = {name: group for name, group in message.groups.items() if name != BIT and self.slots[name].reduce == "each"}
            if own:
                each[client] = Message(own, message.scalars, message.weight).copied()  # its row may hold the same tensors
                result.kept_bytes += sum(num_bytes(v) for group in own.values() for v in group.values())
            result.rows[client] = outcome.row
            result.local[client] = outcome.local
            result.metrics.append(outcome.metrics)
        result.kept_bytes += fold.kept_bytes
        result.tampered = self.ambush.told
        result.returned = tuple(sorted(returned))
        result.sent = tuple(sorted(self.left))
        result.left_out.sort(key=lambda failed: failed[0])
        few = (
            f"Round {self.round.index + 1} drew {len(self.round.cohort)} clients, fewer than {self.rules.min_cohort}, and asked none."
            if self.too_small
            else f"Round {self.round.index + 1} got {len(returned)} of {len(self.round.cohort)} clients back, fewer than {self.rules.min_cohort}."
        )
        nobody = isinstance(self.world.phase(self.round.phase).cohort, Nobody)
        if guards.private and not nobody and len(returned) < self.rules.min_cohort and (self.too_small or result.sent):
            if guards.secure is not None:
                return self._void(f"{few} The sum was not unmasked, and nothing was absorbed.")
            fold = self._nothing_but_noise(few)
            each = {}
        elif self.round.cohort and len(returned) < self.rules.min_cohort:
            raise TooFew(few, result)
        elif self.secure is None and self.round.cohort and averages(self.slots) and fold.counted < self.world.reduce.fewest:
            raise TooFew(
                f"Round {self.round.index + 1} got {fold.counted} of {len(self.round.cohort)} clients back that count, "
                f"but {self.world.reduce} needs {self.world.reduce.fewest}.", result,
            )  # fmt: skip
        if self.secure is not None:
            summed = self.secure.close()
            fold.add(summed)
            self._record("up", None, summed)
        result.state = self._absorb(self._without_bits(fold.result()), each)
        return result

    def _messages(self) -> Iterator[tuple[ClientId, Finished, Message]]:
        """What counts, in the clients' order; of attackers who change what they send at the end, when all of them have trained."""
        for client, outcome in in_order(self.order, self._outcomes()):
            message = self._receive(client, outcome)
            if message is None:
                continue
            assert isinstance(outcome, Finished)
            if client in self.ambush:
                self.ambush.hold(client, outcome, message)
                continue
            self.ambush.see(client, message)
            yield client, outcome, message
        for client, outcome, message, down in self.ambush.sent(self.slots):
            arrived = self._receive_attack(client, message, down)
            if arrived is not None:
                yield client, outcome, arrived

    def _receive_attack(self, client: ClientId, message: Message, down: Message) -> Message | None:
        """Nothing guards an attacker's Message on the client; the border checks it like any other."""
        arrived = self.rules.guards.unprotected(message, self.slots)
        self.left.add(client)
        try:
            if self.secure is not None:
                self.secure.add(client, arrived, attacks=True)
                return Message()
            self.result.ledger.count("up", arrived)
            check(message, as_changes(self.slots), down, norm_ratio=self.rules.norm_ratio)
        except Refused as refused:
            self.result.left_out.append((client, Failure(str(refused))))
            return None
        return arrived

    def _fold(self) -> Folding:
        guards = self.rules.guards
        return self.world.reduce.fold(
            guards.with_bit(self.slots), premultiplied=guards.private, expected=self.world.expected(self.round),
            by_expected=guards.private and not guards.kappa,
        )  # fmt: skip

    def _nothing_but_noise(self, why: str) -> Folding:
        """Under noise no round is drawn again: who came is forgotten, rows and all, and noise takes the place of the sum."""
        self._void(f"{why} Nothing but noise was absorbed.")
        fold = self._fold()
        fold.add(self.rules.guards.nothing_but_noise(self.slots, self.noise))
        return fold

    def _void(self, why: str) -> RoundResult:
        """The round as if nobody had come, but for what left them."""
        result = self.result
        result.void, result.sent, result.state = why, tuple(sorted(self.left)), self.state
        result.rows, result.local, result.metrics, result.returned, result.kept_bytes = {}, {}, [], (), 0
        return result

    def _without_bits(self, mean: Message | None) -> Message | None:
        """What the method absorbs; the bits of an adaptive clip move the next round's clip instead."""
        if mean is None or BIT not in mean.groups or not self.rules.guards.follows:
            return mean
        guards = self.rules.guards
        assert guards.clip is not None
        expected = max(self.world.expected(self.round), 1.0)
        first = self.rules.first_clip or guards.clip
        self.result.clip = guards.adaptive.next_clip(guards.clip, float(mean[BIT]["within"]), expected, first)
        return Message({name: group for name, group in mean.groups.items() if name != BIT}, mean.scalars, mean.weight)

    def _outcomes(self) -> Iterator[Outcome]:
        for outcome in self.backend.train(self._jobs(), self._answer):
            yield outcome
            while self.unready:
                yield self.unready.pop()
        yield from self.unready

    def _jobs(self) -> Iterator[TrainJob]:
        for client in self.order:
            down = self.method.send(self.state, client, self.hub)
            self.downs[client] = down
            self.result.ledger.count("down", down)
            self._record("down", client, down)
            if self.rules.guards.follows:
                self.result.ledger.count("down", _CLIP_TOLD)
            for name, content in self.state.public.items():
                known = self.result.delivered.setdefault(content.digest, set())
                if client not in known:
                    known.add(client)
                    self.result.ledger.count_once(name, sum(map(num_bytes, content.tensors.values())))
            try:
                row = self.row(client)
            except Exception as error:  # a first row may be made of the client's data
                self.unready.append((client, failure(error)))
                continue
            yield TrainJob(
                client, self.round, row, down, self.state.public, self.attempt,
                evaluate=client in self.evaluate_local, kinds={name: slot.kind for name, slot in self.slots.items()},
            )  # fmt: skip

    def _record(self, way: Way, client: ClientId | None, message: Message, exchange: str | None = None) -> None:
        if self.tape is not None:
            self.tape.note(way, client, message, exchange)

    def row(self, client: ClientId) -> Groups:
        return row_of(self.world, self.method, self.rows, client, self.round, self.state, fresh=client in self.fresh)

    def _receive(self, client: ClientId, outcome: Finished | Failure) -> Message | None:
        """The guarded Message, or None with the reason kept; of an attacker what it trained, which it has not sent yet."""
        down = self.downs.pop(client)
        if isinstance(outcome, Failure):
            self.result.left_out.append((client, outcome))
            return None
        if self.secure is not None:
            return self._receive_masked(client, outcome, down)
        try:
            message = self._guarded_or_noise(client, outcome.message, down)
        except Refused as refused:
            self.result.ledger.count("up", outcome.message)  # what crossed is counted all the same
            self.result.left_out.append((client, Failure(str(refused))))
            return None
        if client not in self.ambush:
            self.left.add(client)
            self.result.ledger.count("up", message)
        if outcome.unusable is not None and not self.rules.guards.private:  # under noise staying away would tell of its data
            self.result.left_out.append((client, outcome.unusable))
            return None
        return message

    def _guarded_or_noise(self, client: ClientId, message: Message, sent: Message) -> Message:
        """What leaves the client. Under noise staying away would tell of its data: unusable numbers become noise on zeros."""
        if client in self.ambush:
            return self.ambush.trained(client, self._checked(message, self.slots, sent), sent)
        try:
            return self._guard(message, self.slots, sent)
        except NotFinite as refused:
            if not self.rules.guards.private:
                raise
            self.silenced.add(client)
            self.result.left_out.append((client, Failure(f"{refused} Only its noise was sent.")))
            return self.rules.guards.as_if_absent(self.slots, self.noise)

    def _receive_masked(self, client: ClientId, outcome: Finished, down: Message) -> Message | None:
        """Under a secure sum: the client guards, encodes and masks; what stays here is that it has, not what."""
        assert self.secure is not None
        try:
            if not self.secure.sends(client):
                raise Refused("dropped out before it sent its masked vector, as the experiment asks for.")
            if outcome.unusable is not None and not self.rules.guards.private:  # under noise staying away would tell of its data
                raise Refused(outcome.unusable.reason)
            message = self._guarded_or_noise(client, outcome.message, down)
            if client in self.ambush:
                return message
            self.secure.add(client, message)
        except Refused as refused:
            self.result.left_out.append((client, outcome.unusable or Failure(str(refused))))
            return None
        self.left.add(client)
        return Message()

    def _checked(self, message: Message, slots: Mapping[str, Slot], sent: Message) -> Message:
        """The changes in a Message that may count."""
        ratio = float("inf") if self.rules.guards.clip is not None else self.rules.norm_ratio
        check(message, slots, sent, norm_ratio=ratio)
        return changes(message, slots, sent)

    def _guard(self, message: Message, slots: Mapping[str, Slot], sent: Message) -> Message:
        try:
            return self.rules.guards.apply(self._checked(message, slots, sent), slots, self.noise)
        except Unguardable as error:
            raise NotFinite(str(error)) from error

    def _answer(self, asked: Mapping[ClientId, Exchange]) -> Mapping[ClientId, Message | Failure]:
        """Answer a mid-round question of everybody who is still in the round."""
        name = next(iter(asked.values())).name
        slots = {slot.removeprefix(f"{name}/"): s for slot, s in self.exchanged.items() if slot.startswith(f"{name}/")}
        replies: dict[ClientId, Message | Failure] = {}
        arrived: dict[ClientId, Message] = {}
        for client, ask in asked.items():
            try:
                if ask.name != name:
                    raise Refused(f"asked the exchange '{ask.name}' while others asked '{name}'.")
                arrived[client] = self._guard(ask.message, slots, Message())
            except Refused as refused:
                replies[client] = Failure(str(refused))
            self.result.ledger.count("up", arrived.get(client, ask.message), exchange=ask.name)
            if client in arrived:
                self._record("up", client, arrived[client], exchange=ask.name)
        self.state, answers = self.method.answer(self.state, name, arrived, self.hub)
        for client in arrived:
            if client in answers:
                self.result.ledger.count("down", answers[client], exchange=name)
                self._record("down", client, answers[client], exchange=name)
                replies[client] = answers[client]
            else:
                replies[client] = Failure(f"got no answer to the exchange '{name}'.")
        return replies

    def _absorb(self, mean: Message | None, each: Mapping[ClientId, Message]) -> ServerState:
        hub = replace(self.hub, returned=self.result.returned)
        told: list[tuple[str, Mapping[str, float]]] = []
        context = Context(self.world.net, self.round, hub.key)
        asking = conduct(as_run(self.method.absorb(self.state, mean, each, hub)), context, (Train, Sweep), told)
        state = conclude(asking, self.backend.reply_to)
        if not isinstance(state, ServerState):
            name = type(self.method).__name__
            raise ValueError(f"{name}.absorb must return a ServerState, found {type(state).__name__}. Return the new state.")
        self.result.metrics += [{f"server/{ask}/{name}": v for name, v in numbers.items()} for ask, numbers in told]
        return state


def averages(slots: Mapping[str, Slot]) -> bool:
    """Whether a reduction has anything to do."""
    return any(slot.reduce != "each" and slot.spec for slot in slots.values())


def in_order(order: tuple[ClientId, ...], outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """The outcomes in this order, whatever order they finish in: sums must not depend on it."""
    early: dict[ClientId, Finished | Failure] = {}
    expected = iter(order)
    client = next(expected, None)
    for finished, outcome in outcomes:
        early[finished] = outcome
        while client is not None and client in early:
            yield client, early.pop(client)
            client = next(expected, None)
