"""`coterie privacy audit`: exit codes that a pipeline can stop on, numbers as JSON, a picture, and one sentence for bad input."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from commands import call, refused, succeed

AUDIT = ("privacy", "audit", "--seed", "0")


def test_a_sound_mechanism_ends_with_code_0_and_a_broken_one_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    out = succeed(capsys, *AUDIT, "--runs", "1000")
    assert "Verdict: consistent" in out
    assert "4.377" in out  # the claim at sigma 1 and delta 1e-5
    code, out, err = call(capsys, *AUDIT, "--runs", "1000", "--break", "noise-off")
    assert (code, err) == (1, "")
    assert "Verdict: VIOLATION" in out
    assert "Broken on purpose: noise-off" in out


def test_a_report_says_where_noise_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert "repeatable (seed 0), so it protects nobody" in succeed(capsys, *AUDIT, "--runs", "100")
    assert "Noise from the operating system." in succeed(capsys, "privacy", "audit", "--runs", "100")


def test_literal_isfa_violates_its_naive_claim(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, *AUDIT, "--mechanism", "isfa-literal", "--runs", "1000")
    assert code == 1
    assert "naive central view of 20 clients" in " ".join(out.split())


def test_numbers_and_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    numbers, picture = tmp_path / "audit.json", tmp_path / "audit.svg"
    keys = ("--kind", "one-run", "--noise", "2", "--canaries", "60", "--clients", "3", "--json", numbers, "--picture", picture)
    out = succeed(capsys, *AUDIT, *keys)
    assert "could be shown at most" in out  # the ceiling
    found = json.loads(numbers.read_text())
    assert found["verdict"] == "consistent"
    assert found["bounds"]["ceiling"] < 3.0  # 60 canaries show no more
    assert found["claim"]["mu"] == pytest.approx(2**0.5 / 2)
    assert found["scores"]["with"] + found["scores"]["without"] == 60
    assert found["audit_seed"] == 0
    texts = [text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert "claimed limit" in texts
    assert any(text and "consistent" in text for text in texts)


def test_infinite_numbers_are_null_in_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, *_ = call(capsys, *AUDIT, "--clients", "0", "--runs", "100", "--break", "seed-reused", "--json", tmp_path / "a.json")
    assert code == 1
    assert "Infinity" not in (tmp_path / "a.json").read_text()
    assert "NaN" not in (tmp_path / "a.json").read_text()


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    out = succeed(capsys, "privacy", "audit", "--help")
    assert "VIOLATION" in out and "code 1" in out and "--break" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--noise", "0"), "noise must lie in [0.001, 1000], found 0"),
        (("--delta", "1"), "delta must lie strictly between 0 and 1, found 1"),
        (("--break", "noise"), "--break must be one of"),
        (("--kind", "canary", "--runs", "5"), "knows no runs"),
        (("--rounds", "5"), "knows no rounds"),
        (("--seed", "-1"), "seed"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in refused(capsys, "privacy", "audit", *words)
