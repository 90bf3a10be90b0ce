"""Canary clients: directions that nobody else knows, pushed through the guards, and looked for in what the server saw.

A canary sends C times a unit vector instead of what it would have trained. Directions stand at right angles to each other,
turned at random, so that no canary shows up in another's score; those that nobody pushes are the null. From round to round a
canary changes its sign, and the attacker adds the sums of the rounds with the same signs,

    score_j = sum_t (-1)^t <S_t, d_j> / (sqrt(R) std of one sum's noise),

which is N(0, 1) for the null and N(sqrt(R) / sigma, 1) for a canary. The signs cost nothing where noise is fresh, they cancel
what honest clients push in every round alike, and they cancel noise that is drawn twice: that is how a reused seed is found.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from coterie.privacy.audit.bounds import Scores


@lru_cache(maxsize=4)
def directions(seed: int, count: int, size: int) -> Tensor:
    """`count` random unit vectors of `size` coordinates at right angles, one in each row."""
    if count > size:
        raise ValueError(
            f"{count} directions at right angles need at least {count} parameters, found {size}. Use fewer canaries, or a larger net."
        )
    frame, upper = np.linalg.qr(np.random.default_rng((seed, 1)).standard_normal((size, count)))
    return torch.from_numpy((frame * np.sign(np.diag(upper))).T.copy())  # signs as drawn: else QR would prefer some turns


def coins(seed: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """A fair coin for each canary."""
    return np.random.default_rng((seed, 2)).random(count) < 0.5


def sign_of(round: int) -> float:
    """What a canary multiplies its direction by in this round, counted from 0."""
    return -1.0 if round % 2 else 1.0


def permuted_auc(without: Scores, with_canary: Scores, seed: int) -> float:
    """The AUC when nobody knows which score is which: about one half, or the statistic itself is at fault."""
    from coterie.privacy.audit.bounds import auc

    mixed = np.random.default_rng((seed, 3)).permutation(np.concatenate([without, with_canary]))
    return auc(mixed[: len(without)], mixed[len(without) :])
