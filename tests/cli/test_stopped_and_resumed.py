"""Ctrl-C and SIGTERM leave a run that goes on to the same numbers, from where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from commands import call, numbers, refused, succeed

from coterie.cli import main
from coterie.report.progress import Progress

WAITING = """
import sys, time
from coterie.cli import main
from coterie.report.progress import Progress

told = Progress.round

def then(self, index, *rest):
    told(self, index, *rest)
    if (self._label, index) == ("fedavg", 2):
        time.sleep(60)  # without it a fast machine may be through before it is stopped

Progress.round = then
sys.exit(main())
"""
RECIPE = ("quickstart", "--clients", "3", "--rounds", "4", "--epochs", "1", "--backend", "loop")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The numbers of a run that was never stopped."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main(["run", *RECIPE, "--quiet", "--out", str(out)]) == 0
    return numbers(out)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # a command that does not listen must not end the tests
    yield
    signal.signal(signal.SIGTERM, before)


def stop_at(monkeypatch: pytest.MonkeyPatch, method: str, round: int, how: str) -> None:
    """Something happens in this process after that round of that method."""
    told = Progress.round

    def then(self: Progress, index: int, *rest: Any) -> None:
        told(self, index, *rest)
        if (self._label, index) == (method, round):
            if how == "disk full":
                raise OSError(28, "No space left on device")
            if how == "bug":
                raise TypeError("a mistake of ours")
            os.kill(os.getpid(), getattr(signal, how))

    monkeypatch.setattr(Progress, "round", then)


def test_ctrl_c_in_a_true_process(whole: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    out = Path("my run")  # a space: what is printed must work when it is copied
    command = [sys.executable, "-c", WAITING, "run", *RECIPE, "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if "fedavg  round 2/4" in line:
                process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    assert "Stopped. Nothing is lost; go on with: coterie run --resume 'my run'\n" in printed
    assert "Traceback" not in printed and not (out / "fable").exists() and not (out / "fedavg" / "summary.json").exists()
    first = {path: path.stat().st_mtime_ns for path in (out / "local" / "checkpoint").iterdir()}
    told = succeed(capsys, "run", "--resume", out)
    assert "local: finished already, 4 rounds" in told and "local  round" not in told
    assert "fedavg  round 1/4" not in told and "fedavg  round 4/4" in told and "fable  round 1/4" in told
    assert {path: path.stat().st_mtime_ns for path in (out / "local" / "checkpoint").iterdir()} == first
    assert numbers(out) == whole


def test_sigterm_stops_like_ctrl_c(whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        stop_at(patch, "fable", 3, "SIGTERM")
        code, printed, err = call(capsys, "run", *RECIPE, "--out", "shot")
    assert code == 130 and not err and "go on with: coterie run --resume shot\n" in printed
    assert signal.getsignal(signal.SIGTERM) is before
    succeed(capsys, "run", "--resume", "shot", "--quiet")  # a relative folder
    assert numbers(Path("shot")) == whole


def test_a_full_disk_says_how_to_go_on(whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, "local", 1, "disk full")
        line = refused(capsys, "run", *RECIPE, "--quiet", "--out", "full")
    assert line == "[Errno 28] No space left on device. Mend the cause and go on with: coterie run --resume full"
    succeed(capsys, "run", "--resume", "full", "--quiet")
    assert numbers(Path("full")) == whole


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stop_at(monkeypatch, "local", 1, "bug")
    with pytest.raises(TypeError, match="a mistake of ours"):
        main(["run", *RECIPE, "--quiet", "--out", "bug"])
    assert "What ran is saved; when it is mended go on with: coterie run --resume bug" in capsys.readouterr().err


def test_a_run_that_can_not_go_on_keeps_its_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    """A rate at which weights overflow: every client is left out, and nothing that ran is thrown away."""
    line = refused(capsys, "run", *RECIPE, "--lr", "1e30", "--quiet", "--out", "wild")
    assert "of 3 clients back, fewer than 1. Tried 3 times: client 0 sent" in line
    assert line.endswith("Mend the cause and go on with: coterie run --resume wild")
    assert (Path("wild") / "local" / "summary.json").exists()


def test_a_finished_run_says_so_and_gives_the_same_numbers(whole: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    succeed(capsys, "run", *RECIPE, "--quiet", "--out", "done")
    told = succeed(capsys, "run", "--resume", "done", "--workers", "2", "--no-quiet", "--lr", "0.3")
    assert [f"{name}: finished already, 4 rounds" in told for name in ("local", "fedavg", "fable")] == [True] * 3
    assert "Accuracy in %" in told and "Report: done/report.html" in told
    assert numbers(Path("done")) == whole


def test_more_rounds_are_remembered_when_they_are_stopped_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], whole: dict[str, Any]
) -> None:
    succeed(capsys, "run", *RECIPE[:4], "2", *RECIPE[5:], "--quiet", "--out", "grown")
    with monkeypatch.context() as patch:
        stop_at(patch, "local", 3, "SIGTERM")
        assert call(capsys, "run", "--resume", "grown", "--rounds", "4")[0] == 130
    assert not (Path("grown") / "local" / "summary.json").exists()  # the old one told of two rounds
    assert json.loads(Path("grown/recipe.json").read_text())["values"]["rounds"] == 4
    succeed(capsys, "run", "--resume", "grown")
    assert numbers(Path("grown")) == whole


def test_rounds_of_a_phase_that_is_over_can_not_grow(tmp_path: Path) -> None:
    """Round 3 was fine-tuning; with one round more of training it would have to be training."""
    from toy import go

    from coterie.method import Phase
    from coterie.methods.fedavg import FedAvg

    def plan(rounds: int) -> tuple[Phase, ...]:
        return Phase("train", rounds, FedAvg()), Phase("tune", 1, FedAvg())

    go(plan(2), tmp_path / "run")
    from toy import CLASSES, net, population

    from coterie.engine.run import run
    from coterie.engine.settings import Settings
    from coterie.metrics.classification import Classification

    def again(rounds: int) -> None:
        settings = Settings(backend="loop", quiet=True)
        run(plan(rounds), population(), net=net(), metric=Classification(CLASSES), out=tmp_path / "run", settings=settings, resume=True)

    again(2)
    with pytest.raises(ValueError, match=r"Round 3 was 'tune' when it ran; in this plan it is 'train'\. Resume with the rounds"):
        again(3)
    with pytest.raises(ValueError, match=r"Round 2 was 'train' when it ran; in this plan it is 'tune'"):
        again(1)
