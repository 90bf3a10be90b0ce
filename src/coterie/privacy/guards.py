"""What protects a Message before it leaves a client, in one place and one order: clip -> weigh -> noise -> mask.

One clip norm C spans every guarded group: as one bound for all of them ("flat"), as bounds C / sqrt(G) of G layers or
slots, whose squares add up to C^2 ("groups"), or as one bound that follows a quantile of the clients' lengths ("adaptive",
privacy/clipping.py). Under noise a client's weight a in [0, 1] is multiplied in before the sum, and the weight itself
travels as one more guarded coordinate, scaled by kappa (PT-D2 of PrivFedTalk's specification):
u = (a clip(Delta, C), kappa C a) + N(0, sigma^2 C^2 (1 + kappa^2) I), so ||u|| <= C sqrt(1 + kappa^2) before the noise whatever
the client does. With kappa = 0 no weight travels, and sums are divided by the number of clients that a round counts on.

`noise` is what the accountant is told, of everything that a client sends: with an adaptive clip the update alone carries more
(z_Delta), so that update and bit together cost no more. How many epsilon that is, the accountant says.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from coterie.message import Message, Slot
from coterie.privacy.accountant import Budget
from coterie.privacy.clipping import BIT, BIT_SLOT, Adaptive, ClipGroups, ClipMode, factor_to, length, towards_zero, units
from coterie.privacy.noise import Mechanism, NoiseSource, grid_step
from coterie.privacy.refusals import refuse_unprotected
from coterie.privacy.release import Release, Sampling
from coterie.privacy.secure_sum.settings import SecureSum
from coterie.tensors import Groups, Tensors, norm, scale


class Unguardable(ValueError):
    """A client's numbers that no guard can bound: not finite, or beyond what a float64 norm holds."""


_MOST_NOISE = 1e9  # nothing is left of any model long before, and squares of such numbers still fit a float
_HALF = torch.tensor(0.5, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Guards:
    """`clip`: L2 bound C on a client's change (the first one, if adaptive). `noise`: multiplier sigma of C; 0 for none.

    `clip_mode`: "flat", "groups" (of `clip_groups`: layers or slots), or "adaptive" (as `adaptive` says).
    `mechanism`: "gaussian", or "discrete" on a grid, drawn exactly, for sums in whole numbers.
    `split`: "full" noise on every client, or a "share" of 1/sqrt(min_cohort) so that the sum carries sigma C.
    `min_cohort`: under noise a round with fewer clients releases noise alone, so that every sum carries the noise of so many.
    `budget`: epsilon that the run may spend, after which it stops (`privacy/accountant`).
    `n_max`: weights are min(weight, n_max) / n_max; it must be public, because a weight tells of the data. 1 counts all
    alike; None refuses weights above 1. `kappa`: scale of the weight's own coordinate; 0 sends no weight.
    `secure`: the server learns the sum only; the engine masks what these guards leave of a Message.
    """

    clip: float | None = None
    noise: float = 0.0
    split: Literal["full", "share"] = "full"
    n_max: float | None = None
    kappa: float = 0.1
    min_cohort: int = 1
    audit_seed: int | None = None
    clip_mode: ClipMode = "flat"
    clip_groups: ClipGroups = "layers"
    adaptive: Adaptive = Adaptive()
    mechanism: Mechanism = "gaussian"
    budget: Budget | None = None
    secure: SecureSum | None = None

    def __post_init__(self) -> None:
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be greater than 0, found {self.clip}. Use for example 1.0, or leave it out.")
        if not 0 <= self.noise <= _MOST_NOISE:
            raise ValueError(f"noise must be from 0 to {_MOST_NOISE:g} clips, found {self.noise}. Use for example 0.5, or 0 for none.")
        if not 0 <= self.kappa < math.inf:
            raise ValueError(f"kappa must be at least 0, found {self.kappa}. Use the default, or 0 to send no weight.")
        for name, value in (("n_max", self.n_max), ("min_cohort", self.min_cohort)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be greater than 0, found {value}. Use the default, or a number above 0.")
        if self.split not in ("full", "share"):
            raise ValueError(f"split must be full or share, found '{self.split}'. Use 'full' for whole noise on every client.")
        for name, known in (("clip_mode", ClipMode), ("clip_groups", ClipGroups), ("mechanism", Mechanism)):
            if getattr(self, name) not in get_args(known):
                raise ValueError(f"{name} must be one of {', '.join(get_args(known))}, found '{getattr(self, name)}'. Use one of those.")
        if self.budget is not None and self.budget.epsilon is not None and not self.noise:
            raise ValueError(
                f"A budget of epsilon {self.budget.epsilon:g} without noise allows no round. "
                "Set noise (coterie privacy plan tells how much), or leave the budget out."
            )
        if self.noise and self.clip is None:
            raise ValueError("Noise without a clip bounds nothing: found noise > 0 and no clip. Set clip as well.")
        if self.clip is None and self.clip_mode != "flat":
            raise ValueError(f"clip_mode {self.clip_mode} needs a clip to share out or to begin with, found none. Set clip as well.")
        if self.private and not math.isfinite(self.noise_std):
            raise ValueError(f"A clip of {self.clip} with noise {self.noise} is more than a float holds. Use smaller ones.")
        if self.secure is not None:
            self._check_range(self.secure.range)

    @property
    def private(self) -> bool:
        return self.noise > 0

    @property
    def follows(self) -> bool:
        """Whether the clip follows a quantile, so that clients send a bit."""
        return self.clip is not None and self.clip_mode == "adaptive"

    @property
    def least(self) -> int:
        """How many clients must return so that their noise adds up to what is claimed."""
        return self.min_cohort if self.private else 1

    @property
    def sensitivity(self) -> float:
        """C sqrt(1 + kappa^2): the longest that a client's guarded vector can be before the noise, without the bit."""
        return (self.clip or 0.0) * math.sqrt(1.0 + self.kappa**2)

    @property
    def update_noise(self) -> float:
        """The multiplier that the update itself gets: z_Delta with an adaptive clip, else the declared one."""
        return self.adaptive.noise_on_update(self.noise) if self.private and self.follows else self.noise

    @property
    def bit_noise(self) -> float | None:
        """sigma_b of the adaptive clip's bit, in bits, as a sum of enough clients carries it; None where no bit is sent."""
        return self.adaptive.noise_on_bit(self.noise) if self.private and self.follows else None

    @property
    def noise_std(self) -> float:
        """Standard deviation per coordinate that one client adds."""
        return self._of_one(self.update_noise * self.sensitivity)

    @property
    def clip_noise(self) -> float | None:
        """The bit's noise relative to the 1/2 by which one client moves the bits; None where no bit is sent."""
        return None if self.bit_noise is None else 2.0 * self.bit_noise

    def release(
        self, *, round: int, sampling: Sampling, rate: float, participants: tuple[int, ...], secure: bool = False
    ) -> Release:
        """What a round under these guards let out: update and bit together cost the declared noise."""
        return Release(
            round=round, noise=self.update_noise, split=self.split, min_cohort=self.min_cohort, sampling=sampling, rate=rate,
            participants=participants, secure=secure, clip_noise=self.clip_noise,
        )  # fmt: skip

    def _of_one(self, whole: float) -> float:
        return whole / math.sqrt(self.min_cohort) if self.split == "share" else whole

    @property
    def coordinate_bound(self) -> float:
        """The range that a secure sum reserves for one client's coordinate: C + 8 sigma C under noise, with both factors of kappa."""
        bit = self.bit_scale * (0.5 + 8.0 * self._of_one(self.bit_noise or 0.0)) if self.follows else 0.0
        if self.private:
            return max((self.clip or 0.0) * max(1.0, self.kappa) + 8.0 * self.noise_std, bit)
        declared = self.secure.range if self.secure is not None else None
        return max(declared or self.clip or 0.0, bit)

    @property
    def bit_scale(self) -> float:
        """What a bit of 1 is in a secure sum: at most C, and a power of two, so that the grid of discrete noise stays one."""
        return math.ldexp(1.0, math.frexp(self.clip or 1.0)[1] - 1)

    @property
    def weight_scale(self) -> float:
        """What a weight of 1 is in a secure sum's last coordinate: kappa C under noise, else all of the range."""
        return self.kappa * (self.clip or 0.0) if self.private else self.coordinate_bound

    def at(self, clip: float | None) -> Guards:
        """These guards with the clip that a run has come to, where it is adaptive."""
        return replace(self, clip=clip) if self.follows and clip else self

    def cohort_seed(self, seed: int) -> int:
        """What cohorts are drawn from: the run's seed, and under noise what nobody knows, because that amplifies (PT-D1)."""
        return secrets.randbits(63) if self.private and self.audit_seed is None else seed

    def source(self, round: int) -> NoiseSource:
        """Where this round's noise comes from; an audit of a broken mechanism draws elsewhere."""
        return NoiseSource(self.audit_seed, round)

    def with_bit(self, slots: Mapping[str, Slot]) -> dict[str, Slot]:
        """The slots of a Message that has passed these guards: the adaptive clip's bit is one more."""
        guarded = any(slot.guard == "update" for slot in slots.values())
        return {**slots, BIT: BIT_SLOT} if self.follows and guarded else dict(slots)

    def check(self, slots: Mapping[str, Slot], method: str) -> None:
        """Refuse, before the run, what these guards can't protect."""
        refuse_unprotected(self, slots, method)

    def apply(self, message: Message, slots: Mapping[str, Slot], noise: NoiseSource) -> Message:
        """The Message as it leaves the client. `message` holds changes already."""
        if self.clip is None:
            return message
        if self.private and message.scalars:
            raise ValueError(
                f"The scalars {sorted(message.scalars)} would leave the client unguarded, so noise on the rest protects nobody. "
                "Don't send them, or leave out noise."
            )
        if not self._guarded(message, slots) and message.weight is None and not message.scalars:
            return message  # nothing that tells of the data
        bounded = self.bounded(message, slots)
        return self._noised(bounded, slots, noise) if self.private else _in_their_dtypes(bounded, message)

    def bounded(self, message: Message, slots: Mapping[str, Slot]) -> Message:
        """Clip and weigh: everything that is guarded, in float64, with the bit of an adaptive clip.

        With the weight's coordinate kappa C a this is the vector u before the noise (without noise weights stay as they are).
        """
        assert self.clip is not None
        guarded = self._guarded(message, slots)
        bounds = units(guarded, self.clip_mode, self.clip_groups)
        weight = self.weight_of(message) if self.private else 1.0
        done: Groups = {group: {} for group in guarded}
        whole = 0.0
        for unit in bounds:
            found = length([guarded[group][name] for group, name in unit])
            if not math.isfinite(found):
                raise Unguardable("sent a change with NaN or infinite entries, or of infinite length, which can't be clipped.")
            whole = math.hypot(whole, found)
            factor = factor_to(self.clip / math.sqrt(len(bounds)), found) * weight
            for group, name in unit:
                done[group][name] = guarded[group][name].double() * factor
        if self.follows and guarded:
            done[BIT] = {"within": _HALF if whole <= self.clip else -_HALF}
        return replace(message, groups={**message.groups, **done}, weight=self._counted(message, weight))

    def unprotected(self, message: Message, slots: Mapping[str, Slot]) -> Message:
        """What a client sends that runs no guard: in the form that the server sums (PT-D2's), without clip or noise."""
        guarded = self._guarded(message, slots)
        weight = self.weight_of(message) if self.private else 1.0
        groups = {name: scale(group, weight) for name, group in guarded.items()} if self.private else {}
        if self.follows and guarded:
            groups[BIT] = {"within": _HALF if float(norm(guarded.values())) <= (self.clip or 0.0) else -_HALF}
        counted = None if self.private and not self.kappa else self._counted(message, weight)
        return replace(message, groups={**message.groups, **groups}, weight=counted)

    def nothing_but_noise(self, slots: Mapping[str, Slot], noise: NoiseSource) -> Message:
        """What an empty cohort releases: the noise on zeros that a smallest cohort's would add up to, so that emptiness is not told."""
        whole = math.sqrt(self.min_cohort) if self.split == "full" else 1.0
        return replace(self, split="full", min_cohort=1).as_if_absent(slots, noise, whole)

    def as_if_absent(self, slots: Mapping[str, Slot], noise: NoiseSource, times: float = 1.0) -> Message:
        """One client's noise on zeros: what leaves a client whose own change can't be sent."""
        zeros = {name: _zeros(slot) for name, slot in self.with_bit(slots).items() if slot.guard == "update"}
        return self._noised(Message(zeros, weight=torch.zeros((), dtype=torch.float64)), slots, noise, times)

    def _guarded(self, message: Message, slots: Mapping[str, Slot]) -> Groups:
        return {name: group for name, group in message.groups.items() if slots[name].guard == "update"}

    def weight_of(self, message: Message) -> float:
        """a in [0, 1], how much this client counts."""
        weight = 1.0 if message.weight is None else float(message.weight)
        if not weight >= 0.0:
            raise Unguardable(f"sent the weight {weight}. A weight must be a number of at least 0.")
        if self.n_max is None and weight > 1.0:
            raise ValueError(
                f"With {'noise' if self.private else 'a secure sum'} a client's weight must be public or bounded, found {weight:g}. "
                "Set n_max to the largest number of examples that counts, or to 1 to count all clients alike."
            )
        most = self.n_max or 1.0
        return min(weight, most) / most

    def _counted(self, message: Message, weight: float) -> torch.Tensor | None:
        return torch.tensor(weight, dtype=torch.float64) if self.private else message.weight

    def _noised(self, bounded: Message, slots: Mapping[str, Slot], noise: NoiseSource, times: float = 1.0) -> Message:
        """Noise is added in float64 and rounded afterwards, so that rounding is post-processing."""
        assert self.clip is not None
        slots, groups = self.with_bit(slots), dict(bounded.groups)
        for name, group in self._guarded(bounded, slots).items():
            longest, std = (1.0, self._of_one(self.bit_noise or 0.0)) if name == BIT else (self.clip, self.noise_std)
            loud = self._add(noise, group, longest, times * std)
            groups[name] = {key: value.to(slots[name].spec[key][1]) for key, value in loud.items()}
        scaled = self.kappa * self.clip
        if not scaled or bounded.weight is None:
            return replace(bounded, groups=groups, weight=None)
        block = self._add(noise, {"weight": scaled * bounded.weight}, self.clip, times * self.noise_std)
        return replace(bounded, groups=groups, weight=block["weight"] / scaled)

    def _add(self, noise: NoiseSource, values: Tensors, longest: float, std: float) -> Tensors:
        return noise.add(values, std) if self.mechanism == "gaussian" else noise.add_discrete(values, std, grid_step(longest))

    def _check_range(self, declared: float | None) -> None:
        if self.private and declared is not None:
            raise ValueError(
                f"Under noise the range of a secure sum follows from clip and noise, found range={declared:g} as well. Leave it out."
            )
        if declared is None and self.clip is None:
            raise ValueError("A secure sum without a clip must know how large a coordinate can be, found no range. Set range, for example 8, or a clip.")


def _in_their_dtypes(bounded: Message, before: Message) -> Message:
    """Clipped only: numbers that did not change stay as they are, to the bit."""
    groups = {
        group: {name: towards_zero(value, before[group][name].dtype) if group in before.groups else value for name, value in tensors.items()}
        for group, tensors in bounded.groups.items()
    }
    return replace(bounded, groups=groups)


def _zeros(slot: Slot) -> Tensors:
    return {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in slot.spec.items()}
