"""Drawn faces: what a key fixes, where a forgery is, which trace each leaves, and that no person is shared."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.data import make_population
from coterie.data.partition import Assignment
from coterie.data.procedural_faces import DOMAINS, FORGERIES, procedural_faces
from coterie.randomness import Key

ALL = [(forgery, "phone", 60) for forgery in FORGERIES]


@pytest.fixture(scope="module")
def table():
    return procedural_faces(seed=3, people=ALL)


def pairs(table, forgery):
    """Real pictures and the forgeries of the same persons, [60, 3, 32, 32] in 0..255."""
    of = table.column("forger") == forgery
    real, fake = of & (table.labels == 0), of & (table.labels == 1)
    assert (table.column("group")[real] == table.column("group")[fake]).all()
    return (table.columns["x"].numpy()[rows].astype(np.float64) for rows in (real, fake))


def wins(real, fake):
    """Share of pairs in which the fake has more of something: 0.5 means no trace."""
    return float((fake > real).mean())


def test_the_same_seed_gives_the_same_pictures_and_blocks_do_not_disturb_each_other(table):
    again = procedural_faces(seed=3, people=ALL)
    assert torch.equal(table.columns["x"], again.columns["x"])
    assert not torch.equal(table.columns["x"], procedural_faces(seed=4, people=ALL).columns["x"])
    alone = procedural_faces(seed=3, people=ALL[:1])
    assert torch.equal(alone.columns["x"], table.columns["x"][: len(alone)])


def test_every_person_has_as_many_fakes_as_real_pictures():
    table = procedural_faces(people=[("blend", "night", 5), ("tint", "studio", 4)], pictures=3)
    assert len(table) == 2 * 3 * 9 and table.columns["x"].shape[1:] == (3, 32, 32)
    group, y = table.column("group"), table.labels
    for person in np.unique(group):
        assert (y[group == person] == 0).sum() == (y[group == person] == 1).sum() == 3
    assert ((table.column("method") == "real") == (y == 0)).all()
    assert set(table.column("forger")[table.column("domain") == "night"]) == {"blend"}
    x = table.decode(table.columns)["x"]
    assert x.dtype == torch.float32 and -1 <= float(x.min()) < -0.5 and 0.5 < float(x.max()) <= 1


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forgery_is_in_the_face_and_nowhere_else(table, forgery):
    real, fake = pairs(table, forgery)
    changed = np.abs(fake - real).mean((0, 1))
    corners, middle = changed[[0, 0, -1, -1], [0, -1, 0, -1]].mean(), changed[14:20, 14:18].mean()
    assert middle > 1.25 * corners


def test_each_forgery_leaves_its_own_trace(table):
    face = (slice(None), slice(None), slice(10, 24), slice(11, 21))
    sign = np.where(np.indices((14, 10)).sum(0) % 2, 1.0, -1.0)

    def checkerboard(x):
        return np.abs((x[face] * sign).mean((1, 2, 3)))

    def roughness(x):
        return np.abs(np.diff(x[face], axis=2)).mean((1, 2, 3))

    def lines(x):
        rows = x[face].mean((1, 3))[:, :12]
        return np.abs((rows * np.exp(2j * np.pi * np.arange(12) / 3)).sum(1))

    def steps(x):
        """How much less neighbours differ inside blocks of 2 rows than across them."""
        difference = np.abs(np.diff(x[:, :, 10:24, 11:21], axis=2)).mean((1, 3))
        return difference[:, 1::2].mean(1) - difference[:, 0::2].mean(1)

    assert wins(*map(checkerboard, pairs(table, "checker"))) > 0.95
    assert wins(*map(roughness, pairs(table, "smooth"))) < 0.05
    assert wins(*map(roughness, pairs(table, "sharpen"))) > 0.95
    assert wins(*map(lines, pairs(table, "lines"))) > 0.85
    assert wins(*map(steps, pairs(table, "lowres"))) > 0.95
    assert 0.3 < wins(*map(checkerboard, pairs(table, "tint"))) < 0.7  # and not the others' traces


def test_strength_zero_is_no_trace():
    """Real and fake then differ by the noise of their compression only, in the face as outside."""
    table = procedural_faces(people=[(forgery, "studio", 80) for forgery in FORGERIES], strength=0.0)
    for forgery in FORGERIES:
        changed = np.abs(np.subtract(*pairs(table, forgery))).mean((0, 1))
        assert changed[14:20, 14:18].mean() == pytest.approx(changed[[0, 0, -1, -1], [0, -1, 0, -1]].mean(), rel=0.25)


def test_no_person_in_two_parts_or_two_clients():
    people = [("smooth", domain, 30) for domain in DOMAINS]
    table = procedural_faces(people=people, pictures=2)
    domain = table.column("domain")
    rows = tuple(np.flatnonzero(domain == name) for name in DOMAINS)
    population = make_population(table, Assignment(rows, tuple(DOMAINS), "by camera"), key=Key(0))
    seen: set[str] = set()
    for parts in population.parts:
        for part in (parts.train, parts.validation, parts.test):
            persons = set(table.column("group")[part.index.numpy()])
            assert persons and not persons & seen
            seen |= persons
    assert len(seen) == 30 * len(DOMAINS)


def test_bad_input():
    with pytest.raises(ValueError, match=r"Unknown forgery 'blur'\. Use one of blend, "):
        procedural_faces(people=[("blur", "studio", 3)])
    with pytest.raises(ValueError, match=r"Unknown domain 'mars'\. Use one of studio, "):
        procedural_faces(people=[("blend", "mars", 3)])
    with pytest.raises(ValueError, match=r"0 persons of 'blend' in 'studio' are no block\. Use 1 or more"):
        procedural_faces(people=[("blend", "studio", 0)])
    with pytest.raises(ValueError, match=r"found 1, 8 and 1\.0\. Use for example"):
        procedural_faces(size=8)
