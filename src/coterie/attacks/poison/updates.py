"""Attacks on what is sent: each turns an attacker's honest update x into another one.

* `SignFlip`: -scale x.
* `RandomUpdate`: a Gaussian direction, `scale` times as long as x over all groups together. Attackers that work together agree on one
  direction a round; alone, theirs cancel to 1 / sqrt(f) in the mean.
* `ScaledUpdate`: scale x, the boosting of model replacement (Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020,
  arXiv 1807.00459: gamma (X - G) with gamma up to n / eta); with honest data it only overshoots.
* `InnerProduct`: -epsilon times a mean of updates (Xie, Koyejo, Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner
  Product Manipulation", UAI 2019, arXiv 1903.03936), the mean of the honest clients' where attackers see them, else of the attackers' own.

Only floats change; whole numbers, scalars and weights are sent as they are.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.attacks.poison.attack import Attack
from coterie.message import Message
from coterie.randomness import Key
from coterie.tensors import Groups, gmap, norm


@dataclass(frozen=True, kw_only=True)
class UpdateAttack(Attack):
    """An attack in which every attacker changes its own update by itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("scale", "epsilon"):
            value = getattr(self, name, 1.0)
            if not 0.0 < value < math.inf:
                raise ValueError(f"{name} must be greater than 0, found {value}. Use for example 10.")

    @property
    def tampers(self) -> bool:
        return True

    def tamper(
        self, messages: Mapping[int, Message], downs: Mapping[int, Message], key: Key, honest: Mapping[int, Message]
    ) -> Mapping[int, Message]:
        return {client: message.with_(**self.change(message.groups, key.fold(client))) for client, message in messages.items()}

    @abstractmethod
    def change(self, groups: Groups, key: Key) -> Groups:
        """One attacker's update instead of this one."""


@dataclass(frozen=True, kw_only=True)
class SignFlip(UpdateAttack):
    """Send the opposite of what was learned, `scale` times as long."""

    scale: float = 1.0

    def change(self, groups: Groups, key: Key) -> Groups:
        return scaled(groups, -self.scale)


@dataclass(frozen=True, kw_only=True)
class ScaledUpdate(UpdateAttack):
    """Send `scale` times what was learned."""

    scale: float = 10.0

    def change(self, groups: Groups, key: Key) -> Groups:
        return scaled(groups, self.scale)


@dataclass(frozen=True, kw_only=True)
class RandomUpdate(UpdateAttack):
    """Send noise, `scale` times as long as what was learned; `together`: the same direction for all attackers of a round."""

    scale: float = 100.0
    together: bool = True

    def tamper(
        self, messages: Mapping[int, Message], downs: Mapping[int, Message], key: Key, honest: Mapping[int, Message]
    ) -> Mapping[int, Message]:
        if not self.together:
            return super().tamper(messages, downs, key, honest)
        return {client: message.with_(**self.change(message.groups, key)) for client, message in messages.items()}

    def change(self, groups: Groups, key: Key) -> Groups:
        generator = key.fold("random").numpy()

        def draw(value: Tensor) -> Tensor:
            drawn = torch.from_numpy(generator.standard_normal(tuple(value.shape))).to(value.device)
            return drawn if value.is_floating_point() else value

        noise = gmap(draw, groups)
        factor = self.scale * float(norm(floats(groups).values())) / max(float(norm(floats(noise).values())), 1e-300)
        return gmap(lambda value, like: value.mul(factor).to(like.dtype) if like.is_floating_point() else like, noise, groups)


@dataclass(frozen=True, kw_only=True)
class InnerProduct(Attack):
    """Send -epsilon times the mean of updates, so that the mean of all points backwards. `sees`: whose updates attackers know."""

    epsilon: float = 10.0
    sees: Literal["own", "all"] = "own"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be greater than 0, found {self.epsilon}. Use for example 10.")
        if self.sees not in ("own", "all"):
            raise ValueError(f"sees must be own or all, found '{self.sees}'. Use 'own' for attackers that know only themselves.")

    @property
    def tampers(self) -> bool:
        return True

    @property
    def omniscient(self) -> bool:
        return self.sees == "all"

    def tamper(
        self, messages: Mapping[int, Message], downs: Mapping[int, Message], key: Key, honest: Mapping[int, Message]
    ) -> Mapping[int, Message]:
        known = [message.groups for _, message in sorted((honest or messages).items())]
        mean = gmap(lambda *values: torch.stack([value.double() for value in values]).mean(0), *known) if known else {}
        sent = scaled(mean, -self.epsilon)
        return {
            client: message.with_(**gmap(lambda value, new: new.to(value.dtype) if value.is_floating_point() else value, message.groups, sent))
            for client, message in messages.items()
        }


def scaled(groups: Groups, factor: float) -> Groups:
    return gmap(lambda value: value * factor if value.is_floating_point() else value, groups)


def floats(groups: Groups) -> Groups:
    return {group: {name: value for name, value in tensors.items() if value.is_floating_point()} for group, tensors in groups.items()}
