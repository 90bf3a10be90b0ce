"""What a report says of an attacked run."""

from __future__ import annotations

from pathlib import Path

import toy

from coterie import methods
from coterie.attacks.poison import LyingScore, SignFlip
from coterie.cli.privacy_of_runs import account_of
from coterie.engine.run import run
from coterie.engine.settings import Settings
from coterie.metrics.classification import Classification
from coterie.privacy.guards import Guards
from coterie.reduce.coordinates import CoordinateMedian
from coterie.report.attack import attack_words
from coterie.report.page import write_report
from coterie.report.read import read_run


def page(out: Path, **options: object) -> str:
    run(
        methods.fedavg(rounds=1), toy.population(), net=toy.net(), metric=Classification(toy.CLASSES), out=out,
        settings=Settings(backend="loop", quiet=True), **options,  # type: ignore[arg-type]
    )  # fmt: skip
    return write_report(out).read_text(encoding="utf-8")


def test_the_page_says_who_attacked_how_and_that_nothing_is_private(tmp_path: Path) -> None:
    html = page(tmp_path / "run", attack=SignFlip(clients=(1,), scale=7.0), reduce=CoordinateMedian())
    for words in ("1 client of 4 attacked this run with SignFlip(scale=7): 1.", "not private", "over the honest clients",
                  "Updates were reduced by CoordinateMedian."):  # fmt: skip
        assert words in html, words


def test_a_lie_is_told_with_its_gain_and_bound(tmp_path: Path) -> None:
    """FedAvg weighs by n_k, so the weight 1 of ISFA is a loss here: 1 / n_k, and the bound is that of ISFA, n_max / n_k."""
    html = page(tmp_path / "run", attack=LyingScore(clients=(1,), sharpness=0.0, n_max=48))
    size = len(toy.population().parts[1].train)
    assert f"{1 / size:.3g} times, bounded by {48 / size:.3g}" in html and "reduced by the weighted mean" in html


def test_an_ordinary_run_says_nothing_of_attacks(tmp_path: Path) -> None:
    assert "Attack and reduction" not in page(tmp_path / "run")
    assert attack_words(read_run(tmp_path / "run")) == ""


def test_noise_claims_no_epsilon_where_somebody_attacks(tmp_path: Path) -> None:
    html = page(tmp_path / "run", guards=Guards(clip=1.0, noise=1.0, n_max=100.0), attack=SignFlip(clients=(1,)))
    assert "claims no differential privacy" in html and "not private" in html
    account = account_of(tmp_path / "run", None, None)
    assert account["why"].startswith("This run was attacked, and attackers run no guard")
