"""Many runs of the guards themselves, on small vectors, with and without a canary: what one release lets out.

Each client's Message goes through `Guards.apply` (clip -> weigh -> noise) and the results are summed, as a round does. With
shares of noise the sum carries the noise that one client's guarantee is made of. The attacker knows everything but the
canary: it subtracts what the others sent and projects what is left onto the canary's update and weight,

    score = <(S, kappa C A) - known, (direction, kappa)> / (sqrt(1 + kappa^2) std of the sum's noise),

which is N(0, 1) without the canary and N(1 / sigma, 1) with it if the mechanism is what it claims: mu = 1 / sigma.
Without the canary that client sends zeros and its share of noise, so that a removed client is what differs and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from coterie.message import Message, Slot
from coterie.privacy.audit.bounds import Scores
from coterie.privacy.audit.broken import Fault, NoNoise, broken, push_of
from coterie.privacy.guards import Guards
from coterie.privacy.noise import Mechanism, NoiseSource

_SIZE = 6  # coordinates of an update: the score sees one direction, however many there are
_GROUP, _NAME = "shared", "update"


@dataclass(frozen=True)
class Theory:
    """What mu-Gaussian-DP says about the best attacker."""

    mu: float

    @property
    def auc(self) -> float:
        return float(ndtr(self.mu / math.sqrt(2.0)))

    def tpr(self, fpr: float) -> float:
        return float(ndtr(self.mu - ndtri(1.0 - fpr)))


def mechanism_scores(
    *, noise: float, clip: float = 1.0, clients: int = 2, runs: int = 10_000, mechanism: Mechanism = "gaussian",
    fault: Fault = "none", seed: int | None = None,
) -> tuple[Scores, Scores]:
    """Scores of so many releases without and with the canary. Clients carry shares; one alone carries the whole noise.

    Noise comes from the operating system, or with a seed from numbers that can be repeated.
    """
    check_mechanism(noise, clip, clients, runs)
    claimed = Guards(clip=clip, noise=noise, split="share", min_cohort=clients, mechanism=mechanism, audit_seed=seed)
    rng = np.random.default_rng(seed)
    guards = broken(claimed, fault, seed=int(rng.integers(2**62)))
    direction, others = _update_and_others(rng, clients, clip)
    slots = {_GROUP: Slot.like({_NAME: direction}, kind="change")}
    others_messages = [_message(update, 1.0) for update in others]
    nobody, canary = _message(0.0 * direction, 0.0), _message(push_of(fault) * clip * direction, 1.0)
    known = _release(guards, [*others_messages, nobody], slots, NoNoise())
    outcomes: list[Scores] = []
    for world, last in enumerate((nobody, canary)):
        messages = [*others_messages, last]
        released = [_release(guards, messages, slots, guards.source(world * runs + run)) for run in range(runs)]
        outcomes.append((torch.stack(released) - known).numpy() @ _test_vector(claimed, direction))
    return outcomes[0], outcomes[1]


def _update_and_others(rng: np.random.Generator, clients: int, clip: float) -> tuple[Tensor, list[Tensor]]:
    """The canary's unit direction, and updates of the others at right angles to it, too long for the clip."""
    frame, _ = np.linalg.qr(rng.standard_normal((_SIZE, _SIZE)))
    mixed = rng.standard_normal((clients - 1, _SIZE - 1)) @ frame[:, 1:].T
    long = 3.0 * clip * mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
    return torch.from_numpy(frame[:, 0].copy()), [torch.from_numpy(row) for row in long]


def _test_vector(guards: Guards, direction: Tensor) -> Scores:
    """(direction, kappa), of unit length, in units of the noise of the whole sum."""
    assert guards.clip is not None
    tested = np.append(direction.numpy(), guards.kappa * guards.kappa * guards.clip)
    std = guards.noise_std * math.sqrt(guards.min_cohort)
    scaled: Scores = tested / (math.sqrt(1.0 + guards.kappa**2) * std)
    return scaled


def _message(update: Tensor, weight: float) -> Message:
    return Message({_GROUP: {_NAME: update}}, weight=torch.tensor(weight, dtype=torch.float64))


def _release(guards: Guards, messages: list[Message], slots: dict[str, Slot], noise: NoiseSource) -> Tensor:
    """(S, A): the sums of guarded updates and of guarded weights."""
    sent = [guards.apply(message, slots, noise) for message in messages]
    weights = [message.weight for message in sent if message.weight is not None]
    updates = [message[_GROUP][_NAME].double() for message in sent]
    return torch.cat([torch.stack(updates).sum(0), torch.stack(weights).sum().reshape(1)])


def check_mechanism(noise: float, clip: float, clients: int, runs: int) -> None:
    if not noise > 0:
        raise ValueError(f"An audit needs a mechanism that claims something: noise must be greater than 0, found {noise:g}. Use for example 1.")
    if clients < 1:
        raise ValueError(f"A release needs at least 1 client, found {clients}. Use 1 or more.")
    if runs < 40:
        raise ValueError(f"A mechanism audit needs at least 40 runs, found {runs}. Use for example 10000.")
    Guards(clip=clip, noise=noise)
