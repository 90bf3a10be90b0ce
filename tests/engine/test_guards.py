"""What protects a Message: clip -> weigh -> noise, against NumPy and against formulas written out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import Toy
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.engine.run import Finish, run
from coterie.engine.settings import Settings
from coterie.message import SCALARS, Message, Slot
from coterie.method import ClientRun, Hub, Named, Nobody, Phase, Plan, Poisson, Site
from coterie.methods.fedavg import FedAvg, fedavg
from coterie.methods.fl_gap import fl_gap
from coterie.methods.local import Local
from coterie.methods.scaffold import scaffold
from coterie.privacy.guards import Guards
from coterie.privacy.noise import NoiseSource
from coterie.randomness import Key
from coterie.tensors import Groups

F64 = torch.float64
SLOTS = {
    "shared": Slot({"a": ((2, 2), F64), "b": ((3,), F64)}),
    "control": Slot({"a": ((2,), F64)}, kind="change", reduce="sum"),
    "buffers": Slot({"mean": ((2,), F64)}, guard="public"),
}


def message(size: float = 1.0, weight: float | None = None, seed: int = 0) -> Message:
    numbers = iter(np.random.default_rng(seed).normal(size=20))

    def tensor(shape: tuple[int, ...]) -> torch.Tensor:
        return size * torch.tensor([next(numbers) for _ in range(math.prod(shape))], dtype=F64).reshape(shape)

    groups = {name: {key: tensor(shape) for key, (shape, _) in slot.spec.items()} for name, slot in SLOTS.items()}
    return Message(groups, weight=None if weight is None else torch.tensor(weight, dtype=F64))


def guarded(up: Message) -> np.ndarray:
    """Every guarded coordinate as one vector."""
    return np.concatenate([up[g][n].numpy().ravel() for g, n in (("shared", "a"), ("shared", "b"), ("control", "a"))])


def applied(guards: Guards, up: Message, seed: int | None = None) -> Message:
    return guards.apply(up, SLOTS, NoiseSource(seed))


# --- clip ---------------------------------------------------------------------------------------------------------------------


def test_one_clip_spans_all_guarded_groups_and_keeps_the_direction() -> None:
    up = message(size=10.0, weight=7.0)
    found, before = applied(Guards(clip=0.5), up), guarded(up)
    np.testing.assert_allclose(guarded(found), before * 0.5 / np.linalg.norm(before), rtol=1e-12)
    assert torch.equal(found["buffers"]["mean"], up["buffers"]["mean"])
    assert float(found.weight) == 7.0  # without noise a weight stays what it is


def test_a_short_change_is_not_touched_and_zero_stays_zero() -> None:
    up = message(size=1e-3)
    np.testing.assert_array_equal(guarded(applied(Guards(clip=100.0), up)), guarded(up))
    assert not guarded(applied(Guards(clip=1.0), message(size=0.0))).any()


def test_without_a_clip_nothing_happens() -> None:
    up = message(size=1e9)
    assert applied(Guards(), up) is up


# --- weigh --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("weight", "n_max", "a"), [(None, 1.0, 1.0), (0.3, 1.0, 0.3), (40.0, 100.0, 0.4), (500.0, 100.0, 1.0)])
def test_under_noise_the_weight_is_bounded_and_multiplied_in(weight: float | None, n_max: float, a: float) -> None:
    """u = (a clip(Delta, C), kappa C a): with almost no noise the parts can be read off."""
    found = applied(Guards(clip=0.5, noise=1e-12, n_max=n_max), message(10.0, weight))
    before = guarded(message(10.0))
    np.testing.assert_allclose(guarded(found), a * before * 0.5 / np.linalg.norm(before), atol=1e-10)
    assert float(found.weight) == pytest.approx(a, abs=1e-9)


def test_a_weight_above_1_needs_a_public_bound_under_noise_only() -> None:
    with pytest.raises(ValueError, match=r"weight must be public or bounded, found 12\. Set n_max to the largest number"):
        applied(Guards(clip=1.0, noise=0.1), message(weight=12.0))
    assert float(applied(Guards(clip=1.0), message(weight=12.0)).weight) == 12.0


@given(
    weight=st.floats(0, 1e6), size=st.floats(0, 1e12), kappa=st.floats(1e-3, 10), clip=st.floats(1e-3, 1e3),
    n_max=st.floats(1, 1e4), seed=st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_whatever_a_client_sends_its_vector_is_bounded(
    weight: float, size: float, kappa: float, clip: float, n_max: float, seed: int
) -> None:
    """PT-D2: ||u|| <= C sqrt(1 + kappa^2) before noise, the weight's own coordinate included."""
    guards = Guards(clip=clip, noise=1e-300, kappa=kappa, n_max=n_max)
    if weight > 1 and n_max == 1:
        return
    found = applied(guards, message(size, weight, seed))
    block = kappa * clip * float(found.weight)
    length = math.hypot(float(np.linalg.norm(guarded(found))), block)
    assert length <= clip * math.sqrt(1 + kappa**2) * (1 + 1e-12)


# --- noise --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("split", "expected"), [("full", 0.6 * 2.0 * math.sqrt(1.01)), ("share", 0.6 * 2.0 * math.sqrt(1.01) / 3)])
def test_noise_has_the_stated_deviation(split: str, expected: float) -> None:
    """A million draws: the deviation is right to 0.5 % and the fourth moment that of a normal; no coordinate is linked to the next."""
    slot = {"shared": Slot({"w": ((1000, 1000), F64)})}
    guards = Guards(clip=2.0, noise=0.6, split=split, min_cohort=9)  # type: ignore[arg-type]
    zeros = Message({"shared": {"w": torch.zeros(1000, 1000, dtype=F64)}})
    drawn = guards.apply(zeros, slot, NoiseSource(5))["shared"]["w"].numpy().ravel()
    assert guards.noise_std == pytest.approx(expected, rel=1e-12)
    assert abs(drawn.mean()) < 5 * expected / 1000
    assert drawn.std() == pytest.approx(expected, rel=0.005)
    assert np.mean(drawn**4) / expected**4 == pytest.approx(3.0, abs=0.05)
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 5e-3
    assert abs(np.corrcoef(drawn[: 500_000], drawn[500_000:])[0, 1]) < 8e-3  # sine and cosine of one pair


def test_the_weight_carries_noise_of_the_same_size() -> None:
    """Its coordinate is kappa C a, so the weight's own deviation is sigma sqrt(1 + kappa^2) / kappa."""
    guards, source = Guards(clip=2.0, noise=0.6, kappa=0.5), NoiseSource(1)
    weights = [float(guards.apply(message(0.0, 0.5), SLOTS, source).weight) for _ in range(4000)]
    assert np.mean(weights) == pytest.approx(0.5, abs=5 * 1.35 / math.sqrt(4000))
    assert np.std(weights) == pytest.approx(0.6 * math.sqrt(1.25) / 0.5, rel=0.06)


def test_public_groups_get_no_noise() -> None:
    up = message()
    assert torch.equal(applied(Guards(clip=1.0, noise=3.0), up)["buffers"]["mean"], up["buffers"]["mean"])


def test_any_whole_number_is_an_audit_seed() -> None:
    zeros = {"w": torch.zeros(4)}
    drawn = [NoiseSource(seed, 0).add(zeros, 1.0)["w"] for seed in (-1, -1, 1, 2**70)]
    assert torch.equal(drawn[0], drawn[1]) and not any(torch.equal(drawn[0], other) for other in drawn[2:])


def test_an_audit_seed_repeats_and_the_operating_system_does_not() -> None:
    guards = Guards(clip=1.0, noise=1.0)
    np.testing.assert_array_equal(guarded(applied(guards, message(), 3)), guarded(applied(guards, message(), 3)))
    for one, other in ((None, None), (3, 4), (3, None)):
        assert not np.isclose(guarded(applied(guards, message(), one)), guarded(applied(guards, message(), other))).any()


def test_an_audit_never_meets_the_same_noise_twice() -> None:
    """Round t + 1 of one seed is not round t of the next: a canary audit compares many seeds."""
    draws = np.stack([NoiseSource(seed, round).uniform(50) for seed in range(4) for round in range(4)])
    assert len(np.unique(draws.ravel())) == draws.size


def test_uniform_numbers_lie_strictly_between_0_and_1_or_at_most_round_to_1() -> None:
    drawn = NoiseSource().uniform(100_000)
    assert drawn.min() > 0 and drawn.max() <= 1 and np.isfinite(np.log(drawn)).all()


# --- an empty cohort ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["full", "share"])
def test_nothing_but_noise_looks_like_a_cohort_of_zeros(split: str) -> None:
    """With shares the smallest cohort's noise adds up to sigma C, and to sqrt(4) sigma C if each of the 4 adds all of it."""
    guards = Guards(clip=2.0, noise=0.5, split=split, min_cohort=4)  # type: ignore[arg-type]
    slots = {"shared": Slot({"w": ((100_000,), F64)}), "buffers": SLOTS["buffers"]}
    found = guards.nothing_but_noise(slots, NoiseSource(2))
    assert set(found.groups) == {"shared"}
    whole = 2.0 if split == "full" else 1.0
    assert found["shared"]["w"].numpy().std() == pytest.approx(whole * 0.5 * 2.0 * math.sqrt(1.01), rel=0.02)
    assert float(found.weight) != 0.0


def shared(finish: Finish) -> np.ndarray:
    return np.concatenate([v.numpy().ravel() for v in finish.state.shared["shared"].values()])


def go(plan: Plan, out: Path, guards: Guards, **more: object) -> Finish:
    toy = Toy()
    return run(
        plan, toy.population(), net=toy.net(), metric=toy.metric, out=out, guards=guards,
        settings=Settings(**{"backend": "loop", "quiet": True, **more}),  # type: ignore[arg-type]
    )  # fmt: skip


def empty_at(rate: float) -> int:
    """A seed for which a cohort of this rate is empty in the first round."""
    return next(s for s in range(1000) if not Poisson(rate).draw(4, Key(s, ("cohort", 0))))


def test_an_empty_poisson_cohort_changes_nothing_without_noise_and_looks_like_noise_with_it(tmp_path: Path) -> None:
    cohort, seed = Poisson(0.2), empty_at(0.2)
    start = np.concatenate([v.numpy().ravel() for v in Toy().net().params.values()])
    for name, guards in (("none", Guards()), ("clip", Guards(clip=1.0))):
        np.testing.assert_array_equal(shared(go(fedavg(rounds=1, cohort=cohort), tmp_path / name, guards, seed=seed)), start)
    noisy = Guards(clip=1.0, noise=1.0, n_max=50, audit_seed=1)
    finish = go(fedavg(rounds=1, cohort=cohort), tmp_path / "noise", noisy, seed=seed)
    moved = shared(finish) - start
    assert (np.abs(moved) > 0).all() and len(finish.clients) == 0
    assert finish.summary["bytes"]["up"] == 0


def test_an_empty_poisson_cohort_is_divided_by_what_was_expected(tmp_path: Path) -> None:
    """A_min = 0.1 q K (PT-D2), whoever was drawn: divided by 0.1, as if one client were expected, noise would bury the model."""
    cohort, guards = Poisson(0.5), Guards(clip=1.0, noise=0.3, n_max=50, audit_seed=3)
    start = np.concatenate([v.numpy().ravel() for v in Toy().net().params.values()])
    finish = go(fedavg(rounds=1, cohort=cohort), tmp_path, guards, seed=empty_at(0.5), precision="fp64")
    slots = {"shared": Slot.like({name: value.double() for name, value in Toy().net().params.items()})}
    drawn = guards.nothing_but_noise(slots, NoiseSource(3, 0))
    noise = np.concatenate([v.numpy().ravel() for v in drawn["shared"].values()])
    assert float(drawn.weight) < 0.1 * 0.5 * 4  # this seed's weight is below the floor
    np.testing.assert_allclose(shared(finish) - start, noise / (0.1 * 0.5 * 4), atol=1e-12)


def test_a_phase_of_the_server_alone_is_no_empty_cohort(tmp_path: Path) -> None:
    """Nobody was drawn because there is nobody to draw: nothing is released, so nothing is noised."""
    start = np.concatenate([v.numpy().ravel() for v in Toy().net().params.values()])
    plan = (Phase("alone", 2, FedAvg(), Nobody()),)
    np.testing.assert_array_equal(shared(go(plan, tmp_path / "run", Guards(clip=1.0, noise=1.0))), start)


# --- what is refused -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"clip": 0.0}, r"clip must be greater than 0, found 0\.0\. Use for example 1\.0"),
        ({"clip": 1.0, "noise": -0.1}, r"noise must be from 0 to 1e\+09 clips, found -0\.1\. Use"),
        ({"clip": math.inf}, r"clip must be greater than 0, found inf"),
        ({"clip": 1.0, "noise": 0.5, "kappa": -0.1}, r"kappa must be at least 0, found -0\.1"),
        ({"clip": 1.0, "clip_mode": "group"}, r"clip_mode must be one of flat, groups, adaptive, found 'group'"),
        ({"clip_mode": "adaptive"}, r"clip_mode adaptive needs a clip to share out or to begin with, found none\. Set clip"),
        ({"clip": 1.0, "mechanism": "laplace"}, r"mechanism must be one of gaussian, discrete, found 'laplace'"),
        ({"clip": 1e300, "noise": 1e9}, r"A clip of 1e\+300 with noise 1000000000.0 is more than a float holds"),
        ({"clip": 1.0, "noise": 0.5, "n_max": -3.0}, r"n_max must be greater than 0, found -3\.0"),
        ({"clip": 1.0, "noise": 0.5, "min_cohort": 0}, r"min_cohort must be greater than 0, found 0"),
        ({"clip": 1.0, "split": "half"}, r"split must be full or share, found 'half'"),
        ({"noise": 0.5}, r"Noise without a clip bounds nothing.*Set clip as well"),
    ],
)
def test_guards_that_bound_nothing_are_refused(knobs: Mapping[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Guards(**knobs)  # type: ignore[arg-type]


def test_combinations_that_cannot_protect_are_refused_before_the_run(tmp_path: Path) -> None:
    clip, noise = Guards(clip=1.0), Guards(clip=1.0, noise=1.0)
    with pytest.raises(ValueError, match=r"FlGap needs every client's own 'shared', which a clip .* does not protect\. Leave out"):
        go(fl_gap(rounds=1, input_shape=(6,)), tmp_path / "each", clip)
    clip.check({"b": SLOTS["buffers"]}, "M")
    with pytest.raises(ValueError, match=r"M sends 'b' unguarded, so noise on the rest protects nobody\. Keep batch-norm"):
        noise.check({"b": SLOTS["buffers"]}, "M")
    with pytest.raises(ValueError, match=r"M sends 'labels' in 'y' as whole numbers.*Send floats"):
        clip.check({"y": Slot({"labels": ((3,), torch.int64)})}, "M")
    assert not (tmp_path / "each").exists()


@dataclass(frozen=True, kw_only=True)
class Telling(FedAvg):
    """FedAvg that also tells its loss."""

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        return {**super().slots(hub), SCALARS: Slot({"loss": ((), torch.float32)}, guard="public")}

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from super().client(mine, down, site)
        return row, Message(up.groups, {"loss": torch.tensor(0.5)}, up.weight)


def test_scalars_cannot_leave_under_noise(tmp_path: Path) -> None:
    plan = (Phase("train", 1, Telling()),)
    go(plan, tmp_path / "clip", Guards(clip=1.0))
    with pytest.raises(ValueError, match="Telling sends 'scalars' unguarded, so noise on the rest protects nobody"):
        go(plan, tmp_path / "noise", Guards(clip=1.0, noise=1.0, n_max=50))


def test_shares_of_the_noise_for_more_clients_than_there_are_is_refused_before_the_run(tmp_path: Path) -> None:
    guards = Guards(clip=1.0, noise=1.0, split="share", min_cohort=5, n_max=50)
    with pytest.raises(ValueError, match="claimed for sums of at least 5 clients, but there are 4"):
        go(fedavg(rounds=1), tmp_path / "run", guards)
    assert not (tmp_path / "run").exists()


# --- in a run ---------------------------------------------------------------------------------------------------------------------


def test_a_run_clips_what_clients_changed_not_their_models(tmp_path: Path) -> None:
    """One client: the server moves by exactly the clip, and by the whole change where that is shorter."""
    start = np.concatenate([v.numpy().ravel() for v in Toy().net().params.values()])
    plan = fedavg(rounds=1, cohort=Named((1,)))
    whole, short, wide = (
        shared(go(plan, tmp_path / str(clip), Guards(clip=clip), precision="fp64")) - start for clip in (None, 0.01, 100.0)
    )
    np.testing.assert_allclose(short, whole * 0.01 / np.linalg.norm(whole), atol=1e-14)
    np.testing.assert_array_equal(wide, whole)


def test_one_clip_spans_both_groups_of_scaffold(tmp_path: Path) -> None:
    """x and c move by one vector of length C: the change of x, and (c_i^+ - c_i) / N for the only client of N = 4."""
    toy, plan = Toy(), scaffold(rounds=1, cohort=Named((2,)))
    start = np.concatenate([v.double().numpy().ravel() for v in toy.net().params.values()])
    finish = go(plan, tmp_path / "run", Guards(clip=0.02), precision="fp64")
    control = np.concatenate([v.numpy().ravel() for v in finish.state.shared["control"].values()])
    assert math.hypot(np.linalg.norm(shared(finish) - start), 4 * np.linalg.norm(control)) == pytest.approx(0.02, rel=1e-9)


def test_the_noisy_weight_is_counted_among_the_bytes(tmp_path: Path) -> None:
    """PT-D2 sends b (P + weight): 53 floats and 8 bytes, though Local's clients send nothing and SCAFFOLD's no weight."""
    guards = Guards(clip=1.0, noise=0.1, audit_seed=0)
    finish = go(scaffold(rounds=1, cohort=Named((0, 1))), tmp_path / "run", guards)
    assert finish.summary["bytes"]["up"] == 2 * (2 * 53 * 4 + 8)
    assert finish.summary["privacy"]["epsilon"] is None and "protects nobody" in finish.summary["privacy"]["note"]


def test_a_method_that_sends_nothing_has_nothing_to_guard(tmp_path: Path) -> None:
    finish = go((Phase("train", 1, Local()),), tmp_path / "run", Guards(clip=1.0, noise=1.0))
    assert finish.summary["bytes"]["up"] == 0
