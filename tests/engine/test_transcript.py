"""Recorded Messages: what crossed, byte for byte, for the server's eyes only; nothing single under a secure sum."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import torch
import toy
from cases import Rota

from coterie import methods
from coterie.attacks.transcript import Transcript
from coterie.engine.run import run
from coterie.engine.settings import Settings
from coterie.engine.transcript import recorded_rounds
from coterie.method import SGD, Poisson
from coterie.methods.fedavg import Training
from coterie.metrics.classification import Classification
from coterie.privacy.guards import Guards
from coterie.privacy.secure_sum import SecureSum

STEP = Training(optim=SGD(lr=0.1), epochs=None, steps=1, batch_size=100)  # one step of gradient descent on everything


def test_one_recorded_step_is_the_gradient_by_hand(tmp_path: Path) -> None:
    """Softmax regression behind a ReLU layer: what arrived from client 2 is -lr times its gradient, what was sent is the first model."""
    toy.go(methods.fedavg(rounds=2, training=STEP), tmp_path, precision="fp64", record_messages=1)
    transcript = Transcript.load(tmp_path)
    assert transcript.rounds == (1,)
    pairs = {client: (down, up) for client, down, up in transcript.pairs(1)}
    assert list(pairs) == [0, 1, 2, 3]
    down, up = pairs[2]
    first = {name: value.double().requires_grad_() for name, value in toy.net().params.items()}
    columns = toy.population().parts[2].train.all_rows()
    w1, b1, w2, b2 = first.values()
    logits = torch.relu(columns["x"].double() @ w1.T + b1) @ w2.T + b2
    loss = (logits.logsumexp(1) - logits.gather(1, columns["y"][:, None])[:, 0]).mean()
    for name, slope in zip(first, torch.autograd.grad(loss, list(first.values())), strict=True):
        torch.testing.assert_close(down["shared"][name], first[name].detach(), rtol=0, atol=0)
        torch.testing.assert_close(up["shared"][name], -0.1 * slope, rtol=0, atol=1e-12)
    assert float(up.weight or 0) == 9


def test_only_the_owner_may_read_and_equal_downloads_are_one_file(tmp_path: Path) -> None:
    toy.go(methods.fedavg(rounds=1, training=STEP), tmp_path, record_messages=1)
    files = list((tmp_path / "transcript").iterdir())
    assert len(files) == 1 + 1 + 4  # the index, one download, four uploads
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_recorded_bytes_are_what_the_ledger_counts(tmp_path: Path) -> None:
    cohort = Rota(((0, 1), (1, 2, 3), (0, 3)))
    toy.go(methods.scaffold(rounds=3, training=STEP, cohort=cohort), tmp_path, record_messages="1,3")
    transcript = Transcript.load(tmp_path)
    assert transcript.rounds == (1, 3)
    lines = [json.loads(line) for line in (tmp_path / "wire.jsonl").read_text().splitlines()]
    for round in (1, 3):
        counted = {way: sum(line["bytes"] for line in lines if (line["round"], line["direction"]) == (round, way)) for way in ("up", "down")}
        pairs = list(transcript.pairs(round))
        assert sum(sum(down.bytes_by_slot().values()) for _, down, _ in pairs) == counted["down"]
        assert sum(sum(up.bytes_by_slot().values()) for _, _, up in pairs) == counted["up"]


def test_recording_changes_no_number_and_resume_forgets_lost_rounds(tmp_path: Path) -> None:
    plain = toy.go(methods.fable(rounds=3, training=STEP, anchors=4), tmp_path / "plain")
    recorded = toy.go(methods.fable(rounds=3, training=STEP, anchors=4), tmp_path / "recorded", record_messages=3)
    assert toy.numbers(plain) == toy.numbers(recorded)
    whole = (tmp_path / "recorded" / "transcript" / "index.json").read_text()

    def go(rounds: int, resume: bool) -> None:
        run(
            methods.fable(rounds=rounds, training=STEP, anchors=4), toy.population(), net=toy.net(), metric=Classification(toy.CLASSES),
            out=tmp_path / "twice", settings=Settings(backend="loop", quiet=True, record_messages=3), resume=resume,
        )  # fmt: skip

    go(2, resume=False)
    index = tmp_path / "twice" / "transcript" / "index.json"
    content = json.loads(index.read_text())
    content["messages"].append({**content["messages"][-1], "round": 3})  # of a third round that was lost with its process
    index.write_text(json.dumps(content))
    go(3, resume=True)
    assert index.read_text() == whole


def test_what_is_guarded_is_recorded_as_it_left_and_a_secure_sum_shows_the_sum(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")

    def go(out: Path, guards: Guards) -> Transcript:
        run(
            methods.fedavg(rounds=1, training=STEP), toy.population(), net=toy.net(), metric=Classification(toy.CLASSES), out=out,
            guards=guards, settings=Settings(backend="loop", quiet=True, record_messages=1),
        )  # fmt: skip
        return Transcript.load(out)

    clipped = go(tmp_path / "clip", Guards(clip=0.01))
    for _, _, up in clipped.pairs(1):
        assert float(torch.cat([value.flatten() for value in up["shared"].values()]).norm()) <= 0.01 * (1 + 1e-6)
    summed = go(tmp_path / "sum", Guards(clip=0.01, n_max=1, secure=SecureSum()))
    assert summed.summed(1) and not clipped.summed(1)
    assert list(summed.pairs(1)) == [] and [c.client for c in summed.crossings if c.way == "up"] == [None]


def test_nothing_is_recorded_unless_asked_for(tmp_path: Path) -> None:
    toy.go(methods.fedavg(rounds=1, training=STEP, cohort=Poisson(0.5)), tmp_path)
    assert not (tmp_path / "transcript").exists()
    with pytest.raises(ValueError, match=r"holds no recorded Messages.*--record-messages 1"):
        Transcript.load(tmp_path)


@pytest.mark.parametrize(
    ("wanted", "found"), [(0, (0, set())), ("3", (3, set())), ("1,50", (0, {1, 50})), ("50,", (0, {50}))]
)
def test_which_rounds(wanted: int | str, found: tuple[int, set[int]]) -> None:
    assert recorded_rounds(wanted) == found


@pytest.mark.parametrize("wanted", ["all", "-1", "", "1.5", "0,2"])
def test_which_rounds_is_explained(wanted: str) -> None:
    with pytest.raises(ValueError, match=r"record_messages.*found"):
        Settings(record_messages=wanted)


def test_damage_is_named(tmp_path: Path) -> None:
    toy.go(methods.fedavg(rounds=1, training=STEP), tmp_path, record_messages=1)
    transcript = Transcript.load(tmp_path)
    with pytest.raises(ValueError, match="Round 2 was not recorded, only 1"):
        list(transcript.pairs(2))
    (tmp_path / "transcript" / transcript.crossings[0].file).write_bytes(b"changed")
    with pytest.raises(ValueError, match="does not match its checksum"):
        list(transcript.pairs(1))
    (tmp_path / "transcript" / "index.json").write_text("{")
    with pytest.raises(ValueError, match=r"index.json' is damaged"):
        Transcript.load(tmp_path)
