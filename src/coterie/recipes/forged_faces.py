"""Clients that each meet one kind of forged face, and what the server has seen before: the scenes of FL-GAP's walk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data import Assignment, Population, Table, View, load, make_population
from coterie.data.procedural_faces import FORGERIES, procedural_faces
from coterie.randomness import Key

PUBLIC_CAMERA = "studio"
CLIENT_FORGERIES = ("lowres", "checker", "double", "smooth")
DRAWN_CLIENTS = 12
PHOTO_CLIENTS = 8


@dataclass(frozen=True, eq=False)
class Scene:
    """Clients, and for each of them what its fakes were made with and what it was photographed by."""

    population: Population
    forgeries: tuple[str, ...]
    cameras: tuple[str, ...]


def drawn(people: int, public_people: int, cameras: Sequence[str], seed: int, num_clients: int = DRAWN_CLIENTS) -> Scene:
    """As many clients per forgery, whose cameras take turns; the server has all forgeries, by a camera that no client has."""
    if not cameras or PUBLIC_CAMERA in cameras:
        raise ValueError(
            f"Clients need cameras other than the server's '{PUBLIC_CAMERA}', found {tuple(cameras)}. Use for example phone."
        )
    if people < 2:
        raise ValueError(f"A client needs at least 2 people, one to train and one to test on, found {people}. Use for example 100.")
    places = list(_dealt(CLIENT_FORGERIES, num_clients))
    clients = [(f, cameras[place % len(cameras)], people) for f, place in places]
    table = procedural_faces(seed=seed, people=[*clients, *((f, PUBLIC_CAMERA, public_people) for f in FORGERIES)])
    block = np.array([int(person.split("-")[0]) for person in table.column("group")])
    rows = [np.flatnonzero(block == place) for place in range(len(clients))]
    names = [f"{f}/{place + 1}" for f, place in places]
    population = _population(table, rows, names, np.flatnonzero(block >= len(clients)), seed)
    return Scene(population, tuple(f for f, _, _ in clients), tuple(camera for _, camera, _ in clients))


def photographed(data_dir: str | None, seed: int, num_clients: int = PHOTO_CLIENTS) -> Scene:
    """Half of the clients with FaceApp stills, half with DeepFaceLab frames; the server has StyleGAN stills and other photos.

    Clients hold only pairs that can't be told apart by file or camera; a photo and its forgery stay together.
    """
    table = load("faces", data_dir, pairs="all", size=48)
    group, kind = table.column("group"), np.char.add(np.char.add(table.column("domain"), "/"), table.column("method"))
    pairs = np.intersect1d(group[kind == "stills/real"], group[kind == "stills/faceapp"])
    edited = np.isin(group, pairs) & np.isin(kind, ("stills/real", "stills/faceapp"))
    video = np.isin(kind, ("video/real", "video/deepfacelab"))
    of_kind = {"faceapp": edited, "deepfacelab": video}
    orders = {f: Key(seed, ("faces", f)).numpy().permutation(np.unique(group[chosen])) for f, chosen in of_kind.items()}
    places = list(_dealt(tuple(of_kind), num_clients))
    count = Counter(f for f, _ in places)
    rows = [np.flatnonzero(of_kind[f] & np.isin(group, orders[f][place :: count[f]])) for f, place in places]
    names = [f"{f}/{place + 1}" for f, place in places]
    owned = np.isin(group, group[np.concatenate(rows)])
    photos = Key(seed, ("faces", "public")).numpy().permutation(np.flatnonzero((kind == "stills/real") & ~owned))
    fakes = np.flatnonzero((kind == "stills/stylegan") & ~owned)
    population = _population(table, rows, names, np.concatenate([photos[: len(fakes)], fakes]), seed)
    forgeries = tuple(name.split("/")[0] for name in names)
    return Scene(population, forgeries, tuple("stills" if f == "faceapp" else "video" for f in forgeries))


def _dealt(forgeries: Sequence[str], num_clients: int) -> Iterator[tuple[str, int]]:
    """Each client's forgery and its number among the clients of that forgery; the first forgeries take what does not divide."""
    if num_clients < 2:
        raise ValueError(f"FL-GAP mixes the models of several clients, found {num_clients}. Use --clients 2 or more.")
    for i, forgery in enumerate(forgeries):
        yield from ((forgery, place) for place in range(len(range(i, num_clients, len(forgeries)))))


def _population(
    table: Table, rows: Sequence[NDArray[np.int64]], names: Sequence[str], public: NDArray[np.int64], seed: int
) -> Population:
    view = View(table.columns, torch.from_numpy(public), table.decode)
    assignment = Assignment(tuple(rows), tuple(names), "by forgery")
    return make_population(
        table, assignment, key=Key(seed, ("data",)), test_fraction=0.3, validation_fraction=0.2, public={"public": view}
    )
