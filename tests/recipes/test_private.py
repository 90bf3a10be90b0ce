"""The keys of differential privacy, and the recipes that draw accuracy against epsilon."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from coterie.engine.settings import Settings
from coterie.method import Everyone, Fixed, Poisson
from coterie.models.nets import cnn3
from coterie.options import OptionGroup, arguments_of, options_of
from coterie.recipes.population import build_population
from coterie.recipes.privacy_curve import read_epsilons
from coterie.recipes.private import Privacy, smallest_cohort, told
from coterie.report.epsilon_curve import Point, epsilon_curve

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
from commands import refused, succeed

SETTINGS = Settings(quiet=True)
TINY = ("--clients", "12", "--rounds", "2", "--rate", "0.5", "--quiet", "--backend", "loop")


# --- keys --------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Shared(OptionGroup):
    """Keys of several functions.

    --size 3   how large
    """

    size: int = 1
    name: str = "a"


def small(*, rounds: int = 2, shared: Shared = Shared(size=5)) -> None:
    """A function."""


def test_a_group_of_keys_stands_for_its_fields_with_this_functions_defaults() -> None:
    options = options_of(small)
    assert list(options) == ["rounds", "size", "name"]
    assert options["size"].default == 5 and options["size"].help == "how large, as in --size 3"
    assert arguments_of(small, {"rounds": 4, "name": "b"}) == {"rounds": 4, "shared": Shared(size=5, name="b")}


def test_what_only_noise_has_is_refused_without_noise_except_beside_an_epsilon_of_infinity() -> None:
    population = build_population("digits", clients=6, limit=120)
    for knobs in ({"split": "full"}, {"delta": 0.01}, {"view": "local"}, {"mechanism": "discrete"}, {"audit_seed": 1}):
        privacy = Privacy(clip=0.5, **knobs)
        with pytest.raises(ValueError, match=rf"--{next(iter(knobs)).replace('_', '-')} does nothing without noise"):
            privacy.guards(Everyone(), population, 2, SETTINGS)
        assert not privacy.without_noise().guards(Everyone(), population, 2, SETTINGS).private


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"epsilon": 8.0}, r"--epsilon needs a bound .* no clip\. Add for example --clip 0\.5"),
        ({"noise": 1.0}, r"--noise needs a bound"),
        ({"clip_mode": "adaptive"}, r"--clip-mode does nothing without a clip"),
        ({"clip": 0.5, "delta": 7.0}, r"delta must lie strictly between 0 and 1, found 7"),
        ({"clip": 1.0, "noise": 1.0, "epsilon": 8.0}, r"Give --noise or --epsilon, found both \(1 and 8\)"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(knobs: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Privacy(**knobs)  # type: ignore[arg-type]


def test_cohorts_are_poisson_under_noise_unless_asked_otherwise() -> None:
    assert Privacy().cohort(None, 10) == Everyone()
    assert Privacy().cohort(3, 10) == Fixed(3) and Privacy(sampling="poisson").cohort(3, 10) == Poisson(0.3)
    assert Privacy(clip=1.0, noise=1.0).cohort(3, 10) == Poisson(0.3)
    assert Privacy(clip=1.0, epsilon=1.0, sampling="fixed").cohort(3, 10) == Fixed(3)
    with pytest.raises(ValueError, match=r"The cohort \(11\) is larger than the population \(10\)"):
        Privacy().cohort(11, 10)


def test_the_smallest_cohort_is_two_deviations_below_the_mean() -> None:
    """300 clients at 0.1: mean 30, deviation sqrt(27) = 5.196, so 19."""
    assert smallest_cohort(Poisson(0.1), 300) == 19
    assert smallest_cohort(Poisson(0.01), 10) == 1 and smallest_cohort(Fixed(7), 10) == 7 and smallest_cohort(Everyone(), 10) == 10


def test_a_target_epsilon_becomes_noise_and_a_budget() -> None:
    """Everybody in 25 rounds, mu = 1 in all: eps 4.3772 at 1e-5 (exact Gaussian), so z = sqrt(25) = 5."""
    people = build_population("digits", clients=10, partition="iid")
    guards = Privacy(clip=0.5, epsilon=4.3772, delta=1e-5).guards(Everyone(), people, 25, SETTINGS)
    assert guards.noise == pytest.approx(5.0, rel=1e-3) and guards.noise_std == pytest.approx(5.0 * 0.5 / math.sqrt(10), rel=1e-3)
    assert guards.budget is not None and (guards.budget.epsilon, guards.budget.delta) == (4.3772, 1e-5)
    full = Privacy(clip=0.5, epsilon=4.3772, delta=1e-5, split="full").guards(Everyone(), people, 25, SETTINGS)
    assert full.noise == pytest.approx(5.0 / math.sqrt(10), rel=1e-3)  # ten full shares give the sum the same noise
    assert "for epsilon 4.3772 at delta 1e-05" in told(guards)
    by_default = Privacy(clip=0.5, noise=1.0).guards(Everyone(), people, 25, SETTINGS).budget
    assert by_default is not None and by_default.epsilon is None and by_default.delta == pytest.approx(10**-1.1)


def test_a_run_with_a_target_epsilon_spends_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = succeed(
        capsys, "run", "compare_digits", "--methods", "scaffold", "--clients", "20", "--cohort", "8", "--rounds", "3", "--clip", "0.5",
        "--epsilon", "6", "--backend", "loop", "--out", tmp_path / "run",
    )  # fmt: skip
    assert "for epsilon 6 at delta 0.037 (amplified view), clip 0.5 (flat)" in said
    record = json.loads((tmp_path / "run" / "scaffold" / "run.json").read_text())
    assert record["privacy"]["noise"] > 0 and record["privacy"]["budget"]["epsilon"] == 6
    assert "Poisson(rate=0.4)" in record["methods"][0]["cohort"]
    spent = json.loads((tmp_path / "run" / "scaffold" / "summary.json").read_text())["privacy"]
    assert 5.9 < spent["epsilon"] <= 6 and spent["delta"] == pytest.approx(20**-1.1) and spent["releases"] == 3


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--methods", "fl_gap", "--epsilon", "8", "--clip", "1"), "FlGap needs every client's own 'shared'"),
        (("--methods", "fedavg", "--net", "resnet8", "--epsilon", "8", "--clip", "1"), "sends 'buffers' unguarded"),
        (("--epsilon", "8"), "--epsilon needs a bound on what one client can change, found no clip"),
        (("--epsilon", "-1", "--clip", "1"), "epsilon must be a finite number above 0, found -1"),
        (("--epsilon", "1", "--clip", "1", "--delta", "1.5"), "delta must lie strictly between 0 and 1, found 1.5"),
        (("--clip-mode", "adaptive", "--clip", "0"), "clip must be greater than 0, found 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_protected_is_refused_before_it_runs(
    words: tuple[str, ...], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert text in refused(capsys, "run", "compare_digits", "--clients", "4", "--rounds", "2", *words, "--out", out)
    assert not out.exists()


# --- accuracy against epsilon -------------------------------------------------------------------------------------------------------


def test_epsilons_are_numbers_or_inf() -> None:
    assert read_epsilons(("1", "0.5", "inf")) == (1.0, 0.5, None)
    for texts, text in ((("0",), "found '0'"), (("x",), "found 'x'"), (("nan",), "found 'nan'"), (("1", "1.0"), "given twice")):
        with pytest.raises(ValueError, match=text):
            read_epsilons(texts)


def test_a_point_is_judged_by_its_whole_interval() -> None:
    """Three seeds of 0.2, 0.3, 0.4: mean 0.3, t(2, 0.975) = 4.3027, half width 4.3027 * 0.1 / sqrt(3) = 0.24842."""
    point = Point("m", 1.0, (0.2, 0.3, 0.4))
    assert point.interval == pytest.approx((0.3 - 0.24842, 0.3 + 0.24842), abs=1e-5)
    assert point.verdict(0.05) == "above chance" and point.verdict(0.1) == "at chance"
    assert Point("m", 1.0, (0.9,)).verdict(0.1) == "one seed: not judged"


def test_the_picture_names_methods_epsilons_and_who_is_at_chance() -> None:
    points = [Point("fedavg", e, (a, a + 0.01, a + 0.02)) for e, a in ((1.0, 0.09), (8.0, 0.5), (None, 0.9))]
    drawn = epsilon_curve(points, 0.1, "Title & more")
    assert drawn.startswith('<svg xmlns="http://www.w3.org/2000/svg"') and drawn.endswith("</svg>")
    assert drawn.count("at chance") == 1 and "chance 10 %" in drawn and ">inf<" in drawn and "Title &amp; more" in drawn
    assert drawn.count("<circle") == 3 and drawn.count("whisker") == 3 + 1  # and once in the style


def test_the_recipe_leaves_numbers_a_picture_and_a_run_for_every_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = ("--methods", "local,fedavg", "--epsilons", "4,inf", "--seeds", "0,1", *TINY)
    succeed(capsys, "run", "dp_digits", *words, "--out", out)
    told = json.loads((out / "accuracy_against_epsilon.json").read_text())
    assert [(p["method"], p["epsilon"]) for p in told["points"]] == [("local", None), ("fedavg", 4.0), ("fedavg", None)]
    assert told["delta"] == pytest.approx(12**-1.1) and told["points"][1]["noise"] > 0 == told["points"][2]["noise"]
    runs = json.loads((out / "summary.json").read_text())["runs"]
    assert runs[2:] == [f"fedavg/epsilon-{e}/seed-{s}" for e in ("4", "inf") for s in (0, 1)]
    for run, point in ((runs[2], told["points"][1]), (runs[4], told["points"][2])):
        summary = json.loads((out / run / "summary.json").read_text())
        assert summary["results"]["personal"]["accuracy"]["last"] == point["accuracies"][0]
    assert (out / "accuracy_against_epsilon.svg").read_text().startswith("<svg") and (out / "report.html").exists()
    (out / "accuracy_against_epsilon.json").unlink()
    succeed(capsys, "run", "--resume", out)
    assert json.loads((out / "accuracy_against_epsilon.json").read_text()) == told  # finished runs stay as they are


def test_a_single_epsilon_is_asked_for_with_the_recipes_own_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Use for example --epsilons 1,8,inf" in refused(capsys, "run", "dp_digits", "--epsilon", "3", *TINY, "--out", tmp_path / "run")


def test_the_net_for_cifar_has_fewer_than_50_thousand_weights() -> None:
    """Convolutions 3 x 16 x 25 + 16, 16 x 32 x 9 + 32, 32 x 32 x 9 + 32 and a head of 512 x 10 + 10 make 20,234; no buffers."""
    net = cnn3(3, 10)
    assert sum(value.numel() for value in net.params.values()) == 20_234 and not net.buffers
