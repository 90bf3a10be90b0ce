"""The talking walk at a fraction of its size: it learns, says so with its own bars, and leaves a video of its own speakers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.engine.settings import Settings
from coterie.recipes.session import Session
from coterie.recipes.walk_privfedtalk import bars, tell, walk_privfedtalk

TINY = {"autoencoder_steps": 5, "backbone_steps": 5, "public_speakers": 4, "clients": 2, "rounds": 1, "sampler_steps": 2}


def walked(out: Path, **values: Any) -> dict[str, Any]:
    session = Session.open("walk_privfedtalk", values, Settings(backend="loop", quiet=True, eval_every=100), out)
    session.perform(walk_privfedtalk)
    measured: dict[str, Any] = json.loads((out / "talking.json").read_text())
    return measured


def test_adapters_learn_what_is_different_about_the_speakers(tmp_path: Path) -> None:
    """A third of the walk's training: held-out clips of shifted speakers, with the same noise for both models.

    With 300 steps a mouth follows its own sound by 0.4 to 0.7 and another by less than 0.1 (seeds 0 to 2); with 200 it may not.
    """
    measured = walked(
        tmp_path / "run", autoencoder_steps=300, backbone_steps=300, public_speakers=48, clients=4, rounds=4, sampler_steps=4
    )
    public, means = measured["backbone_on_public"], measured["means"]
    assert public["loss"] < 0.5 and public["velocity"] < 0.5  # predicting zero scores 1
    assert means["adapter/loss"] < means["untrained/loss"] and measured["loss"]["over_clips"]["high"] < 0
    assert means["adapter/mouth_correlation"] > means["adapter/mouth_correlation_other_sound"] + 0.2
    assert set(measured["bars"]) == set(bars(measured))


def test_a_walk_leaves_a_marked_video_and_a_sheet(tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="videos need coterie[talk]")
    walked(tmp_path / "run", **TINY)
    with av.open(str(tmp_path / "run" / "media" / "heads.mp4")) as container:
        tags = {key.lower(): value for key, value in container.metadata.items()}
        frames = sum(1 for _ in container.decode(video=0))
    assert frames == 2 * 8  # two speakers, eight frames each
    assert "coterie" in json.dumps(tags) and "generated" in json.dumps(tags).lower()
    assert (tmp_path / "run" / "media" / "heads.png").stat().st_size > 1000


def test_with_clip_and_noise_it_prints_and_judges_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = walked(tmp_path / "run", **TINY, clip=1.0, noise=0.5)
    assert measured["bars"] is None
    privacy = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert (privacy["clip"], privacy["noise"], privacy["epsilon"]) == (1.0, 0.5, None) and "protects nobody" in privacy["note"]
    privacy = measured["privacy"]
    assert privacy["noise_length"] == pytest.approx(0.5 * (1.01 * privacy["numbers"] / 2) ** 0.5)  # kappa 0.1, two clients
    measured["loss"]["lower_by"] = -0.25
    tell(measured, [])
    out = capsys.readouterr().out
    assert "The adapter raises the loss by 25.0 %" in out and f"at least {privacy['noise_length']:.3g} long" in out
    assert "holds" not in out and "pip install 'coterie[talk]'" in out
    assert "clip 1, noise 0.5: clipped and noised" in out and "protects nobody. --fresh-noise" in out


def test_one_client_has_an_interval_over_clips_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = walked(tmp_path / "run", **{**TINY, "clients": 1})
    assert set(measured["loss"]) == {"lower_by", "over_clips"}
    path = tmp_path / f"[{'long' * 20}]" / "heads.mp4"
    tell(measured, [path])
    out = capsys.readouterr().out
    assert "over clients" not in out and f"Wrote {path}\n" in out


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"backbone_steps": 0}, "backbone_steps must be at least 1, found 0"),
        ({"sampler_steps": 0}, "sampler_steps must be at least 1, found 0"),
        ({"cohort": 3}, r"The cohort \(3\) is larger than the population \(2\)"),
        ({"unmarked_because": " "}, "reason"),
        ({"noise": 0.5}, "Noise without a clip bounds nothing"),
    ],
)
def test_values_that_mean_nothing_are_refused_before_anything_trains(values: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=text):
        walked(tmp_path / "run", **{**TINY, **values})
    assert not (tmp_path / "run").exists()


def test_the_number_of_threads_is_put_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    walked(tmp_path / "run", **TINY)
    assert torch.get_num_threads() == before
