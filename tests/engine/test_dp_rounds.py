"""Rounds under noise: too few clients, unusable clients, a clip that follows a quantile, and SCAFFOLD's control variates."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import Rota, Toy

from coterie.engine.run import Finish, RunError, run
from coterie.engine.settings import Settings
from coterie.message import Message, Slot
from coterie.method import SGD, ClientRun, Everyone, Named, Phase, Plan, Poisson, Site
from coterie.methods.fedavg import FedAvg, Training, fedavg
from coterie.methods.scaffold import scaffold
from coterie.privacy.clipping import Adaptive
from coterie.privacy.guards import Guards
from coterie.privacy.noise import NoiseSource
from coterie.randomness import Key
from coterie.tensors import Groups

TRAINING = Training(optim=SGD(lr=0.1), batch_size=8)
NOISY = Guards(clip=0.5, noise=1.0, n_max=1, kappa=0, audit_seed=7)


def go(plan: Plan, out: Path, guards: Guards, *, resume: bool = False, **more: object) -> Finish:
    toy = Toy()
    return run(
        plan, toy.population(), net=toy.net(), metric=toy.metric, out=out, guards=guards, resume=resume,
        settings=Settings(**{"backend": "loop", "quiet": True, "precision": "fp64", **more}),  # type: ignore[arg-type]
    )  # fmt: skip


def flat(tensors: Mapping[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([value.double().numpy().ravel() for value in tensors.values()])


def start() -> np.ndarray:
    return flat(Toy().net().params)


def events(finish: Finish, event: str) -> list[dict[str, object]]:
    lines = (json.loads(line) for line in (finish.path / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line.get("event") == event]


def noise_alone(guards: Guards, round: int = 0, skip: int = 0) -> np.ndarray:
    """What the round's source gives for a whole model, after `skip` models' worth of noise."""
    slots = {"shared": Slot.like({name: value.double() for name, value in Toy().net().params.items()})}
    source = NoiseSource(guards.audit_seed, round)
    for _ in range(skip):
        guards.as_if_absent(slots, source)
    return flat(guards.nothing_but_noise(slots, source)["shared"])


@dataclass(frozen=True, kw_only=True)
class Failing(FedAvg):
    """All but client 0 raise, or send what is not finite."""

    with_what: str = "raise"

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from super().client(mine, down, site)
        if site.client == 0:
            return {"seen": {"it": torch.ones(1)}}, up
        if self.with_what == "raise":
            raise OSError("no")
        bad = {"nan": math.nan, "inf": math.inf, "huge": 1e100}[self.with_what]
        if self.with_what == "weight":
            return row, replace(up, weight=torch.tensor(math.nan))
        return {"seen": {"it": torch.ones(1)}}, up.with_(shared={name: value * 0 + bad for name, value in up["shared"].items()})


@pytest.mark.parametrize("split", ["full", "share"])
def test_too_few_clients_leave_nothing_but_the_noise_that_was_claimed(split: str, tmp_path: Path) -> None:
    """One of four came back, the noise was claimed for sums of three: its change is forgotten, its row too, no round is repeated."""
    guards = replace(NOISY, split=split, min_cohort=3)  # type: ignore[arg-type]
    finish = go((Phase("train", 1, Failing()),), tmp_path / "run", guards, max_attempts=3)
    np.testing.assert_allclose(flat(finish.state.shared["shared"]) - start(), noise_alone(guards, skip=1) / 4, atol=1e-12)
    (void,) = events(finish, "round_void")
    assert "got 1 of 4 clients back, fewer than 3. Nothing but noise was absorbed" in str(void["reason"])
    assert len(finish.clients) == 0 and not events(finish, "round_repeated")
    assert finish.summary["bytes"]["up"] == 53 * 8  # what left client 0 has left it all the same


def test_a_cohort_that_is_too_small_is_not_even_asked(tmp_path: Path) -> None:
    guards = replace(NOISY, split="share", min_cohort=3)
    cohort = Poisson(0.5)
    seed = next(s for s in range(100) if len(cohort.draw(4, Key(s, ("cohort", 0)))) == 2)
    finish = go(fedavg(rounds=1, cohort=cohort, training=TRAINING), tmp_path / "run", guards, seed=seed)
    np.testing.assert_allclose(flat(finish.state.shared["shared"]) - start(), noise_alone(guards) / 2, atol=1e-12)
    assert finish.summary["bytes"]["up"] == finish.summary["bytes"]["down"] == 0


def test_without_noise_a_round_is_drawn_again(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"got 1 of 4 .* fewer than 2\. Tried 3 times"):
        go((Phase("train", 1, Failing()),), tmp_path / "run", Guards(clip=1.0), min_cohort=2, max_attempts=3)


def test_a_cohort_of_which_nobody_sent_anything_stops_the_run(tmp_path: Path) -> None:
    """Nothing left a client, so nothing is spent: that all of them fail is a mistake to mend."""
    with pytest.raises(RunError, match=r"got 0 of 2 .*OSError: no"):
        go((Phase("train", 1, Failing(), Named((1, 2))),), tmp_path / "run", NOISY)


@pytest.mark.parametrize("what", ["nan", "inf", "huge", "weight"])
def test_under_noise_an_unusable_change_becomes_noise_on_zeros(what: str, tmp_path: Path) -> None:
    """To stay away would tell of the data. Client 0's clipped change and four clients' noise are absorbed; rows of the rest stay."""
    if what == "weight":
        finish = go((Phase("train", 1, Weightless()),), tmp_path / "run", NOISY)
    else:
        finish = go((Phase("train", 1, Failing(with_what=what)),), tmp_path / "run", NOISY)
    quiet = go((Phase("train", 1, FedAvg(), Named((0,))),), tmp_path / "alone", Guards(clip=0.5))
    change = flat(quiet.state.shared["shared"]) - start()
    slots = {"shared": Slot.like({name: value.double() for name, value in Toy().net().params.items()})}
    source = NoiseSource(7, 0)
    noise = sum(flat(NOISY.as_if_absent(slots, source)["shared"]) for _ in range(4))
    if what == "huge":  # finite, so clipped: it counts like anybody's
        assert set(finish.clients) == {0, 1, 2, 3} and not events(finish, "client_left_out")
        return
    np.testing.assert_allclose(flat(finish.state.shared["shared"]) - start(), (change + noise) / 4, atol=1e-9)
    assert set(finish.clients) == {0}
    told = events(finish, "client_left_out")
    assert [line["client"] for line in told] == [1, 2, 3] and all("Only its noise was sent" in str(line["reason"]) for line in told)
    assert finish.summary["bytes"]["up"] == 4 * 53 * 8


@dataclass(frozen=True, kw_only=True)
class Weightless(FedAvg):
    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from super().client(mine, down, site)
        return row, up if site.client == 0 else replace(up, weight=torch.tensor(math.nan))


def test_without_noise_an_unusable_client_is_left_out(tmp_path: Path) -> None:
    finish = go((Phase("train", 1, Failing(with_what="inf")),), tmp_path / "run", Guards(clip=0.5))
    alone = go((Phase("train", 1, FedAvg(), Named((0,))),), tmp_path / "alone", Guards(clip=0.5))
    np.testing.assert_array_equal(flat(finish.state.shared["shared"]), flat(alone.state.shared["shared"]))
    assert len(events(finish, "client_left_out")) == 3


def test_with_kappa_0_no_weight_travels_and_the_expected_number_divides(tmp_path: Path) -> None:
    """Two of four clients, drawn with rate 0.75: the sum is divided by 3, whoever came."""
    cohort = Poisson(0.75)
    seed = next(s for s in range(100) if len(cohort.draw(4, Key(s, ("cohort", 0)))) == 2)
    drawn = cohort.draw(4, Key(seed, ("cohort", 0)))
    guards = replace(NOISY, noise=1e-12)
    finish = go(fedavg(rounds=1, cohort=cohort, training=TRAINING), tmp_path / "run", guards, seed=seed)
    changes = [
        flat(go(fedavg(rounds=1, cohort=Named((k,)), training=TRAINING), tmp_path / str(k), Guards(clip=0.5), seed=seed).state.shared["shared"])
        - start() for k in drawn
    ]  # fmt: skip
    np.testing.assert_allclose(flat(finish.state.shared["shared"]) - start(), sum(changes) / 3, atol=1e-10)
    assert finish.summary["bytes"]["up"] == 2 * 53 * 8


def test_who_takes_part_follows_from_the_seed_only_where_nothing_is_hidden(tmp_path: Path) -> None:
    """Sampling amplifies only while nobody can know who was drawn, and a run's seed stands in its folder."""
    def cohorts(name: str, guards: Guards) -> list[object]:
        finish = go(fedavg(rounds=12, cohort=Poisson(0.5), training=TRAINING), tmp_path / name, guards, eval_every=12)
        return [line["cohort"] for line in events(finish, "round")]

    hidden = replace(NOISY, audit_seed=None)
    assert cohorts("seed", NOISY) == cohorts("again", NOISY)
    assert len({tuple(cohorts(f"hidden{i}", hidden)) for i in range(3)}) > 1


# --- a clip that follows a quantile ------------------------------------------------------------------------------------------------

FOLLOWING = Guards(clip=0.05, clip_mode="adaptive", adaptive=Adaptive(quantile=0.5, rate=0.8))


def clips(finish: Finish) -> list[float]:
    return [float(line["clip"]) for line in events(finish, "round")]  # type: ignore[arg-type]


def test_the_clip_of_each_round_follows_from_the_lengths_of_the_one_before(tmp_path: Path) -> None:
    """Andrew et al., Algorithm 1, without noise: lengths are measured by runs of single clients from the same model."""
    finish = go(fedavg(rounds=3, training=TRAINING), tmp_path / "run", FOLLOWING)
    clip, expected = 0.05, []
    for t in range(3):
        expected.append(clip)
        lengths = [np.linalg.norm(change) for change in changes_of_round(t, expected, tmp_path)]
        clip *= math.exp(-0.8 * (np.mean([length <= clip for length in lengths]) - 0.5))
    assert clips(finish) == pytest.approx(expected, rel=1e-12)
    assert len(set(expected)) == 3


def changes_of_round(t: int, clips: list[float], folder: Path) -> list[np.ndarray]:
    """Every client's whole change in round t of a run that was clipped so in the rounds before."""
    found = []
    for k in range(4):
        rota = Rota(((0, 1, 2, 3),) * t + ((k,),))
        out = folder / f"single-{t}-{k}"
        before = flat(go(fedavg(rounds=t, training=TRAINING), folder / f"before-{t}-{k}", FOLLOWING).state.shared["shared"]) if t else start()
        # the clip of the last round is lifted by a clip mode that stays where it is
        after = go(fedavg(rounds=t, training=TRAINING), out, FOLLOWING) if t else None
        whole = go_on_alone(fedavg(rounds=t + 1, training=TRAINING, cohort=rota), out, resume=after is not None)
        found.append(flat(whole.state.shared["shared"]) - before)
    return found


def go_on_alone(plan: Plan, out: Path, *, resume: bool) -> Finish:
    """One more round without any guard."""
    if resume:  # a run refuses to go on under other guards, so the test takes the record away
        (out / "run.json").unlink()
    return go(plan, out, Guards(), resume=resume)


def test_the_bit_and_the_clip_cost_eight_bytes_each(tmp_path: Path) -> None:
    """spec/wire.md: DP-FedAvg sends bP and 8 for the bit, and receives bP and 8 for the clip."""
    guards = replace(NOISY, clip_mode="adaptive")
    finish = go(fedavg(rounds=2, training=TRAINING), tmp_path / "run", guards, precision="fp32")
    one_way = 2 * 4 * (4 * 53 + 8)
    assert finish.summary["bytes"]["up"] == one_way and finish.summary["bytes"]["down"] == one_way


def test_noise_on_the_bits_moves_the_clip(tmp_path: Path) -> None:
    """The logged trajectory is the rule applied to the noised bits that the round's own source gave."""
    guards = replace(NOISY, clip=1e3, noise=1e-9, clip_mode="adaptive", adaptive=Adaptive(rate=0.5, bit_noise=2.0))  # everybody is within
    finish = go(fedavg(rounds=4, training=TRAINING), tmp_path / "run", guards)
    expected, slots = [1e3], {"shared": Slot.like({name: value.double() for name, value in Toy().net().params.items()})}
    for t in range(3):
        source, clip = NoiseSource(7, t), expected[-1]
        noise = sum(float(guards.as_if_absent(slots, source)["clip"]["within"]) for _ in range(4))
        expected.append(clip * math.exp(-0.5 * ((4 * 0.5 + noise) / 4 + 0.5 - 0.5)))
    assert clips(finish) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("guards", [FOLLOWING, replace(NOISY, clip_mode="adaptive")])
def test_a_resumed_run_goes_on_with_the_clip_that_it_had(guards: Guards, tmp_path: Path) -> None:
    whole = go(fedavg(rounds=5, training=TRAINING), tmp_path / "whole", guards)
    go(fedavg(rounds=3, training=TRAINING), tmp_path / "run", guards)
    resumed = go(fedavg(rounds=5, training=TRAINING), tmp_path / "run", guards, resume=True)
    assert clips(resumed) == clips(whole) and len(clips(whole)) == 5
    np.testing.assert_array_equal(flat(resumed.state.shared["shared"]), flat(whole.state.shared["shared"]))


# --- SCAFFOLD -----------------------------------------------------------------------------------------------------------------------


def test_scaffolds_control_variates_are_clipped_weighed_and_noised_with_the_update(tmp_path: Path) -> None:
    """Algorithm 1 by hand around recorded noise: u_k = clip((x change, c change)) + noise, x by the expected 4, c by N = 4.

    The clients' own c_i never leave them and stay as they are; the server's c gets the clipped and noised changes.
    """
    guards = replace(NOISY, clip=0.3, noise=0.05)
    plan = scaffold(rounds=3, training=TRAINING)
    finish = go(plan, tmp_path / "run", guards)
    population, sizes = Toy().population(), {name: value.numel() for name, value in Toy().net().params.items()}
    x, c = start(), np.zeros(53)
    own = [np.zeros(53) for _ in range(4)]
    order = sorted(range(4), key=lambda k: (-len(population.parts[k].train), k))
    for t in range(3):
        source = NoiseSource(7, t)
        total = np.zeros(106)
        for k in order:
            change, control = local_round(x, c, own[k], k, t, sizes)
            u = np.concatenate([change, control])
            u *= min(1.0, 0.3 / np.linalg.norm(u))
            slots = {name: Slot.like({n: torch.zeros(size, dtype=torch.float64) for n, size in sizes.items()}) for name in ("shared", "control")}
            drawn = guards.as_if_absent(slots, source)
            total += u + np.concatenate([flat(drawn["shared"]), flat(drawn["control"])])
            own[k] = own[k] + control
        x, c = x + total[:53] / 4, c + total[53:] / 4
    np.testing.assert_allclose(flat(finish.state.shared["shared"]), x, atol=1e-10)
    np.testing.assert_allclose(flat(finish.state.shared["control"]), c, atol=1e-10)
    for k in range(4):
        np.testing.assert_allclose(flat(finish.clients[k]["control"]), own[k], atol=1e-10)


def local_round(x: np.ndarray, c: np.ndarray, own: np.ndarray, k: int, t: int, sizes: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Lines 7 to 12 of Algorithm 1 for one client, with autograd for the gradients: (y - x, c_i^+ - c_i)."""
    from by_hand import batches, gradient, plain_loss

    rows = Toy().population().parts[k].train.all_rows()
    shapes = {name: value.shape for name, value in Toy().net().params.items()}

    def named(vector: np.ndarray) -> dict[str, torch.Tensor]:
        parts = torch.from_numpy(vector).split(list(sizes.values()))
        return {name: part.reshape(shapes[name]) for name, part in zip(sizes, parts, strict=True)}

    y, steps = x.copy(), 0
    for chosen in batches(t, k, len(rows["y"]), 8, epochs=1):
        g = flat(gradient(plain_loss, named(y), rows["x"].double()[chosen], rows["y"][chosen]))
        y, steps = y - 0.1 * (g + c - own), steps + 1
    return y - x, (own - c + (x - y) / (steps * 0.1)) - own


def test_scaffold_without_noise_under_a_wide_clip_is_scaffold(tmp_path: Path) -> None:
    plan = scaffold(rounds=3, training=TRAINING, cohort=Everyone())
    plain, guarded = go(plan, tmp_path / "plain", Guards()), go(plan, tmp_path / "guarded", Guards(clip=1e6, noise=1e-16, n_max=1, kappa=0, audit_seed=0))
    np.testing.assert_allclose(flat(guarded.state.shared["shared"]), flat(plain.state.shared["shared"]), atol=1e-8)
    np.testing.assert_allclose(flat(guarded.state.shared["control"]), flat(plain.state.shared["control"]), atol=1e-8)
