"""Runs with attackers and robust reductions: what acts when, what is told, what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import toy
from cases import Toy
from toy import numbers

from coterie import methods
from coterie.attacks.poison import Attack, Backdoor, InnerProduct, LabelFlip, LyingScore, RandomUpdate, ScaledUpdate, SignFlip
from coterie.data.examples import View
from coterie.engine.check import check
from coterie.engine.run import Finish, RunError, run
from coterie.engine.settings import Settings
from coterie.method import SGD, Fixed, Nobody, Phase, Plan, Poisson, Wrapper, as_run
from coterie.methods.fedavg import FedAvg, Training
from coterie.methods.scaffold import scaffold
from coterie.metrics.classification import Classification
from coterie.privacy.guards import Guards
from coterie.recipes.quickstart import digits
from coterie.reduce.coordinates import CoordinateMedian, TrimmedMean
from coterie.reduce.geometric_median import GeometricMedian
from coterie.reduce.krum import Krum, MultiKrum
from coterie.reduce.mean import Mean
from coterie.reduce.norm_bound import NormBound
from coterie.reduce.seam import Reduce
from coterie.tensors import sub

TRAINING = Training(optim=SGD(lr=0.1), epochs=1, batch_size=10)
SIZES = (24, 12, 30, 18, 21)


def go(
    plan: Plan, out: Path, *, reduce: Reduce = Mean(), attack: Attack | None = None, guards: Guards = Guards(), resume: bool = False,
    sizes: tuple[int, ...] = SIZES, **settings: object,
) -> Finish:  # fmt: skip
    return run(
        plan, toy.population(sizes), net=toy.net(), metric=Classification(toy.CLASSES), out=out, reduce=reduce, attack=attack,
        guards=guards, resume=resume,
        settings=Settings(**{"backend": "loop", "quiet": True, "precision": "fp64", **settings}),  # type: ignore[arg-type]
    )  # fmt: skip


def fedavg(rounds: int = 1) -> Plan:
    return methods.fedavg(rounds=rounds, training=TRAINING)


def moved(finish: Finish) -> torch.Tensor:
    """What the server's model moved by, from the net's first weights."""
    start = {name: value.double() for name, value in toy.net().params.items()}
    return torch.cat([value.flatten() for value in sub(finish.state.shared["shared"], start).values()])


def lines(finish: Finish, event: str) -> list[dict[str, object]]:
    found = [json.loads(line) for line in (finish.path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line.get("event") == event]


def of_each(tmp_path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Every client's own change in the first round, and its weight."""
    changes = [moved(go((Phase("train", 1, FedAvg(training=TRAINING), Only(c)),), tmp_path / f"only-{c}")) for c in range(len(SIZES))]
    return torch.stack(changes), torch.tensor(SIZES, dtype=torch.float64)


@dataclass(frozen=True)
class Alike(Wrapper):
    """A method whose clients all count the same."""

    def client(self, mine, down, site):  # type: ignore[no-untyped-def]
        row, up = yield from as_run(self.inner.client(mine, down, site))
        return row, replace(up, weight=None)


class Only:
    """A cohort of one."""

    def __init__(self, client: int) -> None:
        self.client = client

    def draw(self, num_clients: int, key: object) -> tuple[int, ...]:
        return (self.client,)


# --- what arrives, by hand ----------------------------------------------------------------------------------------------------


def test_the_mean_and_the_median_of_a_round_with_attackers_are_those_of_their_updates(tmp_path: Path) -> None:
    """Clients 1 and 3 send -10 x: from every client's change alone, mean and median follow by hand."""
    changes, weights = of_each(tmp_path)
    attack = SignFlip(clients=(1, 3), scale=10)
    sent = changes.clone()
    sent[[1, 3]] *= -10
    mean = (weights[:, None] * sent).sum(0) / weights.sum()
    torch.testing.assert_close(moved(go(fedavg(), tmp_path / "mean", attack=attack)), mean, rtol=1e-9, atol=1e-12)
    median = sent.sort(0).values[2]
    found = go(fedavg(), tmp_path / "median", attack=attack, reduce=CoordinateMedian())
    torch.testing.assert_close(moved(found), median, rtol=1e-9, atol=1e-12)
    (line,) = lines(found, "round")
    assert line["attack"]["attackers"] == [3, 1]  # type: ignore[index]  # in the order of work, most examples first
    assert line["attack"]["sent"] == pytest.approx(10 * line["attack"]["trained"])  # type: ignore[index]
    assert line["kept_bytes"] == 5 * 8 * changes.shape[1]


def test_omniscient_attackers_send_the_honest_mean_turned_round(tmp_path: Path) -> None:
    changes, weights = of_each(tmp_path)
    honest = changes[[0, 2, 4]].mean(0)
    sent = changes.clone()
    sent[[1, 3]] = -2 * honest
    expected = (weights[:, None] * sent).sum(0) / weights.sum()
    found = go(fedavg(), tmp_path / "run", attack=InnerProduct(clients=(1, 3), epsilon=2, sees="all"))
    torch.testing.assert_close(moved(found), expected, rtol=1e-9, atol=1e-12)


def test_an_attack_begins_in_its_round_and_leaves_earlier_ones_as_they_were(tmp_path: Path) -> None:
    for name, attack in {"sent": SignFlip(from_round=2), "data": LabelFlip(from_round=2)}.items():
        clean = moved(go(fedavg(1), tmp_path / f"{name}-clean-1"))
        assert torch.equal(clean, moved(go(fedavg(1), tmp_path / f"{name}-1", attack=attack)))
        later = moved(go(fedavg(2), tmp_path / f"{name}-2", attack=attack))
        assert not torch.equal(later, moved(go(fedavg(2), tmp_path / f"{name}-clean-2")))


def test_flipped_labels_are_what_the_attacker_trains_on_and_nobody_else(tmp_path: Path) -> None:
    """Client 2 alone, its labels flipped by hand, moves as the attacker of a run does."""
    whole = toy.population(SIZES)
    train = whole.parts[2].train
    columns = {**train.columns, "y": toy.CLASSES - 1 - train.columns["y"]}
    parts = [replace(p, train=View(columns, train.index)) if i == 2 else p for i, p in enumerate(whole.parts)]
    by_hand = run(
        (Phase("train", 1, FedAvg(training=TRAINING), Only(2)),), replace(whole, parts=parts), net=toy.net(), out=tmp_path / "hand",
        metric=Classification(toy.CLASSES), settings=Settings(backend="loop", quiet=True, precision="fp64"),
    )  # fmt: skip
    changes, weights = of_each(tmp_path)
    changes[2] = moved(by_hand)
    expected = (weights[:, None] * changes).sum(0) / weights.sum()
    found = moved(go(fedavg(), tmp_path / "run", attack=LabelFlip(clients=(2,))))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


# --- guards, borders ----------------------------------------------------------------------------------------------------------


def test_an_attacker_skips_its_own_clip_and_a_bound_at_the_server_acts_all_the_same(tmp_path: Path) -> None:
    attack, guards = ScaledUpdate(clients=(2,), scale=100), Guards(clip=1e-3)
    clipped = moved(go(fedavg(), tmp_path / "clean", guards=guards)).norm()
    assert clipped <= 1e-3 * (1 + 1e-9)
    attacked = go(fedavg(), tmp_path / "attacked", guards=guards, attack=attack)
    changes, weights = of_each(tmp_path)
    assert moved(attacked).norm() == pytest.approx(float(100 * changes[2].norm() * weights[2] / weights.sum()), rel=1e-2)
    bounded = go(fedavg(), tmp_path / "bounded", guards=guards, attack=attack, reduce=NormBound(1e-3))
    assert moved(bounded).norm() <= 1e-3 * (1 + 1e-9)


def test_under_noise_an_attackers_message_is_weighed_like_any_other_and_not_clipped(tmp_path: Path) -> None:
    """With next to no noise: S = a_2 100 x_2 + what is clipped to 1e-3, and A the sum of a_k, from weights n_k / 30."""
    changes, weights = of_each(tmp_path)
    guards = Guards(clip=1e-3, noise=1e-12, n_max=30.0)
    found = go(fedavg(), tmp_path / "run", guards=guards, attack=ScaledUpdate(clients=(2,), scale=100))
    assert moved(found).norm() == pytest.approx(float(100 * changes[2].norm() * weights[2] / weights.sum()), rel=1e-2)
    assert found.summary["privacy"]["epsilon"] is None and "attack" in found.summary["privacy"]["note"]


def test_an_absurd_update_is_refused_at_the_border_and_the_log_says_who(tmp_path: Path) -> None:
    found = go(fedavg(), tmp_path / "run", attack=ScaledUpdate(clients=(2,), scale=1e9))
    (line,) = lines(found, "client_left_out")
    assert line["client"] == 2 and "sent an update of norm" in str(line["reason"])
    changes, weights = of_each(tmp_path)
    others = [0, 1, 3, 4]
    expected = (weights[others, None] * changes[others]).sum(0) / weights[others].sum()
    torch.testing.assert_close(moved(found), expected, rtol=1e-9, atol=1e-12)


def test_a_secure_sum_leaves_an_attacker_its_range_and_no_more(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from coterie.privacy.secure_sum import SecureSum

    guards = Guards(n_max=30.0, secure=SecureSum(range=2.0))
    found = go(fedavg(), tmp_path / "run", guards=guards, attack=ScaledUpdate(clients=(2,), scale=1e6))
    others = 4 * 2.0 + 2.0  # five clients, no coordinate above the range
    assert moved(found).abs().max() <= others * 30 / sum(SIZES) * (1 + 1e-6)
    with pytest.raises(ValueError, match=r"InnerProduct sees the honest clients' updates, which a secure sum hides"):
        go(fedavg(), tmp_path / "seen", guards=guards, attack=InnerProduct(sees="all"))


@pytest.mark.parametrize("noise", [0.0, 1e-12])
def test_beside_an_adaptive_clip_an_attackers_bit_says_how_long_its_update_is(noise: float, tmp_path: Path) -> None:
    """Everybody is far below the clip of 10; with a scale of 1,000 client 2 is beyond it, and four of five bits are left."""
    guards = Guards(clip=10.0, clip_mode="adaptive", noise=noise, n_max=1.0 if noise else None, kappa=0.0)
    plan = (Phase("train", 2, Alike(FedAvg(training=TRAINING))),)
    clips = {}
    for scale in (1.0, 1000.0):
        found = go(plan, tmp_path / f"{scale}", guards=guards, attack=ScaledUpdate(clients=(2,), scale=scale))
        clips[scale] = math.log(lines(found, "round")[1]["clip"] / 10.0)  # type: ignore[operator]
    changes, _ = of_each(tmp_path)
    assert changes.norm(dim=1).max() < 10 < 1000 * changes[2].norm()
    # C exp(-eta (b - 1/2)) with b the share of clients within the clip: 1, then 4/5
    assert clips[1000.0] / clips[1.0] == pytest.approx((0.8 - 0.5) / (1.0 - 0.5), rel=1e-3)


# --- the same through every door ----------------------------------------------------------------------------------------------

ATTACKS = [SignFlip(scale=3), RandomUpdate(scale=5), RandomUpdate(scale=5, together=False), InnerProduct(sees="all"), LabelFlip(), LyingScore()]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_the_order_of_clients_and_a_stop_change_no_bit(attack: Attack, tmp_path: Path) -> None:
    plan, reduce = fedavg(3), MultiKrum(1)
    whole = go(plan, tmp_path / "whole", attack=attack, reduce=reduce)
    other = go(plan, tmp_path / "reversed", attack=attack, reduce=reduce, order="reversed")
    assert torch.equal(moved(whole), moved(other)) and numbers(whole) == numbers(other)
    go(fedavg(1), tmp_path / "halves", attack=attack, reduce=reduce)
    resumed = go(plan, tmp_path / "halves", attack=attack, reduce=reduce, resume=True)
    assert torch.equal(moved(whole), moved(resumed)) and numbers(whole) == numbers(resumed)


def test_workers_and_stacked_clients_train_on_what_is_poisoned(tmp_path: Path) -> None:
    plan, attack, reduce = fedavg(2), LabelFlip(from_round=2), CoordinateMedian()
    loop = go(plan, tmp_path / "loop", attack=attack, reduce=reduce)
    pool = go(plan, tmp_path / "pool", attack=attack, reduce=reduce, backend="pool", workers=1)
    assert torch.equal(moved(loop), moved(pool)) and numbers(loop) == numbers(pool)
    stacked = go(plan, tmp_path / "stacked", attack=attack, reduce=reduce, backend="stacked")
    torch.testing.assert_close(moved(loop), moved(stacked), rtol=1e-9, atol=1e-9)


def test_a_resumed_run_keeps_its_attack_and_its_reduction(tmp_path: Path) -> None:
    go(fedavg(1), tmp_path / "run", attack=SignFlip(scale=3), reduce=CoordinateMedian())
    for words, other in {
        "another attack": {"attack": SignFlip(scale=4), "reduce": CoordinateMedian()},
        "another reduction": {"attack": SignFlip(scale=3), "reduce": Mean()},
    }.items():
        with pytest.raises(ValueError, match=f"began with {words}"):
            go(fedavg(2), tmp_path / "run", resume=True, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["scaffold", "fedper", "fable", "ditto", "fedprox", "fedbn"])
@pytest.mark.parametrize("reduce", [CoordinateMedian(), MultiKrum(1), NormBound()], ids=["median", "multikrum", "normbound"])
def test_other_methods_run_through_the_same_seam(name: str, reduce: Reduce, tmp_path: Path) -> None:
    from cases import norm_net

    knobs = {"anchors": 4} if name == "fable" else {}
    plan = getattr(methods, name)(rounds=2, training=TRAINING, **knobs)
    net = norm_net() if name == "fedbn" else toy.net()
    found = run(
        plan, toy.population(SIZES), net=net, metric=Classification(toy.CLASSES), out=tmp_path / "run", reduce=reduce,
        attack=SignFlip(scale=50), settings=Settings(backend="loop", quiet=True, precision="fp64"),
    )  # fmt: skip
    start = {n: v.double() for n, v in net.params.items()}
    shared = found.state.shared["shared"]
    assert all(torch.isfinite(v).all() and (v - start[n]).norm() < 5 for n, v in shared.items())


def test_scaffolds_control_variates_are_reduced_as_clients_times_the_median(tmp_path: Path) -> None:
    """The server's control moves by 1/N times the "sum", so by the median of the clients' own changes of control."""
    found = go(scaffold(rounds=1, training=TRAINING), tmp_path / "run", reduce=CoordinateMedian())
    own = torch.stack([torch.cat([v.flatten() for v in found.clients[c]["control"].values()]) for c in range(len(SIZES))])
    control = torch.cat([v.flatten() for v in found.state.shared["control"].values()])
    torch.testing.assert_close(control, own.sort(0).values[2], rtol=1e-9, atol=1e-12)  # c_i began at 0


# --- a backdoor, who is counted -----------------------------------------------------------------------------------------------


def test_a_backdoor_is_measured_on_triggered_tests_of_other_classes_and_means_leave_attackers_out(tmp_path: Path) -> None:
    population, net = digits(8, 1.0, 0)
    found = run(
        methods.fedavg(rounds=4, training=Training(optim=SGD(lr=0.3), epochs=5, batch_size=16)), population, net=net,
        metric=Classification(10), out=tmp_path / "run", attack=Backdoor(clients=(0, 5), target=3, scale=4.0),
        settings=Settings(backend="loop", quiet=True, eval_every=4),
    )  # fmt: skip
    rows = [line.split(",") for line in (found.path / "clients.csv").read_text().splitlines()]
    head = {name: i for i, name in enumerate(rows[0])}
    triggered = [row for row in rows[1:] if (row[head["model"]], row[head["split"]]) == ("global", "triggered")]
    for row in triggered:
        y = population.parts[int(row[head["client"]])].test.column("y")
        assert int(row[head["examples"]]) == int((y != 3).sum())
    honest = [float(row[head["accuracy"]]) for row in triggered if int(row[head["client"]]) not in (0, 5)]
    told = found.summary["attack"]
    assert told["backdoor_success"]["global"] == pytest.approx(sum(honest) / len(honest)) and told["backdoor_success"]["global"] > 0.5
    tests = [row for row in rows[1:] if (row[head["model"]], row[head["split"]]) == ("global", "test")]
    means = [float(row[head["accuracy"]]) for row in tests if int(row[head["client"]]) not in (0, 5)]
    assert len(means) == 6 and found.summary["results"]["global"]["accuracy"]["last"] == pytest.approx(sum(means) / 6)
    assert told["attackers"] == [0, 5] and told["private"] is False and told["results_over"] == "the 6 honest clients"


def test_who_attacks_and_how_stands_in_the_run_folder(tmp_path: Path) -> None:
    found = go(fedavg(), tmp_path / "run", attack=SignFlip(scale=3, share=0.4), reduce=TrimmedMean(0.4))
    record = json.loads((found.path / "run.json").read_text())
    assert record["attack"]["is"] == "SignFlip" and record["attack"]["scale"] == 3 and len(record["attack"]["attackers"]) == 2
    assert record["reduce"] == {"is": "TrimmedMean", "fraction": 0.4} == found.summary["reduce"]
    clean = go(fedavg(), tmp_path / "clean")
    assert clean.summary["attack"] is None and clean.summary["reduce"] == {"is": "Mean"}


# --- learning -----------------------------------------------------------------------------------------------------------------


def test_a_sign_flip_breaks_the_mean_and_not_the_median(tmp_path: Path) -> None:
    population, net = digits(10, 1.0, 0)
    accuracy = {}
    for name, attack, reduce in (("clean", None, Mean()), ("mean", SignFlip(scale=10), Mean()), ("median", SignFlip(scale=10), CoordinateMedian())):
        found = run(
            methods.fedavg(rounds=8, training=Training(optim=SGD(lr=0.3), epochs=3, batch_size=16)), population, net=net,
            metric=Classification(10), out=tmp_path / name, reduce=reduce, attack=attack,
            settings=Settings(backend="loop", quiet=True, eval_every=8),
        )  # fmt: skip
        accuracy[name] = found.summary["results"]["global"]["accuracy"]["last"]
    assert accuracy["mean"] < 0.4 * accuracy["clean"] and accuracy["median"] > 0.8 * accuracy["clean"] > 0.6


# --- refusals -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "options", "words"),
    [
        (fedavg(), {"reduce": Krum(2)}, r"Krum\(attackers=2\) needs at least 7 clients in a round, but a cohort of phase 'train' has 5"),
        (methods.fedavg(rounds=1, cohort=Fixed(4)), {"reduce": TrimmedMean(0.2)}, r"needs at least 5 clients in a round.* has 4"),
        (fedavg(), {"reduce": GeometricMedian(), "guards": Guards(clip=1.0, noise=0.5)}, r"needs every client's update, but under noise"),
        (fedavg(), {"reduce": Krum(1), "guards": Guards(clip=1.0, clip_mode="adaptive")}, r"bits by which an adaptive clip counts clients"),
        (methods.local(rounds=1), {"reduce": CoordinateMedian()}, r"CoordinateMedian\(\) would do nothing: no update is averaged by Local\. Use Mean"),
        (methods.local(rounds=1), {"attack": SignFlip()}, r"SignFlip changes updates that are averaged, but none is by Local"),
        (fedavg(), {"attack": Backdoor()}, r"needs larger pictures \[channels, height, width\], found examples of shape"),
        (fedavg(), {"attack": SignFlip(clients=(5,))}, r"Attackers \[5\] do not exist; there are 5 clients"),
    ],
)  # fmt: skip
def test_what_can_not_work_is_refused_when_the_run_is_built(plan: Plan, options: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        go(plan, tmp_path / "run", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
    guards = {"guards": Guards(), **options}
    with pytest.raises(ValueError, match=words):
        check(plan, toy.population(SIZES), net=toy.net(), metric=Classification(toy.CLASSES), **guards)  # type: ignore[arg-type]


def test_robust_reductions_and_secure_sums_exclude_each_other(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from coterie.privacy.secure_sum import SecureSum

    with pytest.raises(ValueError, match=r"Krum\(attackers=1\) needs every client's update, but a secure sum shows the server only the sum"):
        go(fedavg(), tmp_path / "run", reduce=Krum(1), guards=Guards(n_max=30.0, secure=SecureSum(range=2.0)))


def test_a_round_with_too_few_for_krum_is_drawn_again_and_then_the_run_stops(tmp_path: Path) -> None:
    plan = methods.fedavg(rounds=1, training=TRAINING, cohort=Poisson(0.4))  # with seed 0 fewer than five come in both attempts
    with pytest.raises(RunError, match=r"clients back that count, but Krum\(attackers=1\) needs 5"):
        go(plan, tmp_path / "run", reduce=Krum(1), max_attempts=2, sizes=(12,) * 6)


def test_a_phase_of_the_server_alone_needs_no_clients_for_krum(tmp_path: Path) -> None:
    plan = (Phase("idle", 1, FedAvg(training=TRAINING), Nobody()), *fedavg())
    assert moved(go(plan, tmp_path / "run", reduce=Krum(1))).norm() > 0


def test_the_toy_is_what_these_tests_think() -> None:
    assert [len(parts.train) for parts in toy.population(SIZES)] == list(SIZES) and Toy().metric.main == "accuracy"
