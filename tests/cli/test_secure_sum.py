"""`--secure-sum` from the command line: the plain run's numbers, what is told, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))
from commands import refused, succeed

RUN = ("run", "compare_digits", "--clients", "4", "--beta", "1", "--rounds", "2", "--epochs", "1", "--backend", "loop")


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def apart(one: Path, other: Path) -> float:
    """The largest difference between what the servers hold after the last round."""
    name = f"state-{summary(one)['rounds']}.safetensors"
    states = [load_file(folder / "checkpoint" / name) for folder in (one, other)]
    assert states[0].keys() == states[1].keys()
    return max(float((value - states[1][name]).abs().max()) for name, value in states[0].items() if value.numel())


def test_fedavg_and_fable_under_a_secure_sum_are_the_plain_runs_but_for_rounding(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, words in (("plain", ()), ("secure", ("--secure-sum",))):
        succeed(capsys, *RUN, "--quiet", "--methods", "fedavg,fable", *words, "--out", tmp_path / name)
    for method in ("fedavg", "fable"):
        plain, secure = tmp_path / "plain" / method, tmp_path / "secure" / method
        assert 0 < apart(plain, secure) < 2e-6  # 4 clients, range 8: a sum is off by 2^-23 at most, float32 by as much
        told = summary(secure)["secure_sum"]
        assert (told["threshold"], told["rounds"], told["range"], told["bits"]) == (3, 2, 8.0, 32)
        keys = 4 * (64 + 3 * 100 + 4 * 40)  # spec/wire.md 2.2: SA_up, each round
        assert summary(secure)["bytes"]["up"] == summary(plain)["bytes"]["up"] + 2 * (keys - 4 * 4)  # a weight takes 4 bytes, not 8
        assert "the server learned the sum of all updates" in (secure / "report.html").read_text()
        assert "secure keys" in (secure / "report.html").read_text()
    assert "secure_sum" not in summary(tmp_path / "plain" / "fedavg")


def test_isfas_weights_under_a_secure_sum_are_the_plain_runs_but_for_rounding(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small = ("--rounds", "1", "--clients", "3", "--public-speakers", "2", "--autoencoder-steps", "5", "--backbone-steps", "5")
    for name, words in (("plain", ()), ("secure", ("--secure-sum",))):
        succeed(capsys, "run", "walk_privfedtalk", *small, "--sampler-steps", "1", "--quiet", *words, "--out", tmp_path / name)
    assert 0 < apart(tmp_path / "plain", tmp_path / "secure") < 5e-6  # weights of 1/3 to 1: (e + 8 e / 8) / (A - e), and float32
    assert summary(tmp_path / "secure")["secure_sum"]["rounds"] == 1  # the server's own rounds have nothing to sum


def test_a_secure_run_goes_on_where_it_was(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--methods", "fedavg", "--secure-sum", "--secure-bits", "64", "--precision", "fp64", "--quiet")
    succeed(capsys, *RUN, *words, "--out", tmp_path / "whole")
    succeed(capsys, *RUN[:6], "--rounds", "1", *RUN[8:], *words, "--out", tmp_path / "parts")
    succeed(capsys, "run", "--resume", tmp_path / "parts", "--rounds", "2")
    assert apart(tmp_path / "whole" / "fedavg", tmp_path / "parts" / "fedavg") < 1e-13


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--methods", "fl_gap", "--secure-sum"), "FlGap needs every client's own 'shared', but a secure sum reveals the sum only. Leave out"),
        (("--methods", "fedavg", "--secure-sum", "--cohort", "2"), "A secure sum needs at least 3 clients in a round, found 2. Use a larger cohort"),
        (("--methods", "fedavg", "--secure-sum", "--secure-threshold", "5"), "is 5, but shares are held by 4 clients only. Use 4 or less"),
        (("--methods", "fedavg", "--secure-sum", "--secure-bits", "16"), "must be one of 32, 64, found '16'"),
        (("--methods", "fedavg", "--secure-sum", "--secure-range", "-1"), "range of a secure sum must be greater than 0, found -1"),
        (("--methods", "fedavg", "--secure-sum", "--secure-neighbours", "3"), "must be an even number of at least 4, found 3"),
        (("--methods", "fedavg", "--secure-sum", "--secure-dropout", "1"), "dropout must be at least 0 and below 1, found 1"),
        (("--methods", "fedavg", "--secure-threshold", "4"), "--secure-threshold is for a secure sum, which is not asked for. Add --secure-sum"),
    ],
)
def test_what_can_not_be_summed_securely_is_refused_in_one_line(
    words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert text in refused(capsys, *RUN, *words, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_keys_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(succeed(capsys, "run", "compare_digits", "--help").split())
    assert "--secure-sum" in text and "the server learns the sum of all updates only" in text


def test_without_cryptography_one_line_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.privacy.secure_sum import keys

    keys.library.cache_clear()
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    text = refused(capsys, *RUN, "--methods", "fedavg", "--secure-sum", "--out", tmp_path / "run")
    keys.library.cache_clear()
    assert text == "A secure sum needs cryptography. Install it with: pip install 'coterie[privacy]'"
    assert not (tmp_path / "run").exists()
