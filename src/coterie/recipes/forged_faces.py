"""Clients that each meet one kind of forged face, and what the server has seen before: the scenes of FL-GAP's walk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data import Assignment, Population, Table, View, load, make_population
from coterie.data.procedural_faces import FORGERIES, procedural_faces
from coterie.randomness import Key

PUBLIC_CAMERA = "studio"
CLIENT_FORGERIES = ("lowres", "checker", "double", "smooth")
CLIENTS_PER_FORGERY = 3
PHOTO_CLIENTS_PER_FORGERY = 4


@dataclass(frozen=True, eq=False)
class Scene:
    """Clients, and for each of them what its fakes were made with and what it was photographed by."""

    population: Population
    forgeries: tuple[str, ...]
    cameras: tuple[str, ...]


def drawn(people: int, public_people: int, cameras: Sequence[str], seed: int) -> Scene:
    """Three clients per forgery, whose cameras take turns; the server has all forgeries, by a camera that no client has."""
    if not cameras or PUBLIC_CAMERA in cameras:
        raise ValueError(
            f"Clients need cameras other than the server's '{PUBLIC_CAMERA}', found {tuple(cameras)}. Use for example phone."
        )
    clients = [(f, cameras[place % len(cameras)], people) for f in CLIENT_FORGERIES for place in range(CLIENTS_PER_FORGERY)]
    table = procedural_faces(seed=seed, people=[*clients, *((f, PUBLIC_CAMERA, public_people) for f in FORGERIES)])
    block = np.array([int(person.split("-")[0]) for person in table.column("group")])
    rows = [np.flatnonzero(block == place) for place in range(len(clients))]
    names = [f"{f}/{place % CLIENTS_PER_FORGERY + 1}" for place, (f, _, _) in enumerate(clients)]
    population = _population(table, rows, names, np.flatnonzero(block >= len(clients)), seed)
    return Scene(population, tuple(f for f, _, _ in clients), tuple(camera for _, camera, _ in clients))


def photographed(data_dir: str | None, seed: int) -> Scene:
    """Four clients with FaceApp stills and four with DeepFaceLab frames; the server has StyleGAN stills and other photos.

    Clients hold only pairs that can't be told apart by file or camera; a photo and its forgery stay together.
    """
    table = load("faces", data_dir, pairs="all", size=48)
    group, kind = table.column("group"), np.char.add(np.char.add(table.column("domain"), "/"), table.column("method"))
    pairs = np.intersect1d(group[kind == "stills/real"], group[kind == "stills/faceapp"])
    edited = np.isin(group, pairs) & np.isin(kind, ("stills/real", "stills/faceapp"))
    video = np.isin(kind, ("video/real", "video/deepfacelab"))
    rows: list[NDArray[np.int64]] = []
    names: list[str] = []
    for forgery, chosen in (("faceapp", edited), ("deepfacelab", video)):
        order = Key(seed, ("faces", forgery)).numpy().permutation(np.unique(group[chosen]))
        for client in range(PHOTO_CLIENTS_PER_FORGERY):
            rows.append(np.flatnonzero(chosen & np.isin(group, order[client::PHOTO_CLIENTS_PER_FORGERY])))
            names.append(f"{forgery}/{client + 1}")
    owned = np.isin(group, group[np.concatenate(rows)])
    photos = Key(seed, ("faces", "public")).numpy().permutation(np.flatnonzero((kind == "stills/real") & ~owned))
    fakes = np.flatnonzero((kind == "stills/stylegan") & ~owned)
    population = _population(table, rows, names, np.concatenate([photos[: len(fakes)], fakes]), seed)
    forgeries = tuple(name.split("/")[0] for name in names)
    return Scene(population, forgeries, tuple("stills" if f == "faceapp" else "video" for f in forgeries))


def _population(
    table: Table, rows: Sequence[NDArray[np.int64]], names: Sequence[str], public: NDArray[np.int64], seed: int
) -> Population:
    view = View(table.columns, torch.from_numpy(public), table.decode)
    assignment = Assignment(tuple(rows), tuple(names), "by forgery")
    return make_population(
        table, assignment, key=Key(seed, ("data",)), test_fraction=0.3, validation_fraction=0.2, public={"public": view}
    )
