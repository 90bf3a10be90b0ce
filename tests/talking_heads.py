"""Talking heads small enough to check by hand: 16 x 16 pixels, 3 frames, 4 speakers, a net of base 8."""

from __future__ import annotations

import copy
from functools import cache

import torch

from coterie.data.examples import Population
from coterie.data.procedural_heads import procedural_talking_heads
from coterie.models.net import Net
from coterie.models.talking import talking_head
from coterie.randomness import Key
from coterie.tensors import clone

STEPS, FRAMES, SIZE, CHANNELS = 4, 3, 16, 2
LATENT = (FRAMES, CHANNELS, SIZE // 4, SIZE // 4)


@cache
def heads() -> Population:
    """Drawn once for all tests: 1, 2, 2 and 3 training clips."""
    return procedural_talking_heads(
        Key(3, ("heads",)), num_clients=4, train_clips=(1, 3), validation_clips=2, test_clips=1,
        num_public=3, public_clips=2, num_public_test=1, num_frames=FRAMES, size=SIZE,
    )  # fmt: skip


@cache
def _built() -> Net:
    torch.manual_seed(1)
    return talking_head(base=8, context=8, channels=CHANNELS, size=SIZE, width=4)


def head_net() -> Net:
    """Built once, with values of its own for each caller."""
    net = copy.copy(_built())
    net.params = clone(net.params)
    return net
