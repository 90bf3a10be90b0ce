"""Every method under a secure sum: the plain run's numbers, or a refusal that says why; none sends anything in the clear."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from cases import case_of

from coterie import methods
from coterie.engine.run import Finish, run
from coterie.engine.settings import Settings
from coterie.method import Everyone
from coterie.privacy.guards import Guards
from coterie.privacy.secure_sum import SecureSum

MASKED = Guards(secure=SecureSum(range=16.0, bits=64), n_max=64)
NEED_SINGLE_MESSAGES = {"fl_gap": "shared", "fedxds": "shared_examples"}


def finished(name: str, out: Path, guards: Guards) -> Finish:
    """Two rounds with everybody: the toy cohorts of other tests are too small for a secure sum."""
    case, knobs = case_of(name), {"rounds": 2, "cohort": Everyone()}
    known = inspect.signature(getattr(methods, name)).parameters
    plan = case.plan(name, **{key: value for key, value in knobs.items() if key in known})
    settings = Settings(backend="loop", quiet=True, precision="fp64", eval_every=100)
    return run(plan, case.toy.population(), net=case.toy.net(), metric=case.toy.metric, out=out, guards=guards, settings=settings)


@pytest.mark.parametrize("name", sorted(set(methods.__all__) - NEED_SINGLE_MESSAGES.keys()))
def test_a_masked_round_is_the_plain_round(name: str, tmp_path: Path) -> None:
    plain, masked = finished(name, tmp_path / "plain", Guards()), finished(name, tmp_path / "masked", MASKED)
    assert plain.state.shared.keys() == masked.state.shared.keys()
    for group, values in plain.state.shared.items():
        for key, value in values.items():
            found = masked.state.shared[group][key]
            assert value.dtype == found.dtype
            assert not value.numel() or float((value.double() - found.double()).abs().max()) < 1e-10, f"{group}/{key}"
    assert set(plain.clients) == set(masked.clients)
    up = [line for line in map(json.loads, (masked.path / "wire.jsonl").read_text().splitlines()) if line["direction"] == "up"]
    sent = {line["slot"] for line in map(json.loads, (plain.path / "wire.jsonl").read_text().splitlines()) if line["direction"] == "up"}
    masked_slots = {line["slot"] for line in up} - {"secure keys", "secure shares", "secure unmask"}
    assert masked_slots == (sent | {"weight"} if sent else set())
    assert all(line["bytes"] % 8 == 0 for line in up)


@pytest.mark.parametrize("name", NEED_SINGLE_MESSAGES)
def test_methods_that_need_single_messages_are_refused_before_the_run(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"needs every client's own '{NEED_SINGLE_MESSAGES[name]}', but a secure sum reveals the sum only"):
        finished(name, tmp_path / "run", MASKED)
    assert not (tmp_path / "run").exists()
