"""Drawn faces, real and forged: nothing is downloaded, and which generator made a fake is known.

A person is a vector of face parameters and belongs to one domain (a camera with its own colours, blur and noise). Real
pictures of a person are drawn and photographed; fakes start from such a picture and change the inner face in the
way of one forgery, each of which leaves a trace of its own:

    blend    another person's inner face with a visible edge        double   a shifted second copy (bad warping)
    lowres   half the resolution, scaled up in steps                smooth   skin and mouth without camera noise
    checker  a checkerboard, as transposed convolutions leave       sharpen  halos of an enhancer
    tint     colours that do not fit the rest of the picture        lines    faint horizontal lines

Every picture is then compressed a little (blur, noise), so that a trace is weak and not in every picture equally strong.
Domains are on purpose close to some traces (a soft camera looks like `smooth`, a crisp one like `sharpen`), so a
detector that learnt one client's world is often wrong in another's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from coterie.data.examples import Pixels
from coterie.data.table import Table
from coterie.randomness import Key

Array = npt.NDArray[np.float32]

_EDGE = 0.06  # softness of every drawn edge, in units of half the picture


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A camera and its place: what all pictures of one collection have in common."""

    cast: tuple[float, float, float] = (1.0, 1.0, 1.0)  # factor on each colour
    blur: float = 0.3  # weight of the neighbouring pixels, 0 is crisp
    noise: float = 0.03
    contrast: float = 1.0


DOMAINS: dict[str, Domain] = {
    "studio": Domain(),
    "phone": Domain(cast=(1.04, 1.0, 0.93), blur=0.05, noise=0.05, contrast=1.15),
    "webcam": Domain(cast=(0.93, 1.0, 1.06), blur=0.7, noise=0.02, contrast=0.85),
    "night": Domain(cast=(0.85, 0.7, 0.55), blur=0.2, noise=0.08, contrast=0.9),
}


def procedural_faces(
    *,
    seed: int = 0,
    people: Sequence[tuple[str, str, int]] = (("blend", "studio", 200), ("checker", "phone", 200)),
    pictures: int = 1,
    strength: float = 1.0,
    size: int = 32,
) -> Table:
    """A table with `pictures` real and as many forged pictures of every person.

    `people`: (forgery, domain, how many persons) per block. Columns of `meta`: "group" (the person: a fake counts to
    the person in whose picture it was made, and so does the real one), "method" ("real" or the forgery), "domain",
    and "forger", the forgery that this person's pictures suffer, also for the real ones. `strength` scales every trace.
    """
    for forgery, domain, count in people:
        _check_name("forgery", forgery, FORGERIES)
        _check_name("domain", domain, DOMAINS)
        if count < 1:
            raise ValueError(f"{count} persons of '{forgery}' in '{domain}' are no block. Use 1 or more.")
    if pictures < 1 or size < 16 or strength < 0:
        raise ValueError(
            f"Faces need pictures >= 1, size >= 16 and strength >= 0, found {pictures}, {size} and {strength}. "
            "Use for example pictures=1, size=32, strength=1."
        )
    key = Key(seed, ("procedural faces",))
    x: list[npt.NDArray[np.uint8]] = []
    meta: dict[str, list[npt.NDArray[np.str_]]] = {name: [] for name in ("group", "method", "domain", "forger")}
    for place, (forgery, domain, count) in enumerate(people):
        real, fake = _block(key.fold(place), forgery, DOMAINS[domain], count * pictures, pictures, strength, size)
        x += [real, fake]
        persons = np.repeat([f"{place}-{person}" for person in range(count)], pictures)
        meta["group"] += [persons, persons]
        meta["method"] += [np.repeat("real", len(real)), np.repeat(forgery, len(fake))]
        meta["domain"].append(np.repeat(domain, len(real) + len(fake)))
        meta["forger"].append(np.repeat(forgery, len(real) + len(fake)))
    joined = {name: np.concatenate(values) for name, values in meta.items()}
    return Table(
        name="procedural_faces",
        columns={
            "x": torch.from_numpy(np.concatenate(x)),
            "y": torch.from_numpy((joined["method"] != "real").astype(np.int64)),
        },
        classes=("real", "fake"),
        meta=joined,
        decode=Pixels(),
    )


def _check_name(what: str, name: str, known: dict[str, Domain] | dict[str, Forgery]) -> None:
    if name not in known:
        raise ValueError(f"Unknown {what} '{name}'. Use one of {', '.join(known)}.")


def _block(
    key: Key, forgery: str, domain: Domain, count: int, pictures: int, strength: float, size: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Real and forged pictures [count, 3, size, size]; a person's pictures follow each other."""
    picture, face = _draw(_persons(key.fold("persons"), count // pictures, pictures), key.fold("pose"), size)
    donor, _ = _draw(_persons(key.fold("donors"), count, 1), key.fold("pose"), size)  # the same poses, other people
    real = _photograph(picture, domain, key.fold("photo"))
    other = _photograph(donor, domain, key.fold("donor photo"))
    rng = key.fold("forgery").numpy()
    each = strength * rng.uniform(0.5, 1.5, (count, 1, 1, 1)).astype(np.float32)
    mask = face[:, None]
    forged = real + mask * (FORGERIES[forgery](real, other, each, rng) - real)
    return _compress(real, key.fold("compress real")), _compress(forged, key.fold("compress fake"))


def _persons(key: Key, count: int, repeat: int) -> dict[str, Array]:
    """Parameters of `count` persons, each repeated. Lengths are in units of half the picture, colours in [0, 1]."""
    rng = key.numpy()

    def between(low: float, high: float, *shape: int) -> Array:
        return rng.uniform(low, high, (count, *shape)).astype(np.float32)

    tone, shade = between(0, 1, 1), between(0.9, 1.1, 3)
    skin = ((1 - tone) * np.array([0.95, 0.8, 0.7]) + tone * np.array([0.5, 0.35, 0.26])) * shade
    person = {
        "skin": np.clip(skin, 0, 1).astype(np.float32),
        "hair": between(0.05, 0.6, 1) * between(0.6, 1.0, 3),
        "shirt": between(0.1, 0.9, 3),
        "wall": between(0.25, 0.9, 3),
        "iris": between(0.0, 0.45, 3),
        "width": between(0.5, 0.66),
        "height": between(0.68, 0.84),
        "fringe": between(0.3, 0.6),
        "eye_gap": between(0.2, 0.3),
        "eye_size": between(0.09, 0.14),
        "brow": between(0.02, 0.05),
        "nose": between(0.06, 0.12),
        "mouth_width": between(0.16, 0.3),
        "mouth_drop": between(0.34, 0.46),
        "lips": between(0.4, 0.75, 1) * np.array([[1.0, 0.55, 0.55]], dtype=np.float32),
    }
    return {name: value.repeat(repeat, axis=0) for name, value in person.items()}


def _draw(person: dict[str, Array], key: Key, size: int) -> tuple[Array, Array]:
    """Pictures [N, 3, size, size] in about [0, 1], and the coverage of the inner face [N, size, size]."""
    count = len(person["width"])
    rng = key.numpy()

    def drawn(low: float, high: float) -> Array:
        return rng.uniform(low, high, count).astype(np.float32)

    left, up, tilt, light, smile = drawn(-0.1, 0.1), drawn(-0.08, 0.08), drawn(-0.12, 0.12), drawn(-0.3, 0.3), drawn(0.02, 0.09)
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size * 2 - 1
    dx, dy = axis[None, None, :] - _grid(left), axis[None, :, None] - _grid(up) - 0.05
    x, y = dx + _grid(tilt) * dy, dy - _grid(tilt) * dx

    def ellipse(cx: Array | float, cy: Array | float, rx: Array | float, ry: Array | float) -> Array:
        """Coverage in [0, 1] with a soft edge."""
        u, v = (x - _grid(cx)) / _grid(rx), (y - _grid(cy)) / _grid(ry)
        radius = np.sqrt(u**2 + v**2 + 1e-9)
        return np.clip(0.5 + (1 - radius) * np.minimum(_grid(rx), _grid(ry)) / _EDGE, 0, 1).astype(np.float32)

    def paint(picture: Array, coverage: Array, colour: Array) -> Array:
        return picture + coverage[:, None] * (colour[:, :, None, None] - picture)

    width, height, white = person["width"], person["height"], np.full((count, 3), 0.95, dtype=np.float32)
    shade = 1 - np.float32(0.15) * axis[:, None].repeat(size, axis=1)
    picture: Array = np.multiply(person["wall"][:, :, None, None], shade, dtype=np.float32)
    picture = paint(picture, ellipse(0, 1.3, 0.95, 0.6), person["shirt"])
    hair = ellipse(0, -0.1, width + 0.1, height + 0.08)
    picture = paint(picture, hair, person["hair"])
    picture = paint(picture, ellipse(0, 0, width, height), person["skin"])
    picture = paint(picture, hair * ellipse(0, -height, width, height * (1 - person["fringe"])), person["hair"])
    for side in (-1.0, 1.0):
        eye = side * person["eye_gap"]
        picture = paint(picture, ellipse(eye, -0.12, person["eye_size"], 0.7 * person["eye_size"]), white)
        picture = paint(picture, ellipse(eye, -0.12, 0.06, 0.06), person["iris"])
        picture = paint(picture, ellipse(eye, -0.3, 0.13, person["brow"]), np.float32(0.6) * person["hair"])
    picture = paint(picture, ellipse(0, 0.12, person["nose"], 0.12), np.float32(0.85) * person["skin"])
    picture = paint(picture, ellipse(0, person["mouth_drop"], person["mouth_width"], smile), person["lips"])
    lit = picture * (1 + _grid(light)[:, None] * x[:, None])
    return lit.astype(np.float32), ellipse(0, 0.08, 0.8 * width, 0.75 * height)


def _grid(value: Array | float) -> Array:
    return np.asarray(value, dtype=np.float32).reshape(-1, 1, 1)


def _photograph(picture: Array, domain: Domain, key: Key) -> Array:
    cast = np.array(domain.cast, dtype=np.float32)[:, None, None]
    seen = (picture * cast - 0.5) * domain.contrast + 0.5
    grain = key.numpy().standard_normal(picture.shape, dtype=np.float32)
    return _blur(seen + domain.noise * grain, domain.blur)


def _compress(picture: Array, key: Key) -> npt.NDArray[np.uint8]:
    rng = key.numpy()
    soft = rng.uniform(0.0, 0.3, (len(picture), 1, 1, 1)).astype(np.float32)
    grain = rng.standard_normal(picture.shape, dtype=np.float32)
    level = rng.uniform(0.005, 0.02, (len(picture), 1, 1, 1)).astype(np.float32)
    return (np.clip(_blur(picture, soft) + level * grain, 0, 1) * 255).round().astype(np.uint8)


def _blur(picture: Array, weight: Array | float) -> Array:
    """Mean with the neighbours in both directions, which count `weight` each against 1."""
    for axis in (2, 3):
        padded = np.concatenate([picture.take([0], axis), picture, picture.take([-1], axis)], axis)
        inner = np.arange(picture.shape[axis])
        around = padded.take(inner, axis) + padded.take(inner + 2, axis)
        picture = (picture + weight * around) / (1 + 2 * weight)
    return picture.astype(np.float32)


Forgery = Callable[[Array, Array, Array, np.random.Generator], Array]
"""(real pictures, other people's in the same pose, strength, random numbers) -> forged pictures, used inside the face."""


def _blend(real: Array, other: Array, strength: Array, rng: np.random.Generator) -> Array:
    offset = rng.choice([-1.0, 1.0], (len(real), 1, 1, 1)).astype(np.float32)
    third = real.shape[2] // 3
    middle = (slice(None), slice(None), slice(third, -third), slice(third, -third))
    matched = other - other[middle].mean((2, 3), keepdims=True) + real[middle].mean((2, 3), keepdims=True)
    return np.asarray(real + np.minimum(2 * strength, 1.0) * (matched - real) + 0.16 * strength * offset)


def _lowres(real: Array, other: Array, strength: Array, rng: np.random.Generator) -> Array:
    small = (real[..., ::2, ::2] + real[..., 1::2, ::2] + real[..., ::2, 1::2] + real[..., 1::2, 1::2]) / 4
    steps = small.repeat(2, axis=2).repeat(2, axis=3)
    return np.asarray(real + np.minimum(2 * strength, 1.0) * (steps - real))


def _checker(real: Array, other: Array, strength: Array, rng: np.random.Generator) -> Array:
    row, column = np.indices(real.shape[2:])
    return np.asarray(real + 0.12 * strength * np.where((row + column) % 2, 1.0, -1.0), dtype=np.float32)


def _tint(real: Array, other: Array, strength: Array, rng: np.random.Generator) -> Array:
    tint = rng.standard_normal((len(real), 3, 1, 1), dtype=np.float32)
    tint -= tint.mean(1, keepdims=True)
    return np.asarray(real + 0.18 * strength * tint / np.abs(tint).mean(1, keepdims=True))


def _double(real: Array, other: Array, strength: Array, rng: np.random.Generator) -> Array:
    shifted = np.roll(real, (1, 2), axis=(2, 3))
    return np.asarray(real + 0.6 * np.minimum(strength, 1.0) * (shifted - real))


def _smooth(real: Array, other: Array, strength: Array, rng: np.random.Generator) -> Array:
    return _blur(real, 1.6 * strength)


def _sharpen(real: Array, other: Array, strength: Array, rng: np.random.Generator) -> Array:
    return np.asarray(real + 1.8 * strength * (real - _blur(real, 1.0)))


def _lines(real: Array, other: Array, strength: Array, rng: np.random.Generator) -> Array:
    row = np.arange(real.shape[2]) + rng.integers(0, 3, (len(real), 1))
    wave = np.cos(2 * np.pi * row / 3).astype(np.float32)
    return np.asarray(real + 0.12 * strength * wave[:, None, :, None])


FORGERIES: dict[str, Forgery] = {
    "blend": _blend, "lowres": _lowres, "checker": _checker, "tint": _tint,
    "double": _double, "smooth": _smooth, "sharpen": _sharpen, "lines": _lines,
}  # fmt: skip
