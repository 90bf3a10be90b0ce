"""A client that lies about its reliability score under PrivFedTalk's ISFA."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from talking_heads import head_net, heads
from test_privfedtalk import METHOD, plan_of

from coterie.attacks.poison import LyingScore
from coterie.engine.run import run
from coterie.engine.settings import Settings
from coterie.method import Everyone
from coterie.metrics.talking import Talking


def test_a_lying_score_is_told_with_its_gain_and_its_bound(tmp_path: Path) -> None:
    """What the lie gained in the run stays under exp(gamma) n_max / n."""
    population = heads()
    found = run(
        plan_of(METHOD, rounds=1, cohort=Everyone()), population, net=head_net(), metric=Talking(), out=tmp_path / "run",
        attack=LyingScore(clients=(1,), sharpness=METHOD.sharpness, n_max=METHOD.n_max), settings=Settings(backend="loop", quiet=True),
    )  # fmt: skip
    told = found.summary["attack"]
    bound = math.exp(METHOD.sharpness) * METHOD.n_max / min(len(population.parts[1].train), METHOD.n_max)
    assert told["weight_gain_bound"] == pytest.approx(bound) and 1.0 <= told["weight_gain"] <= bound * (1 + 1e-9)
