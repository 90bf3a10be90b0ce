"""Attacks on messages of an encoder only (FedPer, FABLE): what stays on the client is made up, or gone round.

FABLE argues that an attacker must search for the anchors as well (6). The message holds J_g(x)^T v, and anchors, decoder and
label enter it only through v = dL/dz, d numbers per picture: so it is v that the strongest attacker varies (FB-D10).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Generator, Tensor

from coterie.attacks.inversion.guesses import DummyAnchors, DummyDecoder, Forward, FreeCotangent, Guess, KnownAnchors, direction
from coterie.attacks.inversion.matching import Attempt, Distance, Told, lbfgs, squared
from coterie.attacks.inversion.observed import Observed
from coterie.tensors import Tensors, squared_norm

_SHORTEST = 1e-300


def dummy_decoder(
    forward: Forward, observed: Observed, *, normalise: bool = False, iterations: int = 300, restarts: int = 3, distance: Distance = squared,
    seed: int = 0, told: Told | None = None,
) -> Attempt:  # fmt: skip
    """L0, FABLE's own attacker: a decoder on z, no anchors. With `normalise` L3, the decoder that FABLE's equals."""
    guess = DummyDecoder(forward, observed, num_features(forward, observed), normalise)
    return _run(guess, observed, iterations, restarts, distance, seed, told)


def dummy_anchors(
    forward: Forward, observed: Observed, *, anchors: int, iterations: int = 300, restarts: int = 3, distance: Distance = squared,
    seed: int = 0, told: Told | None = None,
) -> Attempt:  # fmt: skip
    """L1: as many anchor pictures as the client has are varied as well."""
    if anchors < 1:
        raise ValueError(f"There must be at least 1 dummy anchor, found {anchors}. Use as many as the clients have.")
    return _run(DummyAnchors(forward, observed, anchors), observed, iterations, restarts, distance, seed, told)


def known_anchors(
    forward: Forward, observed: Observed, anchors: Tensor, *, iterations: int = 300, restarts: int = 3, distance: Distance = squared,
    seed: int = 0, told: Told | None = None,
) -> Attempt:  # fmt: skip
    """The oracle: the true anchor pictures are known, decoder and label are not."""
    with torch.no_grad():
        embedded = direction(forward(observed.params, anchors.to(torch.float64)))
    guess = KnownAnchors(forward, observed, embedded)
    return _run(guess, observed, iterations, restarts, distance, seed, told)


def free_cotangent(
    forward: Forward, observed: Observed, *, orthogonal: bool = False, iterations: int = 300, restarts: int = 3, distance: Distance = squared,
    seed: int = 0, told: Told | None = None,
) -> Attempt:  # fmt: skip
    """L4: v' itself is varied; right for any decoder and any anchors. FABLE's v is `orthogonal` to z."""
    guess = FreeCotangent(forward, observed, num_features(forward, observed), orthogonal)
    first = guess.gradient(guess.start(Generator().manual_seed(seed)))
    guess = replace(guess, unit=(_length(observed.gradient) / max(_length(first), _SHORTEST)))
    return _run(guess, observed, iterations, restarts, distance, seed, told)


def _length(gradient: Tensors) -> float:
    return math.sqrt(float(squared_norm(gradient)))


def num_features(forward: Forward, observed: Observed) -> int:
    """d, as the encoder gives it."""
    with torch.no_grad():
        return int(forward(observed.params, torch.zeros(observed.shape, dtype=torch.float64)).shape[1])


def _run(guess: Guess, observed: Observed, iterations: int, restarts: int, distance: Distance, seed: int, told: Told | None) -> Attempt:
    return lbfgs(guess, observed, iterations=iterations, restarts=restarts, distance=distance, seed=seed, told=told)
