"""Generated faces are marked in their pixels and carry their origin in the file; without a mark only for a stated reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import numpy as np
import pytest

from coterie.report.video import Panel, Provenance, check_reason, drawn, tags, write_sheet, write_video

av = pytest.importorskip("av", reason="writing and reading a video needs PyAV: pip install 'coterie[talk]'")
image = pytest.importorskip("PIL.Image", reason="writing and reading a picture needs Pillow: pip install 'coterie[vision]'")

ORIGIN = Provenance(made_by="a test", run="heads-7", model_hash="c0ffee", time="2031-02-03T04:05:06+00:00")
FRAMES, SIDE, FPS, RATE = 6, 32, 8, 8000
REASON = "checked by a person who knows"
# the first two letters of the mark, "AI", five by seven dots each with a dot between them
LETTERS = np.array([[c == "#" for c in row] for row in (
    ".###...###.", "#...#...#..", "#...#...#..", "#####...#..", "#...#...#..", "#...#...#..", "#...#..###.",
)])  # fmt: skip
DOT = 2  # 32 pixels eight times as large are 256, three quarters of them for 12 letters of 6 dots and a rim of one
BAND = 9 * DOT  # letters are seven dots high, with a rim of one above and below


def clip(level: int) -> np.ndarray:
    """Not flat, so that a darkened ground shows; every frame different."""
    rng = np.random.default_rng(level)
    return (level + rng.integers(-8, 9, (FRAMES, SIDE, SIDE, 3))).astype(np.uint8)


def panels() -> list[Panel]:
    return [Panel(clip(90), "truth", False), Panel(clip(110), "federated", True), Panel(clip(130), "own", True)]


def says_ai(picture: np.ndarray, dot: int) -> bool:
    """Whether the bottom of a picture begins with white "AI" on a dark ground; a dot is read in its middle."""
    ground = picture[-9 * dot :, : 12 * dot].astype(float).mean(2)
    dots = ground.reshape(9, dot, 12, dot).mean((1, 3))[1:8, 1:12]
    return bool((dots[LETTERS] > 180).all() and (dots[~LETTERS] < 80).all())


def read(path):
    """Frames, sound and metadata as another program finds them."""
    with av.open(str(path)) as container:
        metadata, streams = dict(container.metadata), {stream.type: stream for stream in container.streams}
        rate = float(streams["video"].average_rate)
        pictures = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    sound = None
    if "audio" in streams:
        with av.open(str(path)) as container:
            assert container.streams.audio[0].rate == RATE
            sound = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    return pictures, rate, sound, metadata


def told_in(metadata) -> dict[str, object]:
    return json.loads(metadata["comment"])


# --- the container --------------------------------------------------------------------------------------------------------------


def test_a_video_opens_again_with_its_frames_rate_and_size(tmp_path):
    path = write_video(tmp_path / "new" / "heads.mp4", panels(), frames_per_second=FPS, provenance=ORIGIN)
    pictures, rate, sound, _ = read(path)
    assert pictures.shape == (FRAMES, 256, 3 * 256, 3) and rate == FPS and sound is None
    assert [p.name for p in path.parent.iterdir()] == ["heads.mp4"]  # no half file left
    middle = pictures[:, 100:200].reshape(FRAMES, 100, 3, 256, 3).mean((0, 1, 3, 4))
    np.testing.assert_allclose(middle, [90, 110, 130], atol=4)  # side by side, in this order, in their colours


def test_frames_come_in_order_and_odd_sides_become_even(tmp_path):
    levels = np.array([40, 200, 90, 160, 60, 120], dtype=np.uint8)
    frames = np.broadcast_to(levels[:, None, None, None], (6, 27, 35, 3)).copy()
    path = write_video(tmp_path / "a.mp4", [Panel(frames, "order", False)], frames_per_second=5, provenance=ORIGIN, enlarge=3)
    pictures, rate, _, _ = read(path)
    assert pictures.shape == (6, 80, 104, 3) and rate == 5
    np.testing.assert_allclose(pictures[:, 60:, 60:].mean((1, 2, 3)), levels, atol=4)


def test_the_sound_is_as_long_as_the_frames_and_is_the_sound(tmp_path):
    """A tone of 500 Hz in the first half, silence in the second."""
    time = np.arange(FRAMES * RATE // FPS) / RATE
    tone = np.where(time < time[-1] / 2, 12_000 * np.sin(2 * np.pi * 500 * time), 0).astype(np.int16)
    path = write_video(tmp_path / "a.mp4", panels()[:1], frames_per_second=FPS, provenance=ORIGIN, sound=tone, sample_rate=RATE)
    pictures, _, sound, _ = read(path)
    assert len(pictures) == FRAMES and abs(len(sound) - len(tone)) <= 2048  # AAC works in blocks of 1024
    first, second = sound[500:2500], sound[3700:5500]
    assert np.abs(first).max() == pytest.approx(12_000 / 32_768, rel=0.1) and np.abs(second).max() < 0.02
    peak = np.abs(np.fft.rfft(first * np.hanning(2000))).argmax() * RATE / 2000
    assert peak == pytest.approx(500, abs=8)


# --- where it comes from ----------------------------------------------------------------------------------------------------------


def test_the_origin_is_in_the_container(tmp_path):
    _, _, _, metadata = read(write_video(tmp_path / "a.mp4", panels(), frames_per_second=FPS, provenance=ORIGIN))
    assert told_in(metadata) == {
        "made_by": "a test", "run": "heads-7", "model_hash": "c0ffee", "time": "2031-02-03T04:05:06+00:00",
        "ai_generated": True, "visible_mark": "AI-GENERATED",
    }  # fmt: skip
    assert metadata["artist"] == "a test" and metadata["title"] == "heads-7"


def test_the_time_is_now_where_none_is_given():
    made = datetime.fromisoformat(Provenance(made_by="a", run="b", model_hash="c").time)
    assert abs((datetime.now(UTC) - made).total_seconds()) < 60


def test_a_video_of_the_truth_alone_is_not_called_generated():
    assert json.loads(tags(ORIGIN, panels()[:1], None)["comment"])["ai_generated"] is False


@pytest.mark.parametrize("name", ["made_by", "run", "model_hash"])
def test_an_origin_without_a_name_is_refused(name):
    with pytest.raises(ValueError, match=rf"provenance needs '{name}', found nothing\. Say who made it"):
        Provenance(**{"made_by": "a", "run": "b", "model_hash": "c", name: ""})


# --- the mark ---------------------------------------------------------------------------------------------------------------------


def test_the_mark_is_in_every_generated_frame_and_not_in_the_truth(tmp_path):
    pictures = read(write_video(tmp_path / "a.mp4", panels(), frames_per_second=FPS, provenance=ORIGIN))[0]
    bare = read(write_video(tmp_path / "b.mp4", panels(), frames_per_second=FPS, provenance=ORIGIN, unmarked_because=REASON))[0]
    for place, generated in enumerate((False, True, True)):
        for with_it, without in zip(pictures, bare, strict=True):
            own, other = (p[:, 256 * place : 256 * (place + 1)].astype(float) for p in (with_it, without))
            assert says_ai(own, DOT) == generated and not says_ai(other, DOT)
            changed = np.abs(own - other).mean(2)
            assert changed[: -BAND - 8].mean() < 4  # only the bottom differs, up to compression
            assert (changed[-BAND:, : 73 * DOT].mean() > 40) == generated


def test_the_mark_is_drawn_on_the_pixels_themselves_and_the_panel_stays_as_it_was():
    panel, before = panels()[1], clip(110)
    marked, bare = drawn(panel, 8), drawn(panel, 8, REASON)
    np.testing.assert_array_equal(panel.frames, before)
    np.testing.assert_array_equal(marked[:, :-BAND], bare[:, :-BAND])
    np.testing.assert_array_equal(bare[:, 60:], before.repeat(8, axis=1).repeat(8, axis=2)[:, 60:])  # below the caption
    width = 73 * DOT  # 12 letters of 6 dots and the rim
    ground = before.repeat(8, axis=1).repeat(8, axis=2)[:, -BAND:, :width]
    found = marked[:, -BAND:, :width]
    assert ((found == 255) | (found == ground // 4)).all() and 0.2 < (found == 255).mean() < 0.5
    np.testing.assert_array_equal(marked[:, -BAND:, width:], bare[:, -BAND:, width:])
    assert all(says_ai(picture, DOT) for picture in marked)


def test_a_reason_takes_the_mark_away_and_is_written_in_its_place(tmp_path):
    path = write_video(tmp_path / "a.mp4", panels(), frames_per_second=FPS, provenance=ORIGIN, unmarked_because=REASON)
    told = told_in(read(path)[3])
    assert told["unmarked_because"] == REASON and told["visible_mark"] is None and told["ai_generated"] is True


@pytest.mark.parametrize("reason", ["", "  \n"])
def test_an_empty_reason_is_refused_before_anything_is_written(tmp_path, reason):
    text = r"needs a reason, found an empty one\. Say why, or leave the mark on"
    for write in (
        lambda: write_video(tmp_path / "a.mp4", panels(), frames_per_second=FPS, provenance=ORIGIN, unmarked_because=reason),
        lambda: write_sheet(tmp_path / "a.png", panels(), provenance=ORIGIN, unmarked_because=reason),
        lambda: check_reason(reason),
    ):
        with pytest.raises(ValueError, match=text):
            write()
    assert not list(tmp_path.iterdir())
    check_reason(None)
    check_reason(REASON)


# --- the sheet --------------------------------------------------------------------------------------------------------------------


def test_a_sheet_shows_every_frame_once_with_marks_and_origin(tmp_path):
    """Four columns: the truth's frames 1 to 4, the generated ones below, then 5 and 6 and two empty places."""
    path = write_sheet(tmp_path / "new" / "heads.png", panels()[:2], provenance=ORIGIN, enlarge=5, columns=4)
    with image.open(path) as picture:
        told, found = json.loads(picture.text["comment"]), np.array(picture)
    assert (told["made_by"], told["run"], told["model_hash"], told["visible_mark"]) == ("a test", "heads-7", "c0ffee", "AI-GENERATED")
    side = 5 * SIDE
    assert found.shape == (4 * side, 4 * side, 3)
    cells = found.reshape(4, side, 4, side, 3).swapaxes(1, 2)
    for row, generated in enumerate((False, True, False, True)):
        for column in range(4):
            frame, cell = 4 * (row // 2) + column, cells[row, column]
            if frame >= FRAMES:
                assert not cell.any()
                continue
            assert says_ai(cell, 1) == generated  # 160 pixels leave one per dot
            shown = clip(110 if generated else 90)[frame].repeat(5, axis=0).repeat(5, axis=1)
            np.testing.assert_array_equal(cell[40 : side - 9], shown[40 : side - 9])
            assert (cell[-9:] == shown[-9:]).all() != generated


def test_a_panel_of_something_else_is_refused():
    for frames, found in ((np.zeros((2, 3, 8, 8), np.uint8), r"uint8 of shape \[2, 3, 8, 8\]"), (np.zeros((2, 8, 8, 3)), "float64")):
        with pytest.raises(ValueError, match=rf"bytes of shape \[frames, height, width, 3\], found {found}"):
            drawn(Panel(frames, "x", True), 8)
