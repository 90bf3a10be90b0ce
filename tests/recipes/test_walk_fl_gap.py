"""The scenes of FL-GAP's walk keep material apart, and what the walk says is what its runs wrote."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest

from coterie.engine.settings import Settings
from coterie.recipes.forged_faces import CLIENT_FORGERIES, drawn, photographed
from coterie.recipes.session import Session
from coterie.recipes.walk_fl_gap import Walk, client_scores, detector, walk_fl_gap

FACES = Path(os.environ.get("COTERIE_DATA", Path(__file__).parents[3] / "shared" / "data")) / "faces"


def rows_of(part):
    return {tuple(row.tolist()) for row in part.columns["x"][part.index].flatten(1)[:, :60]}


def test_drawn_scene_has_its_forgeries_and_no_shared_picture():
    scene = drawn(people=8, public_people=5, cameras=("phone", "night"), seed=1)
    assert scene.forgeries == tuple(f for f in CLIENT_FORGERIES for _ in range(3))
    assert scene.cameras == ("phone", "night", "phone") * 4
    seen = rows_of(scene.population.public["public"])
    assert len(seen) == 8 * 5 * 2  # all eight forgeries, a real picture each
    for parts in scene.population.parts:
        assert sum(len(p) for p in (parts.train, parts.validation, parts.test)) == 16
        for part in (parts.train, parts.validation, parts.test):
            assert len(part) and not rows_of(part) & seen
            assert part.column("y").double().mean() == 0.5
            seen |= rows_of(part)
    with pytest.raises(ValueError, match=r"cameras other than the server's 'studio', found \('studio',\)"):
        drawn(people=8, public_people=5, cameras=("studio",), seed=1)


@pytest.mark.parametrize(("wrong", "text"), [({"num_clients": 1}, "several clients, found 1"), ({"people": 1}, "at least 2 people")])
def test_scenes_that_can_not_be_mixed_or_tested_are_refused(wrong, text):
    with pytest.raises(ValueError, match=text):
        drawn(**{"people": 8, "public_people": 5, "cameras": ("phone",), "seed": 1, **wrong})


def test_any_number_of_clients_is_dealt_out_over_the_forgeries():
    scene = drawn(people=2, public_people=1, cameras=("phone", "night"), seed=1, num_clients=6)
    assert scene.population.names == ("lowres/1", "lowres/2", "checker/1", "checker/2", "double/1", "smooth/1")
    assert scene.cameras == ("phone", "night", "phone", "night", "phone", "phone")


@pytest.mark.skipif(not FACES.exists(), reason="the faces data set is not there (set COTERIE_DATA)")
def test_photographed_scene_has_fair_pairs_only():
    pytest.importorskip("PIL", reason="reading pictures needs coterie[vision]")
    scene = photographed(str(FACES.parent), seed=0)
    assert scene.forgeries == ("faceapp",) * 4 + ("deepfacelab",) * 4
    with (FACES / "index.csv").open(newline="") as file:
        group = [row["group"] for row in csv.DictReader(file)]
    seen: set[int] = set(scene.population.public["public"].index.tolist())
    sources = {group[row] for row in seen}
    for parts in scene.population.parts:
        for part in (parts.train, parts.validation, parts.test):
            rows = set(part.index.tolist())
            assert rows and not rows & seen
            seen |= rows
            material = {group[row] for row in rows}  # a photo with its forgery, a clip with all its frames and fakes
            assert not material & sources
            sources |= material
    fakes = [sum(int(part.column("y").sum()) for part in (p.train, p.validation, p.test)) for p in scene.population.parts]
    assert sum(fakes[:4]) == 457 and sum(fakes[4:]) == 276  # of the data's own table


def test_the_walk_reports_what_its_runs_wrote(tmp_path, capsys):
    settings = Settings(quiet=True, backend="loop")
    values = {"rounds": 2, "people": 8, "public_people": 4, "pretrain_rounds": 1, "pretrain_epochs": 1, "personal_rounds": 1}
    session = Session.open("walk_fl_gap", values, settings, tmp_path / "run")
    session.perform(walk_fl_gap)
    facts = json.loads((tmp_path / "run" / "walk.json").read_text())
    assert set(facts["scores"]) == {"start", "FedAvg", "mean", "own", "tuned"}
    assert facts["open_groups"] == [3.0, 3.0]  # the policy acts on the losses of two rounds at the earliest
    net = detector()
    sizes = [sum(net.params[n].numel() for n in names) for names in net.groups.values()]
    statistics = [sum(net.buffers[n].numel() for n in names) for names in net.buffer_groups.values()]
    last_three = sum(sizes[-3:]) + sum(statistics[-3:])
    assert facts["upload_mb"]["fl_gap"] == pytest.approx(2 * 12 * (4 * last_three + 1 + 8) / 1e6)
    assert facts["upload_mb"]["fedavg"] == pytest.approx(2 * 12 * (4 * (sum(sizes) + sum(statistics)) + 8) / 1e6)
    own, average = (session.finished[name] for name in ("fl_gap", "fedavg"))
    for model, finish, round_index in (("FedAvg", average, 3), ("tuned", own, 4)):
        which = "global" if model == "FedAvg" else "personal"
        found = client_scores(finish.path, round_index, which)
        assert facts["scores"][model]["auroc"] == pytest.approx(np.mean([v["auroc"] for v in found.values()]))
        assert finish.summary["results"][which]["auroc"]["last"] == pytest.approx(facts["scores"][model]["auroc"])
    tuned, last = client_scores(own.path, 4, "personal"), client_scores(average.path, 3, "global")
    gains = [tuned[client]["auroc"] - last[client]["auroc"] for client in range(12)]
    assert facts["against_fedavg"]["auroc_gain"] == pytest.approx(sum(gains) / 12)
    assert facts["against_fedavg"]["clients_better"] == sum(gain > 0 for gain in gains)
    assert facts["against_fedavg"]["rounds_at_same_upload"] == 1  # 3 of 8 groups in 2 rounds are less than one model
    sooner = client_scores(average.path, 2, "global").values()
    assert facts["against_fedavg"]["fedavg_auroc_at_same_upload"] == pytest.approx(np.mean([v["auroc"] for v in sooner]))
    assert client_scores(own.path, 1, "global") == client_scores(average.path, 1, "global")  # one pre-trained model
    assert all(len(near) == 2 and name not in near for name, near in facts["neighbours"].items())


@pytest.mark.parametrize(("start_open", "text"), [(3, "(1 of its 2 rounds): not evaluated"), (8, ": 0% saved")])  # 8: a bitmap more
def test_the_walk_without_pretraining_and_with_rare_evaluation(start_open, text, tmp_path, capsys):
    values = {"rounds": 2, "clients": 2, "people": 4, "public_people": 1, "pretrain_rounds": 0, "personal_rounds": 0}
    settings = Settings(backend="loop", eval_every=5)
    session = Session.open("walk_fl_gap", {**values, "start_open": start_open}, settings, tmp_path / "run")
    session.perform(walk_fl_gap)
    out = capsys.readouterr().out
    assert text in out and "nan" not in out


def test_agreement_by_hand():
    scene = drawn(people=8, public_people=1, cameras=("phone",), seed=0)

    class Four(Walk):
        def neighbours(self):
            return {0: [1, 2], 1: [0, 3], 2: [0, 3], 3: [1, 2]}

    walk = Four(None, None, scene, detector(), 1, 1)
    # labels a a b b: 0->1 yes, 0->2 no, 1->0 yes, 1->3 no, 2->0 no, 2->3 yes, 3->1 no, 3->2 yes; one of three others agrees
    assert walk.agreement(("a", "a", "b", "b")) == {"found": 0.5, "at_random": pytest.approx(1 / 3)}
