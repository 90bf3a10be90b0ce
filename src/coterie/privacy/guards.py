"""What protects a Message before it leaves a client, in one place and one order: clip -> weigh -> noise -> mask.

One clip norm spans every guarded group. Under noise a client's weight a in [0, 1] is multiplied in before
the sum, and the weight itself travels as one more guarded coordinate, scaled by kappa (PT-D2 of PrivFedTalk's
specification): u = (a clip(Delta, C), kappa C a) + N(0, sigma^2 C^2 (1 + kappa^2) I), so ||u|| <= C sqrt(1 + kappa^2)
before the noise whatever the client does. How many epsilon that is, `privacy/accountant` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from coterie.message import Message, Slot
from coterie.privacy.accountant import Budget
from coterie.privacy.noise import NoiseSource
from coterie.privacy.secure_sum.settings import SecureSum
from coterie.privacy.secure_sum.vector import check_slots
from coterie.tensors import Tensors, norm, scale


@dataclass(frozen=True, kw_only=True)
class Guards:
    """`clip`: L2 bound C on a client's change. `noise`: multiplier sigma of C; 0 for none.

    `split`: "full" noise on every client, or a "share" of 1/sqrt(min_cohort) so that the sum carries sigma C.
    `budget`: epsilon that the run may spend, after which it stops (`privacy/accountant`).
    `n_max`: weights are min(weight, n_max) / n_max; it must be public, because a weight tells of the data.
    `secure`: the server learns the sum only; the engine masks what these guards leave of a Message.
    """

    clip: float | None = None
    noise: float = 0.0
    split: Literal["full", "share"] = "full"
    n_max: float = 1.0
    kappa: float = 0.1
    min_cohort: int = 1
    audit_seed: int | None = None
    budget: Budget | None = None
    secure: SecureSum | None = None

    def __post_init__(self) -> None:
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be greater than 0, found {self.clip}. Use for example 1.0, or leave it out.")
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise must be at least 0, found {self.noise}. Use for example 0.5, or 0 for none.")
        for name, value in (("n_max", self.n_max), ("kappa", self.kappa), ("min_cohort", self.min_cohort)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be greater than 0, found {value}. Use the default, or a number above 0.")
        if self.split not in ("full", "share"):
            raise ValueError(f"split must be full or share, found '{self.split}'. Use 'full' for whole noise on every client.")
        if self.budget is not None and self.budget.epsilon is not None and not self.noise:
            raise ValueError(
                f"A budget of epsilon {self.budget.epsilon:g} without noise allows no round. "
                "Set noise (coterie privacy plan tells how much), or leave the budget out."
            )
        if self.noise and self.clip is None:
            raise ValueError("Noise without a clip bounds nothing: found noise > 0 and no clip. Set clip as well.")
        if self.secure is not None:
            self._check_range(self.secure.range)

    @property
    def private(self) -> bool:
        return self.noise > 0

    @property
    def shares(self) -> int:
        """How many clients must return so that their shares add up to the noise that is claimed."""
        return self.min_cohort if self.private and self.split == "share" else 1

    @property
    def noise_std(self) -> float:
        """Standard deviation per coordinate that one client adds."""
        full = self.noise * (self.clip or 0.0) * math.sqrt(1.0 + self.kappa**2)
        return full / math.sqrt(self.min_cohort) if self.split == "share" else full

    @property
    def coordinate_bound(self) -> float:
        """The range that a secure sum reserves for one client's coordinate: C + 8 sigma C under noise, with both factors of kappa."""
        if self.private:
            return (self.clip or 0.0) * max(1.0, self.kappa) + 8.0 * self.noise_std
        declared = self.secure.range if self.secure is not None else None
        return declared or (self.clip or 0.0) * (1.0 + 2.0**-16)  # a clipped float32 may be longer than C by its rounding

    @property
    def weight_scale(self) -> float:
        """What a weight of 1 is in a secure sum's last coordinate: kappa C under noise, else all of the range."""
        return self.kappa * (self.clip or 0.0) if self.private else self.coordinate_bound

    def source(self, round: int) -> NoiseSource:
        """Where this round's noise comes from; an audit of a broken mechanism draws elsewhere."""
        return NoiseSource(self.audit_seed, round)

    def check(self, slots: Mapping[str, Slot], method: str) -> None:
        """Refuse, before the run, what these guards can't protect."""
        if self.secure is not None:
            check_slots(slots, method)
            self._check_public(slots, method)
        if self.clip is None:
            return
        for name, slot in slots.items():
            whole = [key for key, (_, dtype) in slot.spec.items() if not dtype.is_floating_point]
            if slot.guard == "update" and whole:
                raise ValueError(
                    f"{method} sends '{whole[0]}' in '{name}' as whole numbers, which can't be scaled or noised. "
                    "Send floats, or leave out clip and noise."
                )
            if slot.reduce == "each" and slot.guard == "update":
                raise ValueError(
                    f"{method} needs every client's own '{name}', which a clip on the summed change does not protect. "
                    "Leave out clip and noise, or choose a method whose updates are averaged."
                )
            if self.private and slot.guard == "public":
                raise ValueError(
                    f"{method} sends '{name}' unguarded, so noise on the rest protects nobody. "
                    "Keep batch-norm statistics on the client with buffers='local', or use a net without them."
                )

    def apply(self, message: Message, slots: Mapping[str, Slot], noise: NoiseSource) -> Message:
        """The Message as it leaves the client. `message` holds changes already."""
        if self.clip is None:
            return message
        guarded = [name for name in message.groups if slots[name].guard == "update"]
        if not guarded and message.weight is None and not message.scalars:
            return message  # nothing that tells of the data
        length = norm(message.groups[name] for name in guarded)
        factor = float((self.clip / length.clamp(min=1e-30)).clamp(max=1.0))
        if not self.private:
            return message.with_(**{name: scale(message[name], factor) for name in guarded}) if factor < 1 else message
        if message.scalars:
            raise ValueError(
                f"The scalars {sorted(message.scalars)} would leave the client unguarded, so noise on the rest protects nobody. "
                "Don't send them, or leave out noise."
            )
        weight = self.weight_of(message)
        groups = {name: noise.add(scale(message[name], factor * weight), self.noise_std) for name in guarded}
        block = noise.add({"weight": torch.tensor(self.kappa * self.clip * weight, dtype=torch.float64)}, self.noise_std)
        return replace(message, groups={**message.groups, **groups}, weight=block["weight"] / (self.kappa * self.clip))

    def unprotected(self, message: Message, slots: Mapping[str, Slot]) -> Message:
        """What a client sends that runs no guard: in the form that the server sums (PT-D2's), without clip or noise."""
        if not self.private:
            return message
        weight = self.weight_of(message)
        groups = {name: scale(message[name], weight) for name in message.groups if slots[name].guard == "update"}
        return replace(message, groups={**message.groups, **groups}, weight=torch.tensor(weight, dtype=torch.float64))

    def nothing_but_noise(self, slots: Mapping[str, Slot], noise: NoiseSource) -> Message:
        """What an empty cohort releases: the same noise on zeros, so that emptiness is not told.

        Where clients carry shares, one Message here carries what a smallest cohort's shares add up to.
        """
        zeros = {name: _zeros(slot) for name, slot in slots.items() if slot.guard == "update"}
        return replace(self, split="full").apply(Message(zeros, weight=torch.zeros((), dtype=torch.float64)), slots, noise)

    def weight_of(self, message: Message) -> float:
        """a in [0, 1], how much this client counts."""
        weight = 1.0 if message.weight is None else float(message.weight)
        if weight > 1.0 and self.n_max == 1.0:
            raise ValueError(
                f"With {'noise' if self.private else 'a secure sum'} a client's weight must be public or bounded, found {weight:g}. "
                "Set n_max to the largest number of examples that counts."
            )
        return min(weight, self.n_max) / self.n_max

    def _check_range(self, declared: float | None) -> None:
        if self.private and declared is not None:
            raise ValueError(
                f"Under noise the range of a secure sum follows from clip and noise, found range={declared:g} as well. Leave it out."
            )
        if declared is None and self.clip is None:
            raise ValueError("A secure sum without a clip must know how large a coordinate can be, found no range. Set range, for example 8, or a clip.")

    def _check_public(self, slots: Mapping[str, Slot], method: str) -> None:
        """What no clip reaches needs a range of its own."""
        public = [name for name, slot in slots.items() if slot.guard == "public"]
        if public and not self.private and self.secure is not None and self.secure.range is None:
            raise ValueError(
                f"{method} sends '{public[0]}' without a clip, so the range of the secure sum can't be the clip. "
                "Set its range, for example 8, or keep batch-norm statistics on the client with buffers='local'."
            )


def _zeros(slot: Slot) -> Tensors:
    return {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in slot.spec.items()}
