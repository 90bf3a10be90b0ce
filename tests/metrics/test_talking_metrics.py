"""Mouths, correlation and jitter by hand, and the means of denoising losses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.metrics.talking import Talking, correlation_over_time, jitter, mouth_opening

F64 = torch.float64


def grey(*values: float) -> Tensor:
    """One clip of one frame, whose first row of pixels has these luminances and the rest is white."""
    video = torch.ones(1, 1, 3, 4, len(values), dtype=F64)
    video[0, 0, :, 0] = torch.tensor(values, dtype=F64)
    return video


# --- the mouth ------------------------------------------------------------------------------------------------------------------


def test_a_pixel_is_mouth_below_luminance_0_15_and_none_from_0_25_on() -> None:
    """Between them its share falls on a straight line: 0.18 is 0.7 of a mouth."""
    for values, share in (((0.0, 0.15, 0.3, 1.0), 2.0), ((0.18, 0.2, 0.25, 0.26), 0.7 + 0.5), ((0.1,) * 4, 4.0), ((0.9,) * 4, 0.0)):
        found = mouth_opening(grey(*values), torch.tensor([[0, 2, 0, 4]]))
        assert float(found) == pytest.approx(share / 8, abs=1e-12)  # of a box of eight pixels


def test_a_box_is_top_bottom_left_right_and_its_ends_are_outside() -> None:
    video = torch.ones(1, 1, 3, 6, 5, dtype=F64)
    video[0, 0, :, 2, 3] = 0.0
    for box, share in (([2, 3, 3, 4], 1.0), ([1, 3, 2, 4], 1 / 4), ([0, 2, 0, 5], 0.0), ([2, 4, 0, 3], 0.0), ([3, 6, 2, 5], 0.0)):
        assert float(mouth_opening(video, torch.tensor([box]))) == pytest.approx(share, abs=1e-12)


def test_red_green_and_blue_weigh_as_they_look() -> None:
    """0.299, 0.587 and 0.114 of full red, green, blue: blue alone is dark, 0.2 of each of green and red is not all of it."""
    for colour, luminance in (((1, 0, 0), 0.299), ((0, 1, 0), 0.587), ((0, 0, 1), 0.114), ((0.2, 0.2, 0.0), 0.1772), ((0.5, 0.0, 0.5), 0.2065)):
        video = torch.tensor(colour, dtype=F64).view(1, 1, 3, 1, 1)
        dark = min(max((0.25 - luminance) / 0.1, 0), 1)
        assert float(mouth_opening(video, torch.tensor([[0, 1, 0, 1]]))) == pytest.approx(dark, abs=1e-12)


def test_openings_of_clips_and_frames_equal_plain_loops() -> None:
    rng = np.random.default_rng(0)
    video, box = rng.random((3, 4, 3, 8, 9)) * 0.5, np.array([[0, 4, 0, 9], [2, 8, 1, 5], [3, 4, 8, 9]])
    found = mouth_opening(torch.from_numpy(video), torch.from_numpy(box))
    for clip, (top, bottom, left, right) in enumerate(box):
        for frame in range(4):
            shares = []
            for i in range(top, bottom):
                for j in range(left, right):
                    red, green, blue = video[clip, frame, :, i, j]
                    shares.append(min(max((0.25 - 0.299 * red - 0.587 * green - 0.114 * blue) / 0.1, 0), 1))
            assert float(found[clip, frame]) == pytest.approx(np.mean(shares), abs=1e-12)


# --- over time --------------------------------------------------------------------------------------------------------------------


def test_correlation_equals_numpys_row_by_row() -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(size=(5, 9))
    b = 0.5 * a + rng.normal(size=(5, 9)) + 100.0
    expected = [np.corrcoef(x, y)[0, 1] for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(correlation_over_time(torch.from_numpy(a), torch.from_numpy(b)).numpy(), expected, rtol=1e-10)
    single = correlation_over_time(torch.from_numpy(a).float(), torch.from_numpy(b).float())  # 100 costs float32 five digits
    np.testing.assert_allclose(single.numpy(), expected, atol=1e-4)


def test_correlation_is_1_for_any_scale_and_minus_1_for_the_mirror() -> None:
    a = torch.tensor([[0.0, 1.0, 0.5, 0.2]])
    for other, expected in ((a, 1), (3 * a + 7, 1), (-0.01 * a, -1), (1e-4 * a, 1), (a.flip(1), np.corrcoef(a[0], a[0].flip(0))[0, 1])):
        assert float(correlation_over_time(a, other)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("level", [0.0, 0.1, 1 / 3, 1e4])
def test_what_does_not_move_is_correlated_with_nothing(level: float) -> None:
    """Also where the mean of equal numbers is not quite that number. And the clip beside it keeps its own value."""
    moving = torch.tensor([[0.0, 1.0, 0.5, 0.2, 0.7, 0.1, 0.3]])
    still = torch.full((1, 7), level)
    for a, b in ((still, moving), (moving, still), (still, still)):
        assert abs(float(correlation_over_time(a, b))) < 1e-3
    both = correlation_over_time(torch.cat([moving, still]), torch.cat([moving, moving]))
    assert both.tolist() == pytest.approx([1, 0], abs=1e-3) and bool(both.isfinite().all())


def test_jitter_by_hand() -> None:
    """Two pixels over three frames: moves 0.2, 0.4, 0.1 and 0, mean 0.175. A still scores 0."""
    moving = torch.tensor([[0.1, 0.5], [0.3, 0.1], [0.2, 0.1]], dtype=F64)
    still = torch.full((3, 2), 0.4, dtype=F64)
    found = jitter(torch.stack([moving, still]).view(2, 3, 1, 1, 2))
    assert found.tolist() == pytest.approx([0.175, 0.0], abs=1e-15)


def test_jitter_equals_plain_loops() -> None:
    video = np.random.default_rng(2).random((2, 4, 3, 5, 6))
    expected = [np.mean([np.abs(clip[f] - clip[f - 1]).mean() for f in range(1, 4)]) for clip in video]
    np.testing.assert_allclose(jitter(torch.from_numpy(video)).numpy(), expected, rtol=1e-12)


# --- losses -----------------------------------------------------------------------------------------------------------------------


def test_losses_are_means_over_clips_and_all_are_to_be_small() -> None:
    given = {"loss": torch.tensor([1.0, 2.0, 6.0]), "velocity": torch.tensor([0.5, 0.5, 2.0]), "tdc": torch.zeros(3)}
    assert Talking()(given, {}) == {"loss": 3.0, "velocity": 1.0, "tdc": 0.0}
    assert Talking.main == "loss" and dict(Talking.directions) == {"loss": "min", "velocity": "min", "tdc": "min"}


def test_many_clips_in_float32_are_added_up_in_float64() -> None:
    """2^24 and 999 ones: float32 has no odd number beyond 2^24."""
    losses = torch.cat([torch.tensor([2.0**24]), torch.ones(999)])
    found = Talking()({"loss": losses, "velocity": losses, "tdc": losses}, {})
    assert found["loss"] == (2**24 + 999) / 1000


def test_a_diverged_model_scores_infinitely_bad_and_is_not_lost_in_comparisons() -> None:
    """NaN is neither smaller nor larger than a number; infinity is worse than any."""
    one = torch.ones(2)
    found = Talking()({"loss": torch.tensor([1.0, math.nan]), "velocity": torch.tensor([math.inf, 1.0]), "tdc": one}, {})
    assert found == {"loss": math.inf, "velocity": math.inf, "tdc": 1.0}


def test_losses_that_a_method_does_not_give_are_named() -> None:
    with pytest.raises(ValueError, match=r"\['loss', 'tdc', 'velocity'\] of every clip, but \['tdc', 'velocity'\] are missing\. Evaluate"):
        Talking()({"loss": torch.ones(1), "logits": torch.ones(1)}, {})
