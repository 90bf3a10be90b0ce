"""Which of a client's training samples become anchors, and how too few of them are filled up or padded.

random    without replacement
fps       greedy farthest points, from a random start
kmeans    k = m, and of every centroid its nearest sample that is not taken yet

The space of the last two is the run's first encoder with its first batch statistics, L2 between normalised features
(spec/fable.md section 6). All follow from the client's key alone, so a client that is asked twice has the same anchors.
"""

from __future__ import annotations

import warnings
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.method import Examples, Net
from coterie.methods.fable.coordinates import normalised
from coterie.randomness import Key
from coterie.tensors import Tensors

Selection = Literal["random", "fps", "kmeans"]
Fill = Literal["fewer", "augment"]

_CHUNK = 256  # samples that are encoded at once
_LARGEST_SHIFT = 1 / 8  # of a picture's side


def choose(selection: Selection, count: int, examples: Examples, net: Net, key: Key) -> torch.Tensor:
    """Positions of the anchors among a client's training samples."""
    rng = key.numpy()
    if selection == "random":
        return torch.from_numpy(rng.choice(len(examples), count, replace=False))
    features = first_features(examples, net)
    places = farthest_points(features, count, rng) if selection == "fps" else near_centroids(features, count, rng)
    return torch.from_numpy(places)


def first_features(examples: Examples, net: Net) -> NDArray[np.float64]:
    """Normalised features of every sample under the run's first encoder."""
    found = []
    with torch.no_grad():
        for start in range(0, len(examples), _CHUNK):
            rows = examples.rows(torch.arange(start, min(start + _CHUNK, len(examples))))
            real = torch.ones(len(next(iter(rows.values()))), dtype=torch.bool)
            z, _ = net.encode(net.params, net.buffers, {**rows, "mask": real}, train=False)
            found.append(normalised(z.double().cpu()))
    return cast("NDArray[np.float64]", torch.cat(found).numpy())


def farthest_points(features: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Each next point is the one whose nearest chosen point is farthest away."""
    chosen = [int(rng.integers(len(features)))]
    nearest = np.full(len(features), np.inf)
    while len(chosen) < count:
        nearest = np.minimum(nearest, np.square(features - features[chosen[-1]]).sum(axis=1))
        nearest[chosen] = -1.0  # where all points left coincide with chosen ones, none is taken twice
        chosen.append(int(nearest.argmax()))
    return np.array(chosen)


def near_centroids(features: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The nearest sample to every centroid of k-means; a sample stands for one centroid only."""
    from sklearn.cluster import KMeans  # here, since it takes longer to import than all of the package
    from threadpoolctl import threadpool_limits

    seed = int(rng.integers(2**31))
    if count == len(features):
        return np.arange(count)
    with warnings.catch_warnings(), threadpool_limits(limits=1):  # threads add in any order: another sum, other anchors
        warnings.simplefilter("ignore")  # fewer distinct samples than anchors are no mistake here
        centroids = KMeans(n_clusters=count, n_init=1, random_state=seed).fit(features).cluster_centers_
    free = np.ones(len(features), dtype=bool)
    chosen = []
    for centroid in centroids:
        distance = np.where(free, np.square(features - centroid).sum(axis=1), np.inf)
        chosen.append(int(distance.argmin()))
        free[chosen[-1]] = False
    return np.array(chosen)


def filled(columns: Tensors, total: int, fill: Fill, key: Key) -> Tensors:
    """With "augment", flipped and shifted pictures of the anchors beyond those that there are (FB-D4)."""
    x = columns["x"]
    missing = total - len(x)
    if fill == "fewer" or missing <= 0:
        return columns
    if x.dim() != 4 or not x.is_floating_point():
        raise ValueError(
            f"fill='augment' makes anchors by flipping and shifting pictures, found samples of shape {list(x.shape[1:])}. "
            "Use fill='fewer', which takes as many anchors as there are samples."
        )
    rng = key.numpy()
    base = [int(place) for place in np.resize(rng.permutation(len(x)), missing)]
    new = torch.stack([another_view(x[place], rng) for place in base])
    return {**{name: torch.cat([value, value[base]]) for name, value in columns.items()}, "x": torch.cat([x, new])}


def another_view(picture: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Mirrored or not, and cut anew out of a frame of zeros; never the picture itself."""
    height, width = picture.shape[1:]
    reach = [max(1, int(side * _LARGEST_SHIFT)) for side in (height, width)]
    flip, down, right = False, 0, 0
    while not (flip or down or right):
        flip = bool(rng.integers(2))
        down, right = (int(rng.integers(-most, most + 1)) for most in reach)
    framed = torch.nn.functional.pad(picture.flip(2) if flip else picture, (reach[1], reach[1], reach[0], reach[0]))
    top, left = reach[0] + down, reach[1] + right
    return framed[:, top : top + height, left : left + width]


def padded(columns: Tensors, total: int, like: torch.Tensor) -> Tensors:
    """Anchors repeated up to `total` rows, and "real", 1 for each that is no repetition."""
    count = len(next(iter(columns.values())))
    places = torch.arange(total) % count
    real = (torch.arange(total) < count).to(like.device, like.dtype)
    return {**{name: value[places.to(value.device)] for name, value in columns.items()}, "real": real}
