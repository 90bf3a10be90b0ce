"""`coterie privacy plan` and `account`: numbers that hold, JSON that is only JSON, and one sentence for every mistake."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from commands import refused, succeed
from toy import CLASSES, net, population

from coterie import methods
from coterie.engine.run import run
from coterie.engine.settings import Settings
from coterie.metrics.classification import Classification
from coterie.privacy.gaussian import gaussian_eps
from coterie.privacy.guards import Guards
from coterie.privacy.metric_privacy import Sharing


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def numbers(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What stands on the terminal, which must be JSON and nothing else."""
    found: dict[str, Any] = json.loads(succeed(capsys, "privacy", *words, "--json", "-"))
    return found


def test_the_plan_and_the_account_agree(capsys: pytest.CaptureFixture[str]) -> None:
    plan = numbers(capsys, "plan", "--epsilon", "2", "--rounds", "20", "--rate", "0.1", "--clients", "300", "--accountant", "rdp")
    assert plan["views"]["amplified"]["epsilon"] == pytest.approx(2.0, rel=1e-3) and plan["views"]["amplified"]["epsilon"] <= 2.0
    same = numbers(capsys, "account", "--noise", str(plan["noise"]), "--rate", "0.1", "--rounds", "20", "--clients", "300", "--accountant", "rdp")
    assert same["views"] == plan["views"]
    assert {view["unit"] for view in plan["views"].values()} == {"one client's whole data set"}
    own = [row for row in plan["trade"] if row["noise"] == plan["noise"] and row["rounds"] == 20]
    assert own[0]["epsilon"] == plan["views"]["amplified"]["epsilon"]


def test_the_values_of_the_specification_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["account", "--noise", "0.3", "--rate", "0.05", "--rounds", "1000", "--min-cohort", "10", "--delta", "1e-5"]
    assert numbers(capsys, *words, "--accountant", "rdp_integer")["views"]["amplified"]["epsilon"] == pytest.approx(13.67, abs=5e-3)
    words = ["account", "--noise", "0.3", "--rate", "1", "--rounds", "100", "--min-cohort", "10", "--delta", "1e-5"]
    views = numbers(capsys, *words)["views"]
    assert views["local"]["epsilon"] == pytest.approx(2505.6, abs=0.05) and views["central"]["epsilon"] == pytest.approx(99.7, abs=0.05)
    assert "99.67" in succeed(capsys, "privacy", *words)


def test_the_picture_and_a_file_of_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--epsilon", "4", "--rounds", "30", "--rate", "1", "--view", "central"]
    page = succeed(capsys, "privacy", *words, "--picture", "trade.svg", "--json", "plan.json")
    noise = json.loads(Path("plan.json").read_text())["noise"]
    assert f"Noise multiplier {noise:.5g} keeps 30 rounds within epsilon 4" in page and "Picture: trade.svg" in page
    assert gaussian_eps(math.sqrt(30) / noise) == pytest.approx(4.0, rel=1e-4)
    svg = ElementTree.parse("trade.svg").getroot()
    text = Path("trade.svg").read_text()
    assert svg.tag.endswith("}svg") and "var(" not in text and f"noise {noise:.3g}" in text and "budget" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("plan --epsilon 0 --rounds 10 --rate 0.1", "epsilon must be a finite number above 0, found 0"),
        ("plan --epsilon 8 --delta 1 --rounds 10 --rate 0.1", "delta must lie strictly between 0 and 1, found 1"),
        ("plan --epsilon 8 --delta 0.01 --rounds 10 --rate 0.1 --clients 300", "--delta must be smaller than 1 / clients = 0.0033, found 0.01"),
        ("plan --epsilon 8 --rounds 10", "found no --rate"),
        ("plan --epsilon 8 --rounds 0 --rate 0.1", "rounds must be at least 1, found 0"),
        ("plan --epsilon 8 --rounds 10 --rate 1.5", "rate must be above 0 and at most 1, found 1.5"),
        ("plan runs/mine --epsilon 8 --rounds 10 --rate 1", "Expected an option like --key value, found 'runs/mine'"),
        ("plan --epsilon 8 --rounds 9 --rate 1 --picture no/p.svg", "Can't write the picture to 'no/p.svg'"),
        ("account --noise 1 --rate 0.1", "found only --noise"),
        ("account", "found nothing"),
        ("account --noise -1 --rate 0.1 --rounds 10", "noise must be a finite number of at least 0, found -1"),
        ("account nowhere", "'nowhere' does not exist or is no folder"),
        ("account nowhere --noise 1", "A run knows its own --noise"),
        ("account --noise 1 --rate 0.1 --rounds 10 --accountant gdp", "--accountant must be one of pld, rdp, rdp_integer, found 'gdp'"),
        ("plan --epsilon 8 --rounds 10 --rate 0.1 --sampling fixed --accountant pld", "pld needs Poisson cohorts; for cohorts of fixed size"),
        ("plan --epsilon 8 --rounds 10 --rate 0.1 --clients 30 --min-cohort 40", "min_cohort is 40, but there are 30 clients"),
        ("spend", "Unknown command 'privacy spend'"),
    ],
)
def test_one_sentence_for_every_mistake(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in refused(capsys, "privacy", *words.split())


def noisy_run(out: Path, **guards: Any) -> dict[str, Any]:
    return run(
        methods.fedavg(rounds=2), population(), net=net(), metric=Classification(CLASSES), out=out,
        guards=Guards(**guards), settings=Settings(backend="loop", quiet=True),
    ).summary  # fmt: skip


def test_the_account_of_a_run_is_what_its_summary_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = noisy_run(tmp_path / "run", clip=1.0, noise=2.0, n_max=30)
    account = numbers(capsys, "account", str(tmp_path / "run"))["runs"][0]
    assert account["views"] == summary["privacy"]["views"] and account["releases"] == 2 and account["why"] is None
    page = succeed(capsys, "privacy", "account", str(tmp_path / "run"))
    assert "2 attempts of rounds left clients" in page and f"{summary['privacy']['epsilon']:.3f}"[:5] in page
    other = numbers(capsys, "account", str(tmp_path / "run"), "--delta", "1e-7")["runs"][0]
    assert other["views"]["local"]["epsilon"] == pytest.approx(gaussian_eps(math.sqrt(2), 1e-7), rel=1e-9)


def test_a_run_without_protection_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, guards, words in [
        ("open", {}, "nothing bounds what they reveal"),
        ("clipped", {"clip": 1.0}, "added no noise: no epsilon"),
        ("audited", {"clip": 1.0, "noise": 1.0, "n_max": 30, "audit_seed": 1}, "protects nobody"),
    ]:
        noisy_run(tmp_path / name, **guards)
        assert words in " ".join(succeed(capsys, "privacy", "account", str(tmp_path / name)).split())


def test_examples_that_were_shared_are_told_with_their_own_guarantee(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noisy_run(tmp_path / "session" / "fedxds")
    promise = Sharing(clip=10.0, sigma=0.15, dense_noise=True, fixed_mask=True, label_eps=None).guarantee()
    (tmp_path / "session" / "fedxds.json").write_text(json.dumps({"fedxds": {"shared_images": 40, "guarantee": promise}}))
    page = succeed(capsys, "privacy", "account", str(tmp_path / "session"))
    assert "40 images were shared" in page and "9,456.56" in page and "49.88 at 1" in page  # worst case, and the curve at distance 1
    account = numbers(capsys, "account", str(tmp_path / "session" / "fedxds"))["runs"][0]
    assert account["examples"]["guarantee"]["b_image_eps"] == pytest.approx(9456.56, abs=0.01)


def test_a_plan_whose_rounds_would_be_void_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--epsilon", "8", "--rounds", "5", "--rate", "0.1", "--clients", "100", "--min-cohort", "12", "--split", "share", "--accountant", "rdp"]
    page = succeed(capsys, "privacy", *words)
    assert "Most rounds will be void: --min-cohort is 12, and 10 clients take part on average." in page and "(rdp)" in page
    assert "void" not in succeed(capsys, "privacy", *["8" if word == "12" else word for word in words])
