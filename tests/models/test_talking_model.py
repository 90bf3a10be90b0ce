"""The parts of a talking head against plain loops, its scores by hand, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import talking_by_hand as hand
import torch
from talking_heads import CHANNELS, FRAMES, LATENT, SIZE, STEPS, head_net
from torch import Tensor

from coterie.models.talking import model as talking
from coterie.models.talking import talking_head

F64 = torch.float64
NET = head_net().to("cpu", F64)
BANDS = 12


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def model_of(**changes: Tensor) -> dict[str, Tensor]:
    """Fresh weights with latents that are not standardised by nature, and a schedule."""
    moments = {"latents.mean": torch.tensor([0.3, -0.2], dtype=F64), "latents.std": torch.tensor([0.5, 2.0], dtype=F64)}
    return {**NET.params, **moments, "schedule.abar": torch.tensor([0.98, 0.6, 0.2, 0.001], dtype=F64), **changes}


MODEL = model_of()
VIDEO, AUDIO, REF = rand(2, FRAMES, 3, SIZE, SIZE), rand(2, FRAMES, BANDS, seed=1) * 2 - 1, rand(2, 3, SIZE, SIZE, seed=2)


# --- parts --------------------------------------------------------------------------------------------------------------------


def test_frames_to_latents_and_back_equal_plain_loops() -> None:
    """A frame at a time, a quarter as high and as wide; the decoder begins at grey."""
    latents = talking.encode(NET, MODEL, VIDEO)
    expected = torch.stack([hand.encode(MODEL, clip) for clip in VIDEO])  # standardised
    torch.testing.assert_close(talking.standardised(MODEL, latents), expected, rtol=1e-11, atol=1e-11)
    back = talking.decode(NET, MODEL, latents)
    torch.testing.assert_close(back, torch.stack([hand.decode(MODEL, z, clamp=False) for z in expected]), rtol=1e-11, atol=1e-11)


def test_a_latent_is_standardised_and_restored_channel_by_channel() -> None:
    latents = rand(2, FRAMES, CHANNELS, 4, 4) * 5
    found = talking.standardised(MODEL, latents)
    for channel, (mean, std) in enumerate(((0.3, 0.5), (-0.2, 2.0))):
        np.testing.assert_allclose(found[:, :, channel].numpy(), (latents[:, :, channel].numpy() - mean) / std, rtol=1e-12)
    torch.testing.assert_close(talking.restored(MODEL, found), latents, rtol=1e-12, atol=1e-12)


def test_conditions_equal_plain_loops() -> None:
    """c(a): each frame's sound with its neighbours'; e(r): the whole face first, then the places row by row."""
    found = talking.conditions(NET, MODEL, {"audio": AUDIO, "ref": REF})
    for clip in range(2):
        torch.testing.assert_close(found["sound"][clip], hand.sound_tokens(MODEL, AUDIO[clip]), rtol=1e-11, atol=1e-11)
        whole, places = hand.face_tokens(MODEL, REF[clip])
        tokens = [whole, *(places[:, i, j] for i in range(4) for j in range(4))]
        torch.testing.assert_close(found["identity"][clip], torch.stack(tokens), rtol=1e-11, atol=1e-11)


def test_the_denoiser_equals_plain_loops() -> None:
    """With other values of the parameters that begin at 0, so that they count."""
    model, z = model_of(**{"unet.kind": rand(2, 8, seed=3)}), rand(2, *LATENT, seed=4) * 4 - 2
    given = talking.conditions(NET, model, {"audio": AUDIO, "ref": REF})
    found = talking.predict(NET, model, z, torch.tensor([3, 1]), given)
    expected = [hand.velocity(model, z[clip], t, AUDIO[clip], REF[clip]) for clip, t in enumerate((3, 1))]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-10, atol=1e-10)


def test_generated_clips_equal_plain_loops_and_lie_between_black_and_white() -> None:
    """The decoder's last layer is made ten times as strong, so that some pixels would be beyond."""
    loud = {name: 10 * MODEL[name] for name in ("decoder.layers.4.weight", "decoder.layers.2.weight")}
    model, start = model_of(**loud), rand(2, *LATENT, seed=5) * 6 - 3
    given = talking.conditions(NET, model, {"audio": AUDIO, "ref": REF})
    for steps in (2, 3):
        found = talking.generate(NET, model, given, start, steps)
        expected = [hand.generated(model, start[clip], AUDIO[clip], REF[clip], steps) for clip in range(2)]
        torch.testing.assert_close(found, torch.stack(expected), rtol=1e-8, atol=1e-8)
        assert float(found.min()) == 0.0 and float(found.max()) == 1.0


def test_the_schedule_of_a_model_is_the_rescaled_one_in_the_models_precision() -> None:
    betas = np.minimum(np.linspace(1e-4, 0.02, STEPS) * 1000 / STEPS, 0.999)
    for like in (torch.zeros(1, dtype=F64), torch.zeros(1)):
        (found,) = talking.schedule_of(STEPS, like).values()
        assert found.dtype == like.dtype
        np.testing.assert_allclose(found.numpy(), np.cumprod(1 - betas), rtol=1e-12 if like.dtype == F64 else 1e-6)


def test_the_autoencoder_and_the_rest_are_all_of_the_net() -> None:
    own = {name for name in NET.params if name.startswith(talking.AUTOENCODER_PARTS)}
    assert {name.split(".")[0] for name in own} == {"encoder", "decoder"}
    assert {name.split(".")[0] for name in NET.params.keys() - own} == {"audio", "identity", "unet"}


# --- scores -------------------------------------------------------------------------------------------------------------------


def test_identity_similarity_by_hand() -> None:
    """The mean over frames of (1 + cos) / 2 between whole-face tokens."""
    expected = []
    for clip in range(2):
        face = hand.face_tokens(MODEL, REF[clip])[0].numpy()
        tokens = [hand.face_tokens(MODEL, frame)[0].numpy() for frame in VIDEO[clip]]
        cosines = [t @ face / (np.linalg.norm(t) * np.linalg.norm(face)) for t in tokens]
        expected.append((1 + np.mean(cosines)) / 2)
    np.testing.assert_allclose(talking.identity_similarity(NET, MODEL, VIDEO, REF).numpy(), expected, rtol=1e-10)
    assert abs(expected[0] - expected[1]) > 1e-6


def test_a_video_of_the_reference_is_that_face_and_one_of_its_negative_the_opposite() -> None:
    same = REF[:, None].expand(-1, FRAMES, -1, -1, -1)
    np.testing.assert_allclose(talking.identity_similarity(NET, MODEL, same, REF).numpy(), [1, 1], rtol=1e-12)

    class Mirror:
        """An identity encoder whose only token is the mean colour, with the sign of what it is shown."""

        def call(self, params: dict, buffers: dict, pictures: Tensor, *, train: bool, part: str) -> tuple[Tensor, dict]:
            assert part == "identity" and not train
            return pictures.mean((2, 3))[:, None], {}

    flipped = torch.stack([REF, -REF, -REF, -REF], dim=1)  # cos 1, -1, -1, -1
    np.testing.assert_allclose(talking.identity_similarity(Mirror(), {}, flipped, REF).numpy(), [0.25, 0.25], rtol=1e-12)


def test_temporal_stability_by_hand() -> None:
    """Clips of one pixel: the truth moves by 0.2 a frame, the others by 0.2, 0.5, 0.1 and 0."""
    truth = torch.tensor([0.1, 0.3, 0.5], dtype=F64)
    videos = {(0.5, 0.3, 0.1): 1.0, (0.0, 0.5, 1.0): 1 / (1 + 1.5), (0.5, 0.6, 0.5): 1 / (1 + 0.5), (0.4, 0.4, 0.4): 0.5}
    for frames, expected in videos.items():
        video = torch.tensor(frames, dtype=F64)
        found = talking.temporal_stability(video.view(1, 3, 1, 1, 1), truth.view(1, 3, 1, 1, 1))
        assert float(found) == pytest.approx(expected, rel=1e-12)


def test_only_the_truths_own_restlessness_is_stable() -> None:
    """A still is as unstable as twice the jitter, so that a frozen generator gains nothing."""
    assert talking.temporal_stability(VIDEO, VIDEO).tolist() == [1.0, 1.0]
    still, flicker = VIDEO[:, :1].expand_as(VIDEO), VIDEO[:, :1] + 2 * (VIDEO - VIDEO[:, :1])
    for video in (still, flicker):
        torch.testing.assert_close(talking.temporal_stability(video, VIDEO), torch.full((2,), 0.5, dtype=F64), rtol=1e-12, atol=0)
    mixed = torch.stack([VIDEO[0], still[1]])  # each clip has a number of its own
    assert talking.temporal_stability(mixed, VIDEO).tolist() == pytest.approx([1.0, 0.5])
    wild = talking.temporal_stability(1e9 * VIDEO, VIDEO)
    assert float(wild.min()) > 0 and float(wild.max()) < 1e-8


# --- bad input ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("knobs", "found"), [({"base": 12}, "12 and 32"), ({"size": 24}, "16 and 24"), ({"base": 4, "size": 40}, "4 and 40")])
def test_sizes_that_do_not_fit_are_refused_with_a_cure(knobs: dict[str, int], found: str) -> None:
    with pytest.raises(ValueError, match=rf"base channels divisible by 8 and a size divisible by 16, found {found}\. Use for example"):
        talking_head(**knobs)


def test_a_method_that_asks_for_a_task_loss_is_told_that_there_is_none() -> None:
    with pytest.raises(ValueError, match=r"has no task loss, and this method asks for one\. Train it with privfedtalk"):
        NET.loss(torch.zeros(1), {})


@pytest.mark.parametrize(("size", "base"), [(16, 8), (48, 16)])
def test_allowed_sizes_work_from_end_to_end(size: int, base: int) -> None:
    net = talking_head(base=base, context=8, channels=3, bands=5, size=size, width=4)
    model = {**net.params, "latents.mean": torch.zeros(3), "latents.std": torch.ones(3), **talking.schedule_of(50, torch.zeros(1))}
    given = talking.conditions(net, model, {"audio": torch.zeros(1, 2, 5), "ref": torch.zeros(1, 3, size, size)})
    assert talking.generate(net, model, given, torch.zeros(1, 2, 3, size // 4, size // 4), 2).shape == (1, 2, 3, size, size)
    assert math.prod(given["identity"].shape[1:]) == (1 + (size // 4) ** 2) * 8
