"""A Release survives the way through JSON, and refuses what no round can have done."""

from __future__ import annotations

import json

import pytest

from coterie.privacy.release import Release

RELEASE = Release(
    round=3, noise=0.5, split="share", min_cohort=4, sampling="poisson", rate=0.1, participants=(2, 7, 9), secure=True, clip_noise=12.0
)


def test_through_json_and_back() -> None:
    record = json.loads(json.dumps(RELEASE.to_json()))
    assert record["participants"] == [2, 7, 9] and record["clip_noise"] == 12.0
    assert Release.from_json(record) == RELEASE


def test_another_shape_is_refused() -> None:
    record = RELEASE.to_json()
    record["sigma"] = record.pop("noise")
    with pytest.raises(ValueError, match=r"differs in \['noise', 'sigma'\]"):
        Release.from_json(record)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("noise", -1.0), ("noise", float("nan")), ("clip_noise", float("inf")), ("split", "half"), ("sampling", "uniform"),
        ("min_cohort", 0), ("rate", 0.0), ("rate", 1.5), ("rate", 0.5),
    ],
)  # fmt: skip
def test_out_of_range(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"release's {field} must be"):
        Release.from_json({**RELEASE.to_json(), **({"sampling": "everyone"} if value == 0.5 else {}), field: value})
