"""A round under a secure sum: clients mask what they send, and the server's side of the round sees the sum only.

The border's checks of one Message (names, shapes, finite numbers, norm) are made by the client's own software here, because the
server can't see what it would check; an attacker may leave them out. A client that fails them sends nothing and is recovered
like any other that dropped out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from coterie.engine.backend import World
from coterie.engine.border import Refused
from coterie.engine.wire import Ledger
from coterie.message import Message, Slot
from coterie.method import Round
from coterie.privacy.clipping import BIT
from coterie.privacy.guards import Guards
from coterie.privacy.noise import NoiseSource, grid_step
from coterie.privacy.secure_sum import FixedPoint, InProcess, SecureSum
from coterie.privacy.secure_sum.in_process import STEPS, Step
from coterie.privacy.secure_sum.vector import Layout, weighed
from coterie.randomness import Key
from coterie.states import ClientId
from coterie.tensors import scale

_ROUNDING = 2**32  # no round of any run has this number
_TRAFFIC: tuple[Step, ...] = ("keys", "shares", "unmask")


class SecureRound:
    """The real protocol of all clients of one attempt of a round, in this process."""

    def __init__(
        self, guards: Guards, layout: Layout, round: Round, device: torch.device, ledger: Ledger, dropouts: Key
    ) -> None:
        assert guards.secure is not None
        self.guards, self.layout, self.device, self.ledger = guards, layout, device, ledger
        # rounding has numbers of its own, so that an audit's noise is the same with and without a secure sum
        self.rounding = NoiseSource(guards.audit_seed, _ROUNDING + round.index)
        self.silent_from = draw_dropouts(guards.secure, round.cohort, dropouts)
        self.protocol = InProcess(guards.secure, round.index, round.cohort, layout.length, self.silent_from)
        self.code = fixed_point(guards, len(round.cohort))
        self.clamped = 0

    @classmethod
    def of(
        cls, world: World, guards: Guards, slots: Mapping[str, Slot], round: Round, asked: tuple[ClientId, ...], ledger: Ledger, attempt: int
    ) -> SecureRound | None:
        """The protocol of this attempt, where there are clients that are asked and something to sum."""
        layout = Layout(guards.with_bit(slots))
        if guards.secure is None or not layout.slots or not asked:
            return None
        device = next(iter(world.net.params.values())).device
        return cls(guards, layout, round, device, ledger, Key(world.seed, ("dropout", round.index, attempt)))

    def open(self) -> None:
        """Keys and shares of everybody, before anybody trains."""
        self.protocol.open()

    def sends(self, client: ClientId) -> bool:
        return self.protocol.sends(client)

    def add(self, client: ClientId, message: Message, *, attacks: bool = False) -> None:
        """Encode, mask and send what the guards left of a client's Message; an attacker takes all of the range that there is."""
        if self.guards.private:  # holds a clip(Delta) + noise and a + noise already
            groups, weight = message.groups, float(message.weight if message.weight is not None else 1.0)
        else:
            weight = self.guards.weight_of(message)
            groups = weighed(message, self.layout.slots, weight)
        if BIT in groups:
            groups = {**groups, BIT: scale(groups[BIT], self.guards.bit_scale)}
        vector = self.layout.vector(groups, weight * self.guards.weight_scale)
        try:
            encoded, clamped = self.code.encode(vector, self.rounding.uniform(vector.size), clamp=self.guards.private or attacks)
        except ValueError as error:
            raise Refused(f"kept its vector back: {error}") from error
        self.clamped += clamped
        self.protocol.add(client, encoded)
        width = encoded.itemsize
        for slot, size in {**self.layout.sizes, "weight": 1}.items():
            self.ledger.count_bytes("up", slot, size * width)

    def close(self) -> Message:
        """The sum as one Message, ready to be folded: under noise S and A, else the mean of all and its weight."""
        groups, last = self.layout.groups(self.code.decode(self.protocol.close()), self.device)
        if BIT in groups:
            groups[BIT] = scale(groups[BIT], 1.0 / self.guards.bit_scale)
        weight = last / self.guards.weight_scale if self.guards.weight_scale else 0.0  # with kappa 0 none travels
        if not self.guards.private and weight > 0:
            for name, slot in self.layout.slots.items():
                if slot.reduce == "mean":
                    groups[name] = {key: value / weight for key, value in groups[name].items()}
            weight *= self.guards.n_max or 1.0
        return Message(groups, weight=torch.tensor(weight, dtype=torch.float64))

    def count_traffic(self) -> None:
        """Keys, shares and unmasking as their messages were; vectors are booked by slot as they arrive."""
        for (step, way), (size, clients) in self.protocol.traffic.cells.items():
            if step in _TRAFFIC:
                self.ledger.count_bytes(way, f"secure {step}", size, clients)

    def record(self) -> dict[str, Any]:
        """What is told of it in metrics.jsonl."""
        server = self.protocol.server
        return {
            "threshold": server.threshold, "bits": self.code.bits, "fraction_bits": self.code.fraction_bits,
            "range": self.code.bound, "error_of_sum": self.code.error, "survivors": len(server.survivors),
            "recovered": len(server.shared - server.survivors), "clamped": self.clamped,
        }  # fmt: skip


def fixed_point(guards: Guards, clients: int) -> FixedPoint:
    """How a cohort of this size writes its numbers; discrete noise must find its grid among them."""
    assert guards.secure is not None
    code = FixedPoint(clients, guards.coordinate_bound, guards.secure.bits)
    grid = grid_step(guards.clip or 1.0)
    if guards.private and guards.mechanism == "discrete" and code.step > grid:
        raise ValueError(
            f"A secure sum of {clients} clients in {code.bits} bits counts in steps of {code.step:.1e}, coarser than the grid of the "
            f"discrete noise, {grid:.1e}. Use 64 bits, or mechanism='gaussian'."
        )
    return code


def draw_dropouts(secure: SecureSum, cohort: tuple[ClientId, ...], key: Key) -> dict[ClientId, Step]:
    """Who falls silent, and from which step on, for experiments: from the run's key, so that it can be repeated."""
    if not secure.dropout:
        return {}
    generator = key.numpy()
    lost = generator.random(len(cohort)) < secure.dropout
    steps = generator.integers(len(STEPS), size=len(cohort))
    return {client: STEPS[step] for client, gone, step in zip(cohort, lost, steps, strict=True) if gone}
