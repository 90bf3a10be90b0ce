"""Which samples become anchors, against independent arithmetic, and how they are filled up."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import toy
from test_fable import site_of, unit

from coterie.data.examples import ClientParts, View
from coterie.methods.fable import Fable
from coterie.methods.fable.anchors import another_view, choose, farthest_points, filled, near_centroids, padded
from coterie.models.nets import resnet8
from coterie.randomness import Key


def blobs(clusters=6, each=20, dim=4, seed=0):
    """Points around far centres, and which centre each belongs to."""
    rng = np.random.default_rng(seed)
    centres = np.eye(clusters, dim) * 10 + np.arange(clusters)[:, None] * 7
    points = (centres[:, None] + rng.normal(0, 0.1, (clusters, each, dim))).reshape(-1, dim)
    owner = np.repeat(np.arange(clusters), each)
    order = rng.permutation(len(points))
    return points[order], owner[order]


def test_farthest_points_are_greedy():
    points, _ = blobs(seed=1)
    chosen = farthest_points(points, 15, np.random.default_rng(3))
    assert chosen[0] == np.random.default_rng(3).integers(len(points)) and len(set(chosen.tolist())) == 15
    for step in range(1, 15):
        distance = [min(np.linalg.norm(p - points[c]) for c in chosen[:step]) for p in points]
        assert distance[chosen[step]] == pytest.approx(max(distance))


def test_farthest_points_take_no_twin_twice():
    chosen = farthest_points(np.zeros((5, 2)), 5, np.random.default_rng(0))
    assert sorted(chosen.tolist()) == [0, 1, 2, 3, 4]


def test_centroids_of_separate_clusters_are_their_means():
    """One anchor per cluster, the sample nearest to its mean; scikit-learn is not asked."""
    points, owner = blobs()
    for seed in range(3):
        chosen = near_centroids(points, 6, np.random.default_rng(seed))
        if len(set(owner[chosen])) < 6:  # one random start may put two centroids into one cluster
            continue
        for place in chosen:
            own = np.flatnonzero(owner == owner[place])
            assert place == own[np.linalg.norm(points[own] - points[own].mean(0), axis=1).argmin()]
        return
    raise AssertionError("no start found the six clusters")


def test_a_sample_stands_for_one_centroid_only():
    twins = np.repeat(np.eye(3), 4, axis=0)  # 12 samples, 3 distinct
    chosen = near_centroids(twins, 7, np.random.default_rng(0))
    assert len(set(chosen.tolist())) == 7
    assert near_centroids(twins, 12, np.random.default_rng(0)).tolist() == list(range(12))


@pytest.mark.parametrize("selection", ["random", "fps", "kmeans"])
def test_anchors_follow_from_the_clients_key_and_the_first_encoder(selection):
    """The space is the normalised feature of the net's first weights: here computed by hand."""
    site = site_of(3)
    chosen = choose(selection, 6, site.data.train, site.net, site.key.fold("anchors"))
    assert torch.equal(chosen, choose(selection, 6, site.data.train, site.net, site.key.fold("anchors")))
    others = [choose(selection, 6, site.data.train, site.net, Key(0, ("row", other))) for other in range(6)]
    assert any(set(chosen.tolist()) != set(other.tolist()) for other in others)
    x, p = site.data.train.all_rows()["x"], site.net.params
    space = unit((x @ p["encoder.layer1.1.weight"].T + p["encoder.layer1.1.bias"]).clamp(min=0)).numpy()
    by_hand = {"fps": farthest_points, "kmeans": near_centroids}
    if selection in by_hand:
        assert chosen.tolist() == by_hand[selection](space, 6, site.key.fold("anchors").numpy()).tolist()
    row = Fable(anchors=6, selection=selection).client_row(site)
    assert torch.equal(row["anchors"]["x"], x[chosen])


def test_farthest_points_cover_more_than_random_ones():
    """What the option is for: the largest distance from a sample to its nearest anchor is smaller."""
    points, _ = blobs(clusters=6, each=30)

    def reach(chosen):
        return max(min(np.linalg.norm(p - points[c]) for c in chosen) for p in points)

    rng = np.random.default_rng(0)
    random = np.mean([reach(rng.choice(len(points), 8, replace=False)) for _ in range(10)])
    assert reach(farthest_points(points, 8, rng)) < random / 5


# --- too few samples ---------------------------------------------------------------------------------------------------------


def pictures(count=5, side=8, seed=0):
    return {"x": torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)}


def views_of(picture, reach):
    """Every mirrored and shifted version by hand, zeros coming in at the border."""
    found = []
    for flip in (False, True):
        source = picture[:, :, torch.arange(picture.shape[2] - 1, -1, -1)] if flip else picture
        for dy in range(-reach, reach + 1):
            for dx in range(-reach, reach + 1):
                new = torch.zeros_like(source)
                for y in range(picture.shape[1]):
                    for x in range(picture.shape[2]):
                        if 0 <= y + dy < picture.shape[1] and 0 <= x + dx < picture.shape[2]:
                            new[:, y, x] = source[:, y + dy, x + dx]
                found.append(new)
    return found


def test_augmented_anchors_are_flips_and_shifts_of_own_samples():
    columns = pictures()
    out = filled(columns, 12, "augment", Key(4))["x"]
    assert out.shape == (12, 3, 8, 8) and torch.equal(out[:5], columns["x"])
    known = [view for picture in columns["x"] for view in views_of(picture, 1)]
    for new in out[5:]:
        assert any(torch.equal(new, view) for view in known)
        assert not any(torch.equal(new, old) for old in columns["x"])
    assert torch.equal(out, filled(columns, 12, "augment", Key(4))["x"])
    assert torch.equal(filled(columns, 5, "augment", Key(4))["x"], columns["x"])
    assert len(filled(columns, 12, "fewer", Key(4))["x"]) == 5


def test_another_view_is_never_the_picture_itself():
    picture = pictures(1)["x"][0]
    assert all(not torch.equal(another_view(picture, np.random.default_rng(seed)), picture) for seed in range(50))


def test_with_augmented_anchors_every_row_is_real():
    torch.manual_seed(0)
    net = resnet8(3, 2).to("cpu", torch.float64)
    view = View({**pictures(4), "y": torch.tensor([0, 1, 0, 1])}, torch.arange(4))
    site = replace(site_of(0), data=ClientParts(view, view, view), net=net)
    fewer, more = (Fable(anchors=9, fill=fill, refresh="init").client_row(site) for fill in ("fewer", "augment"))
    assert len(fewer["anchors"]["x"]) == 4 and len(more["anchors"]["x"]) == 9
    assert fewer["embedded"]["real"].sum() == 4 and more["embedded"]["real"].sum() == 9


def test_only_pictures_can_be_augmented():
    with pytest.raises(ValueError, match=r"flipping and shifting pictures, found samples of shape \[6\]\. Use fill='fewer'"):
        Fable(anchors=50, fill="augment").client_row(site_of(0))


def test_padding_repeats_and_marks():
    found = padded({"x": torch.arange(6.0).view(3, 2)}, 5, torch.zeros(1, dtype=torch.float64))
    assert found["x"][:, 0].tolist() == [0, 2, 4, 0, 2] and found["real"].tolist() == [1, 1, 1, 0, 0]


def test_more_anchors_than_samples_is_handled_and_a_whole_number_of_them_is_real():
    """FB-T10: client 2 has 9 samples."""
    row = Fable(anchors=12, selection="kmeans").client_row(site_of(2))
    assert sorted(row["anchors"]["x"][:, 0].tolist()) == sorted(toy.population().parts[2].train.all_rows()["x"].double()[:, 0].tolist())
