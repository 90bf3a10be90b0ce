"""A run that is killed goes on to the same numbers, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import CLASSES, go, net, numbers, population

from coterie import methods
from coterie.engine.checkpoint import CheckpointStore, Progress
from coterie.engine.loop import Loop
from coterie.engine.run import Finish, run
from coterie.engine.settings import Settings
from coterie.metrics.classification import Classification
from coterie.privacy.guards import Guards
from coterie.states import ClientTable, ServerState

sys.path.insert(0, str(Path(__file__).parent))
from resume_worker import plan_of

TESTS = Path(__file__).parent.parent


def straight(name: str, out: Path, rounds: int = 6, resume: bool = False) -> Finish:
    return run(
        plan_of(name, rounds), population(), net=net(), metric=Classification(CLASSES), out=out,
        settings=Settings(backend="loop", quiet=True), resume=resume,
    )  # fmt: skip


def logs(folder: Path) -> tuple[str, str, list[dict[str, object]]]:
    """Every log, without the seconds."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    return (folder / "clients.csv").read_text(), (folder / "wire.jsonl").read_text(), kept


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fable", "fl_gap"])
def test_killed_and_resumed_equals_never_stopped(name: str, tmp_path: Path) -> None:
    whole = straight(name, tmp_path / "whole")
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, str(TESTS / "engine" / "resume_worker.py"), name, "6", str(tmp_path / "shot")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 3:
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "shot" / "summary.json").exists()
    resumed = straight(name, tmp_path / "shot", resume=True)
    assert numbers(resumed) == numbers(whole)
    assert logs(tmp_path / "shot") == logs(tmp_path / "whole")


def test_stopped_between_writing_logs_and_checkpoint(tmp_path: Path) -> None:
    """Log lines beyond the checkpoint are cut back."""
    whole = straight("fedavg", tmp_path / "whole")
    straight("fedavg", tmp_path / "run", rounds=4)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "event": "half a li')
    assert numbers(straight("fedavg", tmp_path / "run", resume=True)) == numbers(whole)
    assert logs(tmp_path / "run") == logs(tmp_path / "whole")


@pytest.mark.parametrize("victim", ["manifest-4.json", "state-4.safetensors", "clients/*-4.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_checkpoint_is_detected_and_the_previous_one_used(victim: str, damage: str, tmp_path: Path) -> None:
    whole = straight("scaffold", tmp_path / "whole")
    straight("scaffold", tmp_path / "run", rounds=4)
    path = sorted((tmp_path / "run" / "checkpoint").glob(victim))[0]
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        middle = len(data) // 2
        path.write_bytes(data[:middle] if damage == "cut" else data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    resumed = straight("scaffold", tmp_path / "run", resume=True)
    assert numbers(resumed) == numbers(whole)
    warnings = [line for line in logs(tmp_path / "run")[2] if line.get("event") == "warning"]
    assert (damage == "gone" and "manifest" in victim) or "round 4 is damaged" in str(warnings)


def test_no_whole_checkpoint_left_is_said(tmp_path: Path) -> None:
    straight("fedavg", tmp_path / "run", rounds=3)
    for path in (tmp_path / "run" / "checkpoint").glob("manifest-*.json"):
        path.write_text("{")
    with pytest.raises(ValueError, match="No whole checkpoint is left"):
        straight("fedavg", tmp_path / "run", resume=True)


def test_checkpoint_files_belong_to_their_owner_only(tmp_path: Path) -> None:
    straight("fable", tmp_path / "run", rounds=2)
    files = [path for path in (tmp_path / "run" / "checkpoint").rglob("*") if path.is_file()]
    assert files and all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_only_two_checkpoints_are_kept(tmp_path: Path) -> None:
    straight("scaffold", tmp_path / "run")
    manifests = sorted(path.name for path in (tmp_path / "run" / "checkpoint").glob("manifest-*"))
    assert manifests == ["manifest-5.json", "manifest-6.json"]
    versions = [path.stem.split("-") for path in (tmp_path / "run" / "checkpoint" / "clients").glob("*")]
    assert all(int(version) <= 6 for _, version in versions)
    assert len(versions) <= 8  # at most two versions of each of four clients


def test_what_a_damaged_checkpoint_published_is_forgotten(tmp_path: Path) -> None:
    """The repeated round may publish something else under the same name (FedXDS: noise of the operating system)."""
    old, new = {"x": torch.zeros(3)}, {"x": torch.ones(3)}
    store = CheckpointStore(tmp_path / "checkpoint", None)
    store.save(ServerState({}, store.server), Progress(1))
    store.clients.commit({0: {"own": {"w": torch.zeros(2)}}}, 2)
    store.save(ServerState({}, store.server).publishing("set", old), Progress(2))
    store.wait()
    (tmp_path / "checkpoint" / "clients" / "0-2.safetensors").write_bytes(b"half")
    for content in (None, new):
        store = CheckpointStore(tmp_path / "checkpoint", None)
        state, progress, _ = store.load()
        if content is None:
            store.save(state.publishing("set", new), Progress(2))
            store.wait()
        else:
            assert progress.round == 2 and torch.equal(state.public["set"].tensors["x"], new["x"])


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"plan": methods.scaffold(rounds=3)}, r"another method in phase 'train': FedAvg, now Scaffold\(FedAvg\)\. Resume it with"),
        ({"settings": Settings(backend="loop", seed=7)}, r"another seed: 0, now 7"),
        ({"net": net(hidden=9)}, r"another net: .*53.*, now .*93"),
        ({"population": population(sizes=(20, 13, 9, 25))}, r"another population: something else"),
        ({"guards": Guards(clip=1.0)}, r"another guard: None, now"),
    ],
)
def test_a_run_is_resumed_as_it_began(other: dict[str, Any], text: str, tmp_path: Path) -> None:
    """Half of one run and half of another would be a number of neither."""
    began: dict[str, Any] = {
        "plan": methods.fedavg(rounds=2), "population": population(), "net": net(), "metric": Classification(CLASSES),
        "out": tmp_path / "run", "settings": Settings(backend="loop"),
    }  # fmt: skip
    run(**began)
    with pytest.raises(ValueError, match=text):
        run(**{**began, "plan": methods.fedavg(rounds=3), **other}, resume=True)
    assert run(**{**began, "plan": methods.fedavg(rounds=3)}, resume=True).summary["rounds"] == 3


@pytest.mark.parametrize("damage", [b"", b"{", None])
def test_a_damaged_description_stops_nobody(damage: bytes | None, tmp_path: Path) -> None:
    straight("fedavg", tmp_path / "run", rounds=2)
    (tmp_path / "run" / "run.json").unlink()
    if damage is not None:
        (tmp_path / "run" / "run.json").write_bytes(damage)
    assert straight("fedavg", tmp_path / "run", rounds=3, resume=True).summary["rounds"] == 3
    assert json.loads((tmp_path / "run" / "run.json").read_text())["rounds"] == 3


def test_a_damaged_line_of_a_log_is_named(tmp_path: Path) -> None:
    straight("fedavg", tmp_path / "run", rounds=2)
    log = tmp_path / "run" / "wire.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"bytes"', b'!bytes"', 1))
    with pytest.raises(ValueError, match=r"Line 1 of '.*wire\.jsonl' is damaged: .*Mend it, or start a new run"):
        straight("fedavg", tmp_path / "run", rounds=3, resume=True)


def test_a_checkpoint_is_written_while_the_next_round_trains_and_before_it_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk: the next round's clients are computed meanwhile, its rows wait, and a stop waits too."""
    events: list[str] = []
    write, commit_rows, train = CheckpointStore._write, ClientTable.commit, Loop.train

    def slowly(self: CheckpointStore, manifest: dict[str, Any], *rest: Any) -> None:
        events.append(f"begin {manifest['round']}")
        time.sleep(0.2)
        write(self, manifest, *rest)
        events.append(f"end {manifest['round']}")

    monkeypatch.setattr(CheckpointStore, "_write", slowly)
    monkeypatch.setattr(ClientTable, "commit", lambda self, *given: (events.append("commit"), commit_rows(self, *given))[1])
    monkeypatch.setattr(Loop, "train", lambda self, *given: (events.append("train"), train(self, *given))[1])
    finish = go(methods.local(rounds=2), tmp_path / "run")
    assert events[: events.index("end 1")] == ["train", "commit", "begin 1", "train"]
    assert events[events.index("end 1") :] == ["end 1", "commit", "begin 2", "end 2"] and finish.evaluations


def test_a_disk_that_fails_ends_the_run_with_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(CheckpointStore, "_write", full)
    with pytest.raises(OSError, match="No space left on device"):
        go(methods.local(rounds=3), tmp_path / "run")
