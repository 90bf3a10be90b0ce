"""The keys --reduce, --attack, --attackers and --attack-from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie.attacks.poison import SignFlip
from coterie.cli import main
from coterie.method import Everyone, Fixed, Poisson
from coterie.recipes.poisoned import Poisoning
from coterie.reduce.coordinates import TrimmedMean
from coterie.reduce.krum import MultiKrum
from coterie.reduce.mean import Mean


def test_reductions_are_made_for_the_share_of_attackers_in_a_cohort() -> None:
    assert Poisoning().options(Everyone(), 20) == {"reduce": Mean(), "attack": None}
    assert Poisoning(reduce="multikrum", attackers=0.2).options(Everyone(), 20)["reduce"] == MultiKrum(4)
    assert Poisoning(reduce="multikrum", attackers=0.2).options(Fixed(10), 20)["reduce"] == MultiKrum(2)
    assert Poisoning(reduce="multikrum", attackers=0.2).options(Poisson(0.5), 40)["reduce"] == MultiKrum(4)
    assert Poisoning(reduce="trimmed", attackers=0.3).options(Everyone(), 10)["reduce"] == TrimmedMean(0.3)
    attack = Poisoning(attack="signflip10", attackers=0.3, attack_from=4).options(Everyone(), 10)["attack"]
    assert attack == SignFlip(scale=10.0, share=0.3, from_round=4)


def test_a_comparison_is_attacked_and_reduced_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "run compare_digits --methods fedavg,scaffold --rounds 1 --epochs 1 --clients 5 --beta 100 --quiet --backend loop"
    poison = "--reduce median --attack signflip10 --attackers 0.4 --attack-from 1"
    assert main([*words.split(), *poison.split(), "--out", str(tmp_path / "run")]) == 0
    for method in ("fedavg", "scaffold"):
        record = json.loads((tmp_path / "run" / method / "run.json").read_text())
        assert record["reduce"]["is"] == "CoordinateMedian" and record["attack"]["scale"] == 10 and len(record["attack"]["attackers"]) == 2
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--methods fedavg --attack signflop", "Unknown attack 'signflop'. Use one of: signflip, signflip10"),
        ("--methods fedavg --reduce mid", "Unknown reduction 'mid'. Use one of: mean, median"),
        ("--methods fedavg --reduce krum --attackers 0.6", "needs at least 15 clients in a round, but a cohort of phase 'train' has 10"),
        ("--methods local --reduce median", "no update is averaged by Local. Use Mean() (--reduce mean)"),
        ("--methods fedavg --attack signflip --attackers 1", "The share of attackers must lie between 0 and 1, found 1.0"),
        ("--methods fedavg --reduce median --clip 1 --noise 1", "under noise each one arrives multiplied by its weight"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(words: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "compare_digits", *words.split(), "--quiet", "--out", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert part in told and told.count("\n") == 1 and not (tmp_path / "run").exists()
