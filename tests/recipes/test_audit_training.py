"""Canary clients in a real training: through the guards and the engine, seen by the server, found when something is broken."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.message import Message
from coterie.privacy.audit.bounds import bounds_of
from coterie.privacy.audit.broken import Fault
from coterie.privacy.audit.canaries import coins, directions, sign_of
from coterie.privacy.audit.finding import Finding
from coterie.privacy.gaussian import gaussian_eps
from coterie.recipes.audit import Audit, claim_of, perform
from coterie.recipes.audit_training import AuditedTraining, hidden_for
from coterie.reduce.mean import sums_behind


def audit(kind: str, **keys: object) -> Finding:
    return perform(Audit(kind=kind, **{"seed": 0, "clients": 5, **keys}))  # type: ignore[arg-type]


def test_directions_stand_at_right_angles() -> None:
    found = directions(0, 40, 60)
    assert torch.allclose(found @ found.T, torch.eye(40, dtype=torch.float64), atol=1e-12)
    assert not torch.allclose(found, directions(1, 40, 60))
    with pytest.raises(ValueError, match="61 directions at right angles need at least 61 parameters, found 60"):
        directions(0, 61, 60)


def test_coins_are_fair_and_signs_take_turns() -> None:
    assert abs(coins(0, 10_000).mean() - 0.5) < 0.02
    assert [sign_of(round) for round in range(4)] == [1.0, -1.0, 1.0, -1.0]


def test_the_sums_behind_a_noised_mean() -> None:
    mean = Message({"shared": {"a": torch.tensor([2.0])}}, weight=torch.tensor(8.0, dtype=torch.float64))
    assert float(sums_behind(mean, expected=10)["shared"]["a"]) == 16.0
    assert float(sums_behind(mean, expected=100)["shared"]["a"]) == 20.0  # the divisor was A_min = 0.1 x 100


@pytest.mark.parametrize("observed", ["sums", "final"])
def test_with_hardly_any_noise_each_score_is_that_of_the_formula(observed: str, tmp_path: Path) -> None:
    """sqrt(R) / (sigma sqrt(1 + kappa^2)) for a canary and nearly nothing for nobody's direction."""
    training = AuditedTraining(noise=1e-4, clients=3, rounds=4, observed=observed)  # type: ignore[arg-type]
    without, with_canary, _ = training.canary_scores(30, seed=0, repeatable=True, out=tmp_path / "run")
    expected = math.sqrt(4) / (1e-4 * math.sqrt(1.01))
    assert with_canary.mean() == pytest.approx(expected, rel=0.03)
    # signs that take turns cancel what honest clients push in every round; the final model keeps it
    worst = 0.03 if observed == "sums" else 0.3
    assert np.abs(with_canary - expected).max() < worst * expected
    assert np.abs(without).max() < worst * expected


def test_a_canary_passes_through_the_clip(tmp_path: Path) -> None:
    """It pushes ten times too far; the sound guards cut it to the length of the others."""
    training = AuditedTraining(noise=1e-3, clients=3, rounds=2, fault="clip-off")
    loose = training.canary_scores(25, seed=0, repeatable=True, out=tmp_path / "loose")[1].mean()
    tight = AuditedTraining(noise=1e-3, clients=3, rounds=2).canary_scores(25, seed=0, repeatable=True, out=tmp_path / "tight")[1].mean()
    assert loose / tight == pytest.approx(10.0, rel=0.01)


@pytest.mark.parametrize(("noise", "rounds"), [(0.5, 2), (1.0, 4), (2.0, 10)])
def test_canaries_of_a_sound_training_stay_under_the_accountant(noise: float, rounds: int) -> None:
    found = audit("canary", noise=noise, rounds=rounds, canaries=300)
    mu = math.sqrt(rounds) / noise
    assert found.verdict == "consistent"
    assert found.claim.epsilon == pytest.approx(gaussian_eps(mu), rel=1e-6)
    assert found.bounds.mu > 0.3 * mu  # far from 0, or being under the claim would say nothing
    assert found.bounds.epsilon > 0.3
    expected = mu / math.sqrt(1.01)  # the weight's block takes a part of the canary's length, and no score sees it
    assert abs(found.bounds.estimate_mu - expected) < 3.3 * math.sqrt(2 / 300 + expected**2 / 1200)


@pytest.mark.parametrize("fault", ["noise-off", "noise-halved", "seed-reused", "clip-off"])
def test_canaries_find_every_broken_training(fault: Fault) -> None:
    found = audit("canary", noise=1.0, canaries=300, fault=fault)
    assert found.verdict == "VIOLATION"
    assert found.could_tell


@pytest.mark.parametrize("fault", ["none", "noise-off", "seed-reused", "clip-off"])
def test_one_run_is_consistent_or_finds_what_hides_nothing(fault: Fault) -> None:
    found = audit("one-run", noise=2.0, canaries=300, fault=fault)
    assert found.verdict == ("consistent" if fault == "none" else "VIOLATION")
    assert found.could_tell
    if fault != "none":
        assert found.bounds.epsilon > found.claim.epsilon  # without any assumption


def test_coins_say_who_was_included() -> None:
    found = audit("one-run", noise=1e-3, canaries=40)
    assert len(found.with_canary) == int(coins(0, 40).sum())
    assert found.with_canary.min() > found.without.max()


def test_a_sampled_training_is_held_against_the_amplified_view() -> None:
    pytest.importorskip("dp_accounting")
    claim = claim_of(1.0, 10, 0.5, 1e-5)
    assert claim.mu is None
    assert claim.epsilon < claim_of(1.0, 10, 1.0, 1e-5).epsilon
    found = audit("canary", noise=1.0, rate=0.5, rounds=4, canaries=60)
    assert found.verdict == "consistent"


def test_the_net_has_as_many_parameters_as_directions_are_watched() -> None:
    assert hidden_for(650) == ()
    for watched in (651, 1000, 3000):
        (width,) = hidden_for(watched)
        assert 65 * width + 10 * width + 10 >= watched


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"kind": "mechanism", "rounds": 3}, "kind mechanism knows no rounds, found 3"),
        ({"kind": "canary", "runs": 100}, "kind canary knows no runs, found 100"),
        ({"kind": "canary", "canaries": 5}, "at least 20 canaries, found 5"),
        ({"kind": "one-run", "canaries": 10}, "at least 20 canaries"),
        ({"kind": "canary", "noise": 0.0}, "noise must lie in .*, found 0"),
        ({"kind": "mechanism", "noise": 1e300}, "noise must lie in .*, found 1e\\+300"),
        ({"kind": "mechanism", "clients": -1}, "clients must be at least 0, found -1"),
        ({"kind": "canary", "rate": 1.5}, "rate"),
        ({"kind": "canary", "fault": "seed-reused", "rounds": 3}, "an even number of rounds"),
        ({"kind": "mechanism", "mechanism": "isfa-literal", "fault": "noise-off"}, "needs no fault"),
        ({"kind": "mechanism", "delta": 0.0}, "delta must lie strictly between 0 and 1, found 0"),
        ({"kind": "guess"}, "kind mechanism, canary, one-run, found 'guess'"),
    ],
)
def test_bad_input_is_told_in_one_sentence(keys: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        perform(Audit(**{"seed": 0, **keys}))  # type: ignore[arg-type]


def test_bounds_of_a_finding_are_those_of_its_scores() -> None:
    found = audit("mechanism", clients=1, runs=400)
    assert found.bounds == bounds_of(found.without, found.with_canary, delta=1e-5)


@pytest.mark.parametrize("fault", ["none", "noise-off"])
def test_a_secure_sum_is_audited_through_its_protocol(fault: Fault) -> None:
    pytest.importorskip("cryptography")
    found = audit("canary", noise=1.0, canaries=60, secure_sum=True, fault=fault)
    assert found.verdict == ("consistent" if fault == "none" else "VIOLATION")
    assert found.about["secure_sum"]
