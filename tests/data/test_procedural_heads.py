"""Drawn talking heads: what a key fixes, that no clip is in two parts, and that mouth, voice and shift are what they are said to be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.data.procedural_heads import (
    FEDERATED,
    FRAMES_PER_SECOND,
    NUM_BANDS,
    PUBLIC,
    SAMPLE_RATE,
    Shift,
    band_energies,
    procedural_talking_heads,
)
from coterie.randomness import Key

KEY = Key(5, ("heads",))
SMALL = {
    "num_clients": 4, "train_clips": (2, 4), "validation_clips": 2, "test_clips": 2,
    "num_public": 4, "public_clips": 2, "num_public_test": 2, "num_frames": 6,
}  # fmt: skip

FEW = {"train_clips": (1, 1), "validation_clips": 1, "test_clips": 1, "num_frames": 3}


def heads(key: Key = KEY, **knobs):
    return procedural_talking_heads(key, **{**SMALL, **knobs})


@pytest.fixture(scope="module")
def population():
    return heads()


def views(population):
    """Every part of every client, then both public sets."""
    own = [view for parts in population.parts for view in (parts.train, parts.validation, parts.test)]
    return [*own, population.public["train"], population.public["test"]]


def everything(population) -> dict[str, np.ndarray]:
    """All columns of all clients in one table, decoded."""
    rows = [view.all_rows() for view in views(population)[:-2]]
    return {name: torch.cat([columns[name] for columns in rows]).numpy() for name in rows[0]}


def begins_with(table, other) -> bool:
    """Whether the first rows of `table` are `other`, column by column."""
    return all(torch.equal(table[name][: len(column)], column) for name, column in other.items())


def test_the_same_key_gives_the_same_clips(population):
    for mine, theirs in zip(views(population), views(heads()), strict=True):
        assert len(mine) == len(theirs) and begins_with(mine.all_rows(), theirs.all_rows())
    other = heads(Key(6, ("heads",)), num_clients=1, num_public=1, num_public_test=1)
    for mine, theirs in ((population.parts[0].train, other.parts[0].train), (population.public["train"], other.public["train"])):
        assert not torch.equal(mine.all_rows()["x"][0], theirs.all_rows()["x"][0])


def test_a_speakers_clips_do_not_depend_on_who_else_there_is(population):
    """Neither on other clients nor on public speakers; and public ones neither on the federation."""
    crowd = heads(num_clients=6, num_public=1, num_public_test=1)
    for mine, theirs in zip(views(population)[:-2], views(crowd), strict=False):
        assert len(mine) == len(theirs) and begins_with(mine.all_rows(), theirs.all_rows())
    for name, public in population.public.items():
        assert len(crowd.public[name]) == 2 < len(public) and begins_with(public.all_rows(), crowd.public[name].all_rows())


def test_no_frame_is_in_two_parts_and_the_reference_is_in_none(population):
    seen, references = set(), set()
    for view in views(population):
        clips, refs = (view.column(name).numpy() for name in ("x", "ref"))
        frames = {frame.tobytes() for clip in clips for frame in clip}
        assert not frames & seen
        seen |= frames
        references |= {ref.tobytes() for ref in refs}
    assert not references & seen and len(references) == 4 + 4 + 2  # one for each speaker


def test_every_client_is_one_speaker_with_one_reference_and_the_number_of_clips_asked_for(population):
    speakers = []
    for client, parts in enumerate(population.parts):
        rows = [part.all_rows() for part in (parts.train, parts.validation, parts.test)]
        assert 2 <= len(parts.train) <= 4 and len(parts.validation) == len(parts.test) == 2
        assert {int(speaker) for columns in rows for speaker in columns["speaker"]} == {client}
        clips = [int(clip) for columns in rows for clip in columns["clip"]]
        assert clips == list(range(len(clips)))
        refs = torch.cat([columns["ref"] for columns in rows])
        assert torch.equal(refs, refs[:1].expand_as(refs))
        speakers.append(refs[0])
    assert all(float((a - b).abs().mean()) > 0.01 for i, a in enumerate(speakers) for b in speakers[:i])
    assert len({len(parts.train) for parts in heads(num_clients=12).parts}) > 1  # sizes differ from client to client
    public = {name: set(view.all_rows()["speaker"].tolist()) for name, view in population.public.items()}
    assert not public["train"] & public["test"] and min(public["train"] | public["test"]) >= len(population)
    assert len(public["train"]) == 4 and len(population.public["train"]) == 8


def test_the_dark_area_of_the_mouth_rises_with_the_opening(population):
    """Over the frames of every clip; and nothing of a picture moves as much as the mouth."""
    table = everything(population)
    for video, (top, bottom, left, right), opening in zip(table["x"], table["box"], table["opening"], strict=True):
        assert 0 <= top < bottom <= 32 and 0 <= left < right <= 32
        luminance = np.tensordot(video, [0.299, 0.587, 0.114], axes=([1], [0]))
        dark = np.clip((0.25 - luminance) / 0.1, 0, 1)
        assert np.corrcoef(dark[:, top:bottom, left:right].mean((1, 2)), opening)[0, 1] > 0.9
        assert np.ptp(opening) > 0.2
        moves = np.abs(np.diff(video, axis=0)).mean((0, 1))
        inside = moves[top:bottom, left:right].sum()
        assert inside / ((bottom - top) * (right - left)) > 2 * (moves.sum() - inside) / moves.size


def test_the_voices_bands_follow_the_loudness_and_the_highest_ones_do_not(population):
    """The voice lies below 1.2 kHz, that is in the first 3.6 of 12 bands of 333 Hz; the opening is a fixed share of the loudness."""
    table = everything(population)
    assert len(np.unique(table["sound"], axis=0)) == len(np.unique(table["opening"], axis=0)) == len(table["x"])
    low, high = [], []
    for audio, opening in zip(table["audio"], table["opening"], strict=True):
        free = opening < 0.99  # where the mouth is not open as far as it goes, and so does not hide how loud it is
        if free.sum() > 3 and np.ptp(opening[free]) > 0.3:
            low.append(np.corrcoef(audio[free, :3].mean(1), opening[free])[0, 1])
            high.append(np.corrcoef(audio[free, 8:11].mean(1), opening[free])[0, 1])
    assert len(low) > 10 and np.mean(low) > 0.8 and abs(np.mean(high)) < 0.3


def test_band_energies_of_a_tone_are_in_its_band():
    """Twelve bands up to 4 kHz; ten times the amplitude is 2 in log10 of the power, and halved that is 1."""
    samples = SAMPLE_RATE // FRAMES_PER_SECOND
    time = np.arange(4 * samples) / SAMPLE_RATE
    for hertz in (150, 1500, 3900):
        found = band_energies(np.sin(2 * np.pi * hertz * time), 4)
        assert found.shape == (4, NUM_BANDS) and (found.argmax(1) == int(hertz / 4000 * 12)).all()
        louder = band_energies(10 * np.sin(2 * np.pi * hertz * time), 4)
        np.testing.assert_allclose((louder - found).max(1), 1, atol=1e-4)
    np.testing.assert_allclose(band_energies(np.zeros(samples), 1), (-2 - 0.5) / 2)


def test_columns_are_what_they_are_said_to_be(population):
    """Bytes are decoded to [0, 1]; the sound is as long as the frames, is never cut off, and its bands are the audio."""
    view = population.parts[0].train
    columns = view.all_rows()
    for name in ("x", "ref"):
        np.testing.assert_allclose(columns[name].numpy(), view.column(name).numpy() / 255, rtol=1e-6)
    assert columns["sound"].shape[1] == 6 * SAMPLE_RATE // FRAMES_PER_SECOND and columns["sound"].dtype == torch.int16
    found = band_energies(columns["sound"].numpy() / 32767, 6)
    np.testing.assert_allclose(found, columns["audio"].numpy(), atol=2e-3)  # rounded to 16 bits
    assert int(columns["sound"].abs().max()) < 32767


def shifted(**changes) -> dict[str, np.ndarray]:
    """The same speakers whatever the shift: a key draws the same faces, movements and sounds."""
    return everything(heads(shift=replace(PUBLIC, **changes), num_public=1, num_public_test=1, **FEW))


def test_each_part_of_the_shift_does_what_it_says():
    plain, step = shifted(), 1.01 / 255  # of rounding to bytes
    tinted, factors = shifted(skin=(0.5, 0.6, 0.7))["x"], np.array([0.5, 0.6, 0.7])[:, None, None]
    assert (tinted <= plain["x"] + step).all() and (tinted >= factors * plain["x"] - step).all()
    alike, skin = (np.abs(tinted - other).max(2) < step for other in (plain["x"], factors * plain["x"]))
    assert 0.3 < alike.mean() < 0.8 and 0.1 < skin.mean() < 0.6  # what is no skin, and what is
    darker, whole = shifted(brightness=0.6)["x"], plain["x"] < 0.99  # not cut off at white
    np.testing.assert_allclose(darker[whole], 0.6 * plain["x"][whole], atol=step)
    moved = shifted(offset=(0.25, 0.125))["box"] - plain["box"]
    assert (moved == [2, 2, 4, 4]).all()  # half a picture has 16 pixels
    far, far_tinted = shifted(zoom=0.5), shifted(zoom=0.5, skin=(0.5, 0.6, 0.7))
    assert (np.abs((far["box"] - 16) - (plain["box"] - 16) / 2) <= 2).all()  # a box is rounded outwards, and the camera is not central
    assert (far["x"] - far_tinted["x"]).sum() == pytest.approx((plain["x"] - tinted).sum() / 4, rel=0.05)  # area of skin
    wide = shifted(mouth_gain=1.5)
    np.testing.assert_allclose(wide["opening"], np.minimum(1.5 * plain["opening"], 1), rtol=1e-6)
    np.testing.assert_array_equal(wide["audio"], plain["audio"])  # the same sound, another mouth


def cheek(video: np.ndarray) -> np.ndarray:
    """Colour beside the nose: skin in everybody. The mouth may reach it when it is open, hence the median."""
    return np.median(video[:, :, :, 17:19, [12, 13, 18, 19]], axis=(1, 3, 4)).mean(0)


def test_federated_speakers_are_shifted_as_a_group_and_public_ones_are_not():
    """Means over 24 speakers of either kind: skin by its factors times the brightness, mouths open 1.4 times as wide."""
    many = heads(num_clients=24, num_public=24, public_clips=1, **FEW)
    own, public = everything(many), {name: column.numpy() for name, column in many.public["train"].all_rows().items()}
    np.testing.assert_allclose(cheek(own["x"]) / cheek(public["x"]), 0.85 * np.array(FEDERATED.skin), rtol=0.1)
    assert public["opening"].max() <= 0.62 + 1e-6 < 0.8 < own["opening"].max() <= 1  # 0.62 of a loudness of at most 1
    plain = everything(heads(num_clients=24, num_public=1, shift=PUBLIC, **FEW))
    np.testing.assert_allclose(own["opening"], np.minimum(1.4 * plain["opening"], 1), rtol=1e-6)
    assert Shift() == PUBLIC != FEDERATED


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"num_clients": 0}, r"at least 1 client, 1 training clip and 2 frames, found 0 clients, \(2, 4\) clips, 6 frames\. Use"),
        ({"train_clips": (0, 4)}, r"found 4 clients, \(0, 4\) clips, 6 frames\. Use for example num_clients=8"),
        ({"train_clips": (5, 4)}, r"found 4 clients, \(5, 4\) clips"),
        ({"num_frames": 1}, r"\(2, 4\) clips, 1 frames\. Use"),
        ({"num_public": 0}, r"needs public heads to train and to test on, found 0 speakers with 2 clips, and 2 for the test\. Use 1"),
        ({"public_clips": 0}, r"found 4 speakers with 0 clips, and 2 for the test"),
        ({"num_public_test": 0}, r"found 4 speakers with 2 clips, and 0 for the test"),
    ],
)
def test_bad_input(knobs, text):
    with pytest.raises(ValueError, match=text):
        heads(**knobs)
