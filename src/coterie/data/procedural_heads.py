"""Talking heads that are drawn, not filmed: identity, mouth opening and sound are known exactly, and nothing is downloaded.

A speaker is a vector of face parameters; a clip is a few frames of that face whose mouth follows the loudness of a
synthetic voice. The sound also holds a hum and a rustle of their own, so a model has to find which bands are the voice.
Federated speakers differ from the public ones by one stated, systematic `Shift` (skin, camera, mouth gain).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from coterie.data.examples import ClientParts, Population, View
from coterie.randomness import Key
from coterie.tensors import Tensors

FRAMES_PER_SECOND = 8
SAMPLE_RATE = 8000
NUM_BANDS = 12
_SAMPLES = SAMPLE_RATE // FRAMES_PER_SECOND  # of sound per frame
_BLUR = 1.1  # pixels over which an edge goes from outside to inside

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Shift:
    """How a group of speakers differs from the public ones, on the whole and not by chance."""

    skin: tuple[float, float, float] = (1.0, 1.0, 1.0)  # factor on each colour of the skin
    zoom: float = 1.0
    offset: tuple[float, float] = (0.0, 0.0)  # of the camera, right and down, in units of half the picture
    brightness: float = 1.0
    mouth_gain: float = 1.0  # how far the mouth opens for the same loudness


PUBLIC = Shift()
FEDERATED = Shift(skin=(0.62, 0.52, 0.5), zoom=0.94, offset=(-0.04, -0.03), brightness=0.85, mouth_gain=1.4)


@dataclass(frozen=True)
class Frames:
    """Bytes of frames and reference image become floats in [0, 1]."""

    def __call__(self, columns: Tensors) -> Tensors:
        return {**columns, "x": columns["x"].float() / 255.0, "ref": columns["ref"].float() / 255.0}


@dataclass(frozen=True, eq=False)
class _Speaker:
    """What stays the same in all clips of one person. Lengths are in units of half the picture, colours in [0, 1]."""

    skin: Array
    hair: Array
    shirt: Array
    wall: Array
    iris: Array
    lips: Array
    width: float
    height: float
    fringe: float
    eye_gap: float
    eye_size: float
    mouth_width: float
    mouth_drop: float
    pitch: float
    zoom: float
    centre: Array


def procedural_talking_heads(
    key: Key,
    *,
    num_clients: int = 8,
    train_clips: tuple[int, int] = (12, 24),
    validation_clips: int = 3,
    test_clips: int = 8,
    num_public: int = 128,
    public_clips: int = 3,
    num_public_test: int = 16,
    num_frames: int = 8,
    size: int = 32,
    shift: Shift = FEDERATED,
) -> Population:
    """One client per shifted speaker; public["train"] and public["test"] hold other people, without the shift.

    Columns: "x" [frames, 3, size, size], "ref" [3, size, size] from another clip of the same speaker, "audio" [frames, bands]
    (log energy), and for checks and videos "opening" [frames], "box" (top, bottom, left, right of the mouth), "sound",
    "speaker" and "clip". The number of training clips differs from client to client, between `train_clips`.
    """
    least, most = train_clips
    if num_clients < 1 or not 1 <= least <= most or num_frames < 2:
        raise ValueError(
            f"Talking heads need at least 1 client, 1 training clip and 2 frames, found {num_clients} clients, "
            f"{train_clips} clips, {num_frames} frames. Use for example num_clients=8, train_clips=(12, 24), num_frames=8."
        )
    if min(num_public, public_clips, num_public_test) < 1:
        raise ValueError(
            f"The server needs public heads to train and to test on, found {num_public} speakers with {public_clips} clips, and "
            f"{num_public_test} for the test. Use 1 or more of each."
        )
    tables: list[Tensors] = []
    indices, at = [], 0
    for client in range(num_clients):
        own = key.fold("client", client)
        num_train = int(own.fold("clips").numpy().integers(least, most + 1))
        sizes = [num_train, validation_clips, test_clips]
        tables.append(_clips(own, client, sum(sizes), num_frames, size, shift))
        indices.append(torch.split(at + torch.arange(sum(sizes)), sizes))
        at += sum(sizes)
    columns = {name: torch.cat([table[name] for table in tables]) for name in tables[0]}
    return Population(
        name="procedural_talking_heads",
        names=tuple(f"speaker-{client}" for client in range(num_clients)),
        parts=[ClientParts(*(View(columns, index, Frames()) for index in three)) for three in indices],
        public={
            "train": _public(key.fold("public"), 1000, num_public, public_clips, num_frames, size),
            "test": _public(key.fold("public test"), 100_000, num_public_test, 2, num_frames, size),
        },
        partition="one client per speaker",
    )


def _public(key: Key, first: int, num_speakers: int, num_clips: int, num_frames: int, size: int) -> View:
    tables = [_clips(key.fold(i), first + i, num_clips, num_frames, size, PUBLIC) for i in range(num_speakers)]
    columns = {name: torch.cat([table[name] for table in tables]) for name in tables[0]}
    return View(columns, torch.arange(len(columns["x"])), Frames())


def _clips(key: Key, speaker: int, count: int, num_frames: int, size: int, shift: Shift) -> Tensors:
    """`count` clips of one speaker, and a reference image from one more clip that is in no part."""
    face = _speaker(key.fold("face"), shift)
    loudness = np.stack([_loudness(key.fold("loudness", i), num_frames) for i in range(count + 1)])
    opening = np.clip(0.62 * shift.mouth_gain * loudness, 0.0, 1.0)
    video, box = _draw(face, opening, key.fold("motion"), size, shift.brightness)
    sound = np.stack([_sound(key.fold("sound", i), loudness[i], face.pitch) for i in range(count)])
    pixels = torch.from_numpy((video * 255.0).round().astype(np.uint8))
    return {
        "x": pixels[:count],
        "ref": pixels[count, num_frames // 2].expand(count, -1, -1, -1).clone(),
        "audio": torch.from_numpy(band_energies(sound, num_frames)).float(),
        "opening": torch.from_numpy(opening[:count]).float(),
        "box": torch.from_numpy(box[:count]),
        "sound": torch.from_numpy((sound * 32767.0).round().astype(np.int16)),
        "speaker": torch.full((count,), speaker),
        "clip": torch.arange(count),
    }


def _speaker(key: Key, shift: Shift) -> _Speaker:
    draw = key.numpy()
    tone = draw.uniform(0.0, 1.0)
    skin = (1 - tone) * np.array([0.98, 0.84, 0.74]) + tone * np.array([0.78, 0.6, 0.46])
    skin = skin * np.array(shift.skin)
    lips = skin * np.array([0.92, 0.55, 0.58])
    return _Speaker(
        skin=skin,
        hair=draw.uniform(0.05, 0.7) * np.array([1.0, draw.uniform(0.6, 0.95), draw.uniform(0.3, 0.8)]),
        shirt=draw.uniform(0.15, 0.9, 3),
        wall=draw.uniform(0.35, 0.95, 3),
        iris=draw.uniform(0.0, 0.5, 3),
        lips=lips,
        width=draw.uniform(0.52, 0.66),
        height=draw.uniform(0.7, 0.82),
        fringe=draw.uniform(0.35, 0.62),
        eye_gap=draw.uniform(0.22, 0.3),
        eye_size=draw.uniform(0.09, 0.13),
        mouth_width=draw.uniform(0.22, 0.32),
        mouth_drop=draw.uniform(0.36, 0.44),
        pitch=draw.uniform(100.0, 220.0),
        zoom=shift.zoom * draw.uniform(0.92, 1.04),
        centre=draw.uniform(-0.05, 0.05, 2) + np.array([0.0, 0.05]) + np.array(shift.offset),
    )


def _loudness(key: Key, num_frames: int) -> Array:
    """Syllables of random length and strength with rests between them: one value in [0, 1] per frame."""
    draw = key.numpy()
    time = np.arange(num_frames)
    total, centre = np.zeros(num_frames), draw.uniform(-1.0, 1.5)
    while centre < num_frames + 1:
        total += draw.uniform(0.45, 1.0) * np.exp(-0.5 * ((time - centre) / draw.uniform(0.5, 0.9)) ** 2)
        centre += draw.uniform(1.8, 4.0)
    return np.clip(total, 0.0, 1.0)


def _sound(key: Key, loudness: Array, pitch: float) -> Array:
    """A voice (harmonics of `pitch`, below 1.2 kHz) with this loudness, a hum and a rustle with loudness of their own."""
    draw = key.numpy()
    num_frames = len(loudness)
    time = np.arange(num_frames * _SAMPLES) / SAMPLE_RATE
    edges = np.arange(num_frames)[:, None] * _SAMPLES + np.array([0.1, 0.9]) * _SAMPLES
    level = np.interp(np.arange(len(time)), edges.ravel(), loudness.repeat(2))
    glide = 2 * np.pi * pitch * (time + 0.02 * np.sin(2 * np.pi * draw.uniform(0.5, 1.5) * time))
    numbers = np.arange(1, int(1200 / pitch) + 1)
    voice = (np.sin(numbers[:, None] * glide) / numbers[:, None] ** 0.5).sum(0)
    hum = draw.uniform(0.2, 1.0) * np.sin(2 * np.pi * draw.uniform(1500, 2200) * time)
    rustle = np.interp(np.arange(len(time)), edges.ravel(), draw.uniform(0, 1, num_frames).repeat(2))
    rustle = rustle * np.sin(2 * np.pi * draw.uniform(2500, 3600) * time + 3.0 * draw.standard_normal(len(time)))
    return np.asarray(0.18 * level * voice + 0.1 * hum + 0.15 * rustle + 0.002 * draw.standard_normal(len(time)))


def band_energies(sound: Array, num_frames: int) -> Array:
    """Log energy of each frame of sound in equally wide bands up to half the sample rate, about -1 to 1."""
    spectrum = np.abs(np.fft.rfft(sound.reshape(*sound.shape[:-1], num_frames, -1) * np.hanning(_SAMPLES), axis=-1)) ** 2
    bands = np.stack([band.mean(-1) for band in np.array_split(spectrum, NUM_BANDS, axis=-1)], axis=-1)
    return np.asarray((np.log10(bands + 1e-2) - 0.5) / 2.0)


def _draw(face: _Speaker, opening: Array, key: Key, size: int, brightness: float) -> tuple[Array, npt.NDArray[np.int64]]:
    """Frames [clips, frames, 3, size, size] in [0, 1], and each clip's mouth box in pixels."""
    clips, frames = opening.shape
    draw = key.numpy()
    sway = draw.uniform(-0.015, 0.015, (clips, 1, 2)) + 0.012 * np.sin(
        np.arange(frames)[None, :, None] * 0.7 + draw.uniform(0, 6.3, (clips, 1, 2))
    )
    blink = np.where(draw.uniform(size=(clips, frames)) < 0.1, 0.15, 1.0)
    light = draw.uniform(0.97, 1.03, (clips, 1))

    soft = 2.0 * _BLUR / size
    axis = (np.arange(size) + 0.5) / size * 2 - 1
    centre = sway + face.centre

    def grid(values: Array) -> Array:
        return values[..., None, None]

    x = (axis[None, None, None, :] - grid(centre[..., 0])) / face.zoom
    y = (axis[None, None, :, None] - grid(centre[..., 1])) / face.zoom

    def ellipse(cx: float, cy: float, rx: Array | float, ry: Array | float) -> Array:
        """Coverage in [0, 1] of an ellipse with a soft edge."""
        u, v = (x - cx) / rx, (y - cy) / ry
        radius = np.sqrt(u**2 + v**2 + 1e-9)
        inside = (1 - radius) * radius / np.sqrt((u / rx) ** 2 + (v / ry) ** 2 + 1e-9)  # distance to the edge, to first order
        return np.clip(0.5 + inside / soft, 0.0, 1.0)

    def paint(picture: Array, coverage: Array, colour: Array) -> Array:
        cover = coverage[:, :, None]
        return picture * (1 - cover) + colour[:, None, None] * cover

    shade = np.broadcast_to(1 - 0.15 * axis[:, None], (clips, frames, 1, size, size))
    picture = face.wall[:, None, None] * shade
    picture = paint(picture, ellipse(0, 1.25, 0.95, 0.6), face.shirt)
    picture = paint(picture, ellipse(0, -0.12, face.width + 0.1, face.height + 0.08), face.hair)
    picture = paint(picture, ellipse(0, 0.75, 0.2, 0.3), 0.85 * face.skin)
    picture = paint(picture, ellipse(0, 0, face.width, face.height), face.skin)
    picture = paint(picture, ellipse(0, -face.height, face.width, face.height * (1 - face.fringe)), face.hair)
    for side in (-1.0, 1.0):
        eye = side * face.eye_gap
        picture = paint(picture, ellipse(eye, -0.1, face.eye_size, grid(face.eye_size * 0.75 * blink)), np.full(3, 0.97))
        picture = paint(picture, ellipse(eye, -0.1, 0.05, grid(0.06 * blink)), face.iris)
        picture = paint(picture, ellipse(eye, -0.27, 0.12, 0.03), 0.5 * face.hair)
    picture = paint(picture, ellipse(0, 0.12, 0.05, 0.09), 0.87 * face.skin)
    half = grid(0.22 * opening)
    picture = paint(picture, ellipse(0, face.mouth_drop, face.mouth_width, 0.06 + half), face.lips)
    picture = paint(picture, ellipse(0, face.mouth_drop, face.mouth_width - 0.06, 0.004 + half), np.array([0.1, 0.02, 0.03]))
    picture = np.clip(picture * grid(light[:, :, None]) * brightness, 0.0, 1.0)

    return picture, _mouth_box(face, centre.mean(1), size)


def _mouth_box(face: _Speaker, centre: Array, size: int) -> npt.NDArray[np.int64]:
    """(top, bottom, left, right) in pixels around the widest open mouth of each clip."""
    middle = centre + face.zoom * np.array([0.0, face.mouth_drop])
    reach = face.zoom * np.array([face.mouth_width, 0.3])
    low = np.clip(np.floor((middle - reach + 1) / 2 * size), 0, size - 1)
    high = np.clip(np.ceil((middle + reach + 1) / 2 * size), 1, size)
    return np.stack([low[:, 1], high[:, 1], low[:, 0], high[:, 0]], axis=1).astype(np.int64)
