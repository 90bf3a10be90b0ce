"""A run under a secure sum: the numbers of the plain run, its bytes, what the server sees, and what is refused before it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import TRAINING, Toy, norm_net
from test_exchange import Poll

from coterie.engine import round as round_module
from coterie.engine.run import Finish, RunError, run
from coterie.engine.settings import Settings
from coterie.message import SCALARS, Message, Slot
from coterie.method import ClientRun, Everyone, Fixed, Hub, Named, Phase, Plan, Poisson, Site
from coterie.methods import fable, fedavg, fedxds, fl_gap, scaffold
from coterie.methods.fedavg import FedAvg
from coterie.privacy.guards import Guards
from coterie.privacy.secure_sum import SecureSum
from coterie.reduce.mean import Fold
from coterie.tensors import Groups

TOY = Toy()
SECURE = Guards(secure=SecureSum(range=4.0), n_max=24)
FLOATS = 6 * 5 + 5 + 5 * 3 + 3  # parameters of the toy net


def go(plan: Plan, out: Path, guards: Guards = Guards(), toy: Toy = TOY, **more: object) -> Finish:
    return run(
        plan, toy.population(), net=toy.net(), metric=toy.metric, out=out, guards=guards,
        settings=Settings(**{"backend": "loop", "quiet": True, "precision": "fp64", **more}),  # type: ignore[arg-type]
    )  # fmt: skip


def apart(one: Finish, other: Finish) -> float:
    """The largest difference of two models at the server."""
    groups = one.state.shared
    assert groups.keys() == other.state.shared.keys()
    return max(float((v - other.state.shared[g][n]).abs().max()) for g, values in groups.items() for n, v in values.items())


def events(finish: Finish, name: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (finish.path / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line.get("event") == name]


def rounds_of(finish: Finish) -> list[dict[str, Any]]:
    return events(finish, "round")


def entries(finish: Finish, round: int, direction: str) -> dict[str, tuple[int, int]]:
    lines = (json.loads(line) for line in (finish.path / "wire.jsonl").read_text().splitlines())
    return {line["slot"]: (line["bytes"], line["clients"]) for line in lines if (line["round"], line["direction"]) == (round, direction)}


# --- the same numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [fedavg, fable, scaffold])
def test_a_run_under_a_secure_sum_is_the_plain_run_but_for_rounding(method: Any, tmp_path: Path) -> None:
    """64 bits: 4 clients, range 4, so f = 58, and one round is off by less than 4 * 2^-58 in each sum."""
    plan = method(rounds=3, training=TRAINING)
    fine = Guards(secure=SecureSum(range=4.0, bits=64), n_max=24)
    plain = go(plan, tmp_path / "plain")
    assert apart(plain, go(plan, tmp_path / "fine", fine)) < 1e-13
    coarse = go(plan, tmp_path / "coarse", SECURE)
    assert 1e-13 < apart(plain, coarse) < 1e-5  # 32 bits: f = 26, three rounds in which small differences grow
    assert rounds_of(coarse)[0]["secure_sum"]["error_of_sum"] == 4 * 2.0**-26


def test_one_round_is_off_by_no_more_than_the_stated_error(tmp_path: Path) -> None:
    """|S/A - s/a| <= (e + |x| e) / (A - e), with e the error of a sum of numbers up to the range, and A in units of the weight's scale."""
    plan = fedavg(rounds=1, training=TRAINING)
    plain, secure = go(plan, tmp_path / "plain"), go(plan, tmp_path / "secure", SECURE)
    error = rounds_of(secure)[0]["secure_sum"]["error_of_sum"]
    weights = (20 + 13 + 9 + 24) / 24
    largest = 4.0
    assert apart(plain, secure) <= (error + largest * error / 4.0) / (weights - error)


def test_averaged_batch_norm_statistics_are_summed_securely_too(tmp_path: Path) -> None:
    plan, toy = fedavg(rounds=2, training=TRAINING, buffers="average"), Toy(net=norm_net)
    fine = Guards(secure=SecureSum(range=4.0, bits=64), n_max=24)
    secure = go(plan, tmp_path / "secure", fine, toy)
    assert "buffers" in secure.state.shared and apart(go(plan, tmp_path / "plain", toy=toy), secure) < 1e-13


@pytest.mark.parametrize("backend", [{"backend": "pool", "workers": 2}, {"backend": "stacked"}])
def test_every_backend_gives_the_same(backend: Mapping[str, object], tmp_path: Path) -> None:
    fine = Guards(secure=SecureSum(range=4.0, bits=64), n_max=24)
    plan = fedavg(rounds=2, training=TRAINING)
    assert apart(go(plan, tmp_path / "loop", fine), go(plan, tmp_path / "other", fine, **backend)) < 1e-9


def test_dropouts_are_recovered_and_the_mean_is_that_of_who_sent(tmp_path: Path) -> None:
    """Whoever is left out of the secure run is not in the plain run's cohort; threshold 3 of 4 allows for one."""
    guards = Guards(secure=SecureSum(range=4.0, bits=64, dropout=0.2), n_max=24)
    seed = next(s for s in range(50) if dropped(s, tmp_path / f"try-{s}", guards) == 1)
    secure = go(fedavg(rounds=1, training=TRAINING), tmp_path / "secure", guards, seed=seed)
    left = [line["client"] for line in events(secure, "client_left_out")]
    came = tuple(client for client in range(4) if client not in left)
    plain = go(fedavg(rounds=1, training=TRAINING, cohort=Named(came)), tmp_path / "plain", seed=seed)
    assert len(came) == 3 and apart(plain, secure) < 1e-13
    assert rounds_of(secure)[0]["returned"] == 3 and set(secure.clients) == set(came)


def dropped(seed: int, out: Path, guards: Guards) -> int:
    """How many vectors are missing in this seed's first round; 0 also where it ended without a result."""
    try:
        found = go(fedavg(rounds=1, training=TRAINING), out, guards, seed=seed, max_attempts=1)
    except RunError:
        return 0
    return 4 - int(rounds_of(found)[0]["secure_sum"]["survivors"])


@dataclass(frozen=True, kw_only=True)
class Isfa(FedAvg):
    """FedAvg whose weights are (21) of PrivFedTalk, bounded: min(n, 16) / 16 * exp(gamma (s - 1)), with made-up scores."""

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from super().client(mine, down, site)
        share = min(len(site.data.train), 16) / 16
        score = torch.tensor([0.1, 0.9, 0.4, 0.7], dtype=torch.float64)[site.client]
        return row, Message(up.groups, weight=share * torch.exp(2.0 * (score - 1.0)))


def test_weights_that_nobody_knows_beforehand_work_exactly(tmp_path: Path) -> None:
    plan = (Phase("train", 2, Isfa(training=TRAINING), Everyone()),)
    guards = Guards(secure=SecureSum(range=4.0, bits=64))
    assert apart(go(plan, tmp_path / "plain"), go(plan, tmp_path / "secure", guards)) < 1e-13


def test_noise_is_the_same_under_the_mask(tmp_path: Path) -> None:
    """clip -> weigh -> noise -> mask: with one audit seed the secure run is the noised run, to the rounding of fixed point."""
    plan = fedavg(rounds=2, training=TRAINING)
    noisy = Guards(clip=1.0, noise=0.5, n_max=24, audit_seed=3)
    plain = go(plan, tmp_path / "plain", noisy)
    secure = go(plan, tmp_path / "secure", Guards(clip=1.0, noise=0.5, n_max=24, audit_seed=3, secure=SecureSum(bits=64)))
    assert apart(plain, secure) < 1e-12
    assert rounds_of(secure)[0]["secure_sum"]["range"] == pytest.approx(1.0 + 8 * 0.5 * 1.01**0.5)
    assert rounds_of(secure)[0]["secure_sum"]["clamped"] == 0


def test_discrete_noise_keeps_its_grid_under_the_mask(tmp_path: Path) -> None:
    """The sum of grid points is a grid point: what is absorbed is the noised run's, with nothing rounded in between."""
    plan = fedavg(rounds=1, training=TRAINING)
    knobs: dict[str, Any] = {"clip": 1.0, "noise": 0.5, "n_max": 24.0, "audit_seed": 3, "mechanism": "discrete"}
    plain = go(plan, tmp_path / "plain", Guards(**knobs))
    assert apart(plain, go(plan, tmp_path / "secure", Guards(**knobs, secure=SecureSum()))) < 1e-13
    with pytest.raises(ValueError, match=r"4 clients in 32 bits counts in steps of .*, coarser than the grid of the discrete noise.*Use 64 bits"):
        go(plan, tmp_path / "coarse", Guards(**{**knobs, "noise": 5000.0}, secure=SecureSum()))


@pytest.mark.parametrize("clip", [2.0, 0.003])
def test_the_bit_of_an_adaptive_clip_is_summed_too_whatever_the_clip(clip: float, tmp_path: Path) -> None:
    plan = fedavg(rounds=3, training=TRAINING)
    knobs: dict[str, Any] = {"clip": clip, "noise": 0.5, "n_max": 24.0, "audit_seed": 3, "clip_mode": "adaptive"}
    plain, secure = go(plan, tmp_path / "plain", Guards(**knobs)), go(plan, tmp_path / "secure", Guards(**knobs, secure=SecureSum(bits=64)))
    assert apart(plain, secure) < 1e-12 * max(1.0, clip)
    clips = [[line["clip"] for line in rounds_of(finish)] for finish in (plain, secure)]
    assert clips[0] == pytest.approx(clips[1], rel=1e-9) and len(set(clips[0])) == 3


def test_under_noise_no_weight_need_travel(tmp_path: Path) -> None:
    plan = fedavg(rounds=2, training=TRAINING)
    knobs: dict[str, Any] = {"clip": 1.0, "noise": 0.5, "n_max": 1.0, "kappa": 0.0, "audit_seed": 3}
    plain, secure = go(plan, tmp_path / "plain", Guards(**knobs)), go(plan, tmp_path / "secure", Guards(**knobs, secure=SecureSum(bits=64)))
    assert apart(plain, secure) < 1e-12


def test_under_noise_a_round_below_the_threshold_is_void_and_charged(tmp_path: Path) -> None:
    """Nothing is absorbed, no row is kept, and the masked vectors that had left their clients are charged."""
    guards = Guards(clip=1.0, noise=0.5, n_max=24, secure=SecureSum(threshold=4, dropout=0.45))
    for seed in range(20):
        finish = go(fedavg(rounds=3, training=TRAINING), tmp_path / str(seed), guards, seed=seed)
        void = events(finish, "round_void")
        if void:
            break
    assert re.match(r"The secure sum of round \d ended without a result: .* Nothing was absorbed\.", void[0]["reason"])
    round = void[0]["round"]
    assert rounds_of(finish)[round - 1]["returned"] == 0
    releases = [json.loads(line) for line in (finish.path / "releases.jsonl").read_text().splitlines()]
    assert len({line["round"] for line in releases}) == 3 and all(line["secure"] for line in releases)
    assert finish.summary["privacy"]["releases"] == 3


def test_under_noise_too_few_for_the_noise_are_never_unmasked(tmp_path: Path) -> None:
    """Threshold 3, but the noise counts on 4: the sum of 3 would carry less of it, so nobody is asked for shares."""
    guards = Guards(clip=1.0, noise=0.5, n_max=24, min_cohort=4, split="share", secure=SecureSum(threshold=3))
    plan = (Phase("train", 1, Crashing(training=TRAINING), Everyone()),)
    finish = go(plan, tmp_path, guards)
    assert "The sum was not unmasked, and nothing was absorbed" in events(finish, "round_void")[0]["reason"]
    assert "secure unmask" not in entries(finish, 1, "up") and entries(finish, 1, "up")["shared"][1] == 3


@dataclass(frozen=True, kw_only=True)
class Crashing(FedAvg):
    """FedAvg whose client 2 crashes."""

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        if site.client == 2:
            raise RuntimeError("no power")
        return (yield from super().client(mine, down, site))


# --- what the server sees ------------------------------------------------------------------------------------------------------------


def test_the_server_folds_one_sum_and_keeps_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folded: list[Message] = []
    add = Fold.add
    monkeypatch.setattr(Fold, "add", lambda self, message: (folded.append(message), add(self, message))[1])
    given: list[object] = []
    absorb = round_module.RoundRunner._absorb
    monkeypatch.setattr(
        round_module.RoundRunner, "_absorb", lambda self, mean, each: (given.append(each), absorb(self, mean, each))[1]
    )
    finish = go(fedavg(rounds=2, training=TRAINING), tmp_path, SECURE)
    assert len(folded) == 2 and given == [{}, {}] and all(line["kept_bytes"] == 0 for line in rounds_of(finish))


def test_the_run_says_how_it_was_protected(tmp_path: Path) -> None:
    finish = go(fedavg(rounds=1, training=TRAINING), tmp_path, SECURE)
    record = json.loads((tmp_path / "run.json").read_text())["privacy"]["secure"]
    assert record == {"threshold": None, "bits": 32, "neighbours": None, "range": 4.0, "dropout": 0.0}
    assert rounds_of(finish)[0]["secure_sum"] == {
        "threshold": 3, "bits": 32, "fraction_bits": 26, "range": 4.0, "error_of_sum": 4 * 2.0**-26, "survivors": 4, "recovered": 0,
        "clamped": 0,
    }  # fmt: skip
    told = finish.summary["secure_sum"]
    assert (told["rounds"], told["threshold"], told["recovered_dropouts"], told["error_of_sum"]) == (1, 3, 0, 4 * 2.0**-26)
    assert "no differential privacy" in told["note"] and finish.summary["privacy"] is None


# --- bytes (spec/wire.md 2.2, W7) -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "precision"), [(32, "fp32"), (32, "fp64"), (64, "fp32")])
def test_masked_payload_is_4_or_8_bytes_per_number_whatever_the_floats(bits: Any, precision: str, tmp_path: Path) -> None:
    """4 (P + 1) + SA_up, one number more for the weight."""
    guards = Guards(secure=SecureSum(range=4.0, bits=bits), n_max=24)
    up = entries(go(fedavg(rounds=1, training=TRAINING), tmp_path, guards, precision=precision), 1, "up")
    assert up["shared"] == (4 * FLOATS * bits // 8, 4) and up["weight"] == (4 * bits // 8, 4)


def sa_up(m: int, answered: int) -> int:
    """spec/wire.md 2.2: two keys, a sealed pair of shares for each other client, a share for each client that is asked about."""
    return 64 + (m - 1) * 100 + 40 * answered


def sa_down(m: int, answered: int) -> int:
    return 64 * m + (m - 1) * 100 + 8 * answered


def test_key_traffic_without_dropouts_is_the_specifications(tmp_path: Path) -> None:
    """Up to the byte; down each key comes with its client's id (8 m more) and a request with a count (4 more)."""
    finish = go(fedavg(rounds=1, training=TRAINING), tmp_path, SECURE)
    traffic = {way: {slot: size for slot, (size, _) in entries(finish, 1, way).items() if slot.startswith("secure")} for way in ("up", "down")}
    assert traffic["up"] == {"secure keys": 4 * 64, "secure shares": 4 * 300, "secure unmask": 4 * 160}
    assert sum(traffic["up"].values()) == 4 * sa_up(4, 4)
    assert sum(traffic["down"].values()) == 4 * (sa_down(4, 4) + 8 * 4 + 4)


# --- too few, and what is refused ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sending(FedAvg):
    """FedAvg of which client 2 sends what it is told."""

    entry: float = float("nan")

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from super().client(mine, down, site)
        bad = {name: torch.full_like(value, self.entry) for name, value in up["shared"].items()}
        return row, up.with_(shared=bad) if site.client == 2 else up


@pytest.mark.parametrize(
    ("entry", "reason"),
    [(float("nan"), "with NaN or infinite entries"), (90.0, "kept its vector back: A coordinate of .* lies beyond the range 4 of the secure sum")],
)
def test_what_can_not_be_encoded_stays_at_its_client_and_the_rest_is_recovered(entry: float, reason: str, tmp_path: Path) -> None:
    plan = (Phase("train", 1, Sending(training=TRAINING, entry=entry), Everyone()),)
    guards = Guards(secure=SecureSum(range=4.0, bits=64), n_max=24)
    secure = go(plan, tmp_path / "secure", guards)
    plain = go(fedavg(rounds=1, training=TRAINING, cohort=Named((0, 1, 3))), tmp_path / "plain")
    assert apart(plain, secure) < 1e-13
    told = events(secure, "client_left_out")
    assert [line["client"] for line in told] == [2]
    assert re.search(reason, told[0]["reason"])
    assert entries(secure, 1, "up")["shared"] == (3 * 8 * FLOATS, 3)


def test_a_round_below_the_threshold_is_drawn_again_and_its_bytes_are_counted(tmp_path: Path) -> None:
    """Threshold 4 of 4: a single dropout ends an attempt; nothing of it is absorbed."""
    guards = Guards(secure=SecureSum(range=4.0, threshold=4, dropout=0.4), n_max=24)
    for seed in range(30):
        finish = go(fedavg(rounds=1, training=TRAINING), tmp_path / str(seed), guards, seed=seed, max_attempts=40)
        repeated = events(finish, "round_repeated")
        if repeated:
            break
    assert re.match(r"The secure sum of round 1 ended without a result: .* fewer than the threshold 4", repeated[0]["reason"])
    assert rounds_of(finish)[0]["secure_sum"]["survivors"] == 4
    assert finish.summary["bytes"]["up"] > sum(size for size, _ in entries(finish, 1, "up").values())  # the entries: of one attempt


def test_a_run_whose_every_attempt_falls_below_the_threshold_stops(tmp_path: Path) -> None:
    guards = Guards(secure=SecureSum(range=4.0, dropout=0.95), n_max=24)
    with pytest.raises(RunError, match=r"The secure sum of round 1 ended without a result.*Tried 3 times"):
        go(fedavg(rounds=1, training=TRAINING), tmp_path, guards)


@dataclass(frozen=True, kw_only=True)
class Odd(FedAvg):
    """FedAvg that also declares something else."""

    name: str
    slot: Slot

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        return {**super().slots(hub), self.name: self.slot}


def odd(name: str, slot: Slot) -> Plan:
    return (Phase("train", 1, Odd(name=name, slot=slot), Everyone()),)


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (fl_gap(rounds=1, input_shape=(6,)), r"FlGap needs every client's own 'shared', but a secure sum reveals the sum only\. Leave out the secure sum, or choose"),
        (fedxds(rounds=1, relevance="gradient"), r"needs every client's own 'shared_examples'"),
        ((Phase("train", 1, Poll(), Everyone()),), r"Poll asks the server 'poll' in the middle of a round, with a Message that a secure sum does not hide"),
        (odd(SCALARS, Slot({"score": ((), torch.float64)}, guard="public")), r"Odd sends the scalars \['score'\], which a secure sum does not hide"),
        (odd("counts", Slot({"n": ((3,), torch.int64)}, reduce="sum")), r"sends 'n' in 'counts' as int64, and a secure sum takes real numbers only"),
        (odd("flags", Slot({"n": ((3,), torch.bool)}, reduce="sum")), r"sends 'n' in 'flags' as bool"),
        (odd("rows", Slot({"n": ((-1, 3), torch.float32)})), r"sends 'n' in 'rows' with a size that is not fixed"),
        (fedavg(rounds=1, cohort=Fixed(2)), r"needs at least 3 clients in a round, found 2"),
    ],
)
def test_what_a_secure_sum_can_not_serve_is_refused_before_the_run(plan: Plan, text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=text):
        go(plan, tmp_path / "run", SECURE)
    assert not (tmp_path / "run").exists()


def test_the_range_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"without a clip must know how large a coordinate can be, found no range\. Set range, for example 8, or a clip"):
        Guards(secure=SecureSum())
    with pytest.raises(ValueError, match=r"Under noise the range of a secure sum follows from clip and noise, found range=3 as well"):
        Guards(clip=1.0, noise=0.5, secure=SecureSum(range=3.0))
    with pytest.raises(ValueError, match=r"sends 'buffers' without a clip, so the range of the secure sum can't be the clip"):
        go(fedavg(rounds=1, buffers="average"), tmp_path / "run", Guards(clip=1.0, secure=SecureSum()), Toy(net=norm_net))


def test_a_weight_needs_a_public_bound(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"With a secure sum a client's weight must be public or bounded, found 24"):
        go(fedavg(rounds=1, training=TRAINING), tmp_path, Guards(secure=SecureSum(range=4.0)))


def test_a_poisson_cohort_of_two_is_drawn_again(tmp_path: Path) -> None:
    plan = fedavg(rounds=4, training=TRAINING, cohort=Poisson(0.6))
    finish = go(plan, tmp_path, SECURE, max_attempts=40)
    assert all(line["secure_sum"]["survivors"] >= 3 for line in rounds_of(finish) if line["cohort"])


def test_a_tight_clip_is_the_range_whatever_the_rounding_of_floats(tmp_path: Path) -> None:
    """All of a clipped change in one coordinate has its length, up to a rounding of float32."""
    guards = Guards(clip=0.01, secure=SecureSum(), n_max=24)
    finish = go(fedavg(rounds=2, training=TRAINING), tmp_path, guards, precision="fp32")
    assert rounds_of(finish)[1]["returned"] == 4 and rounds_of(finish)[1]["secure_sum"]["range"] == pytest.approx(0.01, rel=1e-4)
