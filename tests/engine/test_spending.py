"""What a run charges: every attempt that left a client, also of rounds that came to nothing, also when it is killed."""

from __future__ import annotations

import importlib.util
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from play import StopAfter
from toy import CLASSES, net, population

from coterie.engine.run import Finish, Silent, run
from coterie.engine.settings import Settings
from coterie.engine.spending import RELEASES, Account, read_attempts, sampling_of
from coterie.message import Message
from coterie.method import SGD, ClientRun, Cohort, Everyone, Fixed, Named, Plan, Poisson, Site
from coterie.methods.fedavg import FedAvg, Training, fedavg
from coterie.metrics.classification import Classification
from coterie.privacy.accountant import Budget, Spending
from coterie.privacy.gaussian import gaussian_eps
from coterie.privacy.guards import Guards
from coterie.tensors import Groups

TRAINING = Training(optim=SGD(lr=0.1), batch_size=8)
NOISY = Guards(clip=1.0, noise=2.0, n_max=30)


def plan(rounds: int, cohort: Cohort = Everyone()) -> Plan:
    return fedavg(rounds=rounds, training=TRAINING, cohort=cohort)


def go(of: Plan, out: Path, guards: Guards = NOISY, *, resume: bool = False, watcher: Silent | None = None, **settings: Any) -> Finish:
    return run(
        of, population(), net=net(), metric=Classification(CLASSES), out=out, guards=guards, watcher=watcher, resume=resume,
        settings=Settings(**{"backend": "loop", "quiet": True, **settings}),
    )  # fmt: skip


def lines(folder: Path, event: str = "round") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line.get("event") == event]


def test_epsilon_of_every_round_and_view_by_hand(tmp_path: Path) -> None:
    """Four clients, all in every round, full noise 2: 2/2 per round for one Message, and for the sum at least 1/2."""
    finish = go(plan(3), tmp_path / "run")
    for number, line in enumerate(lines(tmp_path / "run"), 1):
        local, central = gaussian_eps(math.sqrt(number) * 2 / 2.0), gaussian_eps(math.sqrt(number) / 2.0)
        assert line["epsilon"] == pytest.approx({"local": local, "central": central, "amplified": central}, rel=1e-9)
    privacy = finish.summary["privacy"]
    assert privacy["epsilon"] == privacy["views"]["local"]["epsilon"] == pytest.approx(gaussian_eps(math.sqrt(3)), rel=1e-9)
    assert privacy["view"] == "local" and "replaced" in privacy["relation"] and privacy["unit"] == "one client's whole data set"
    assert "no secure sum" in privacy["views"]["central"]["only_if"]


def test_a_cohort_that_must_return_guarantees_its_noise(tmp_path: Path) -> None:
    """Without at least three Messages a round is void, so a sum carries the noise of three."""
    finish = go(plan(2), tmp_path / "run", Guards(clip=1.0, noise=2.0, n_max=30, min_cohort=3))
    central = finish.summary["privacy"]["views"]["central"]["epsilon"]
    assert central == pytest.approx(gaussian_eps(math.sqrt(2) / (2.0 * math.sqrt(3))), rel=1e-9)


def test_empty_rounds_are_charged(tmp_path: Path) -> None:
    finish = go(plan(20, Poisson(0.1)), tmp_path / "run")
    sent = [release.participants for release in read_attempts(tmp_path / "run" / RELEASES).values()]
    assert () in sent  # but for one run in a billion: two rounds in three are empty
    assert len(sent) == finish.summary["privacy"]["releases"] == 20
    most = max(sum(client in who for who in sent) for client in range(4))
    assert finish.summary["privacy"]["views"]["local"]["epsilon"] == pytest.approx(gaussian_eps(math.sqrt(most)), rel=1e-9)


@dataclass(frozen=True, kw_only=True)
class Fails(FedAvg):
    """Client 1 never answers; with `always`, everybody stops the run in the second round."""

    stop: bool = False

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        if self.stop and site.round.index == 1:
            raise KeyboardInterrupt
        if site.client == 1:
            raise ValueError("no")
        return (yield from super().client(mine, down, site))


def failing(rounds: int, *, stop: bool = False) -> Plan:
    phase = plan(rounds)[0]
    return (type(phase)(phase.name, rounds, Fails(training=TRAINING, stop=stop), Everyone()),)


def test_only_what_left_is_charged(tmp_path: Path) -> None:
    go(failing(2), tmp_path / "run")
    assert [release.participants for release in read_attempts(tmp_path / "run" / RELEASES).values()] == [(0, 2, 3)] * 2


def test_a_round_that_is_killed_is_charged_with_its_whole_cohort(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        go(failing(3, stop=True), out)
    assert [release.participants for release in read_attempts(out / RELEASES).values()] == [(0, 2, 3), (0, 1, 2, 3)]


def test_a_resumed_run_forgets_nothing_and_pays_twice_for_a_round_that_runs_twice(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        go(plan(4), out, watcher=StopAfter(3), checkpoint_every=2)
    finish = go(plan(4), out, resume=True, checkpoint_every=2)
    assert finish.summary["rounds"] == 4 and finish.summary["privacy"]["releases"] == 5  # the third round sent twice
    assert finish.summary["privacy"]["epsilon"] == pytest.approx(gaussian_eps(math.sqrt(5)), rel=1e-9)


def test_spending_that_was_lost_is_missed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        go(plan(4), out, watcher=StopAfter(2))
    (out / RELEASES).unlink()
    with pytest.raises(ValueError, match=r"tells of 0 attempts, but the checkpoint knows of 2: what was spent is lost"):
        go(plan(4), out, resume=True)


def test_half_a_line_of_a_crash_is_no_release_and_other_damage_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        go(plan(3), out, watcher=StopAfter(1))
    whole = (out / RELEASES).read_text()
    (out / RELEASES).write_text(whole + '{"attempt": 1, "sta')
    assert go(plan(3), out, resume=True).summary["privacy"]["releases"] == 3
    assert len(read_attempts(out / RELEASES)) == 3
    (out / RELEASES).write_text('{"attempt"\n' + whole)
    with pytest.raises(ValueError, match=r"Line 1 of '.*releases.jsonl' is damaged"):
        read_attempts(out / RELEASES)


def test_a_whole_line_whose_end_a_crash_lost_is_kept(tmp_path: Path) -> None:
    """Twice: the file must go on to hold as many attempts as a checkpoint is told of."""
    account = Account(tmp_path, NOISY, 4)
    planned = NOISY.release(round=1, sampling="everyone", rate=1.0, participants=(0, 1))
    account.end(account.begin(planned), (0, 1))
    account.begin(planned)
    path = tmp_path / RELEASES
    path.write_bytes(path.read_bytes()[:-1])
    again = Account(tmp_path, NOISY, 4)
    again.load(1)
    again.end(again.begin(planned), (0,))
    assert again.attempts == 3
    last = Account(tmp_path, NOISY, 4)
    last.load(3)
    assert last.spending.num_releases == 3


def test_the_budget_ends_the_run_before_it_is_exceeded(tmp_path: Path) -> None:
    """Three rounds of the central view fit, the fourth does not; the last round is evaluated and saved like a planned end."""
    three, four = (gaussian_eps(math.sqrt(rounds) / 2.0) for rounds in (3, 4))
    guards = Guards(clip=1.0, noise=2.0, n_max=30, budget=Budget(epsilon=(three + four) / 2, view="central"))
    finish = go(plan(10), tmp_path / "run", guards, eval_every=100, checkpoint_every=100)
    summary = finish.summary
    assert summary["rounds"] == 3 and summary["privacy"]["epsilon"] == pytest.approx(three, rel=1e-9)
    assert summary["stopped"].startswith("Stopped after round 3 of 10: the next one would exceed the budget of epsilon")
    assert {line["round"] for line in finish.evaluations} == {3}
    again = go(plan(10), tmp_path / "run", guards, resume=True, eval_every=100, checkpoint_every=100)
    assert again.summary == summary and len(read_attempts(tmp_path / "run" / RELEASES)) == 3


def test_a_budget_of_the_amplified_view(tmp_path: Path) -> None:
    release = Account(tmp_path, NOISY, 4).planned(1, Poisson(0.3), (0,), ["shared"])
    assert release is not None
    epsilons = [Spending(releases=[release] * rounds).view("amplified").epsilon for rounds in (4, 5)]
    assert epsilons[0] is not None and epsilons[1] is not None
    guards = Guards(clip=1.0, noise=2.0, n_max=30, budget=Budget(epsilon=sum(epsilons) / 2))
    finish = go(plan(9, Poisson(0.3)), tmp_path / "run", guards)
    assert finish.summary["rounds"] == 4
    assert finish.summary["privacy"]["epsilon"] == pytest.approx(epsilons[0], rel=1e-6)


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        (Budget(epsilon=0.5, view="central"), "The budget of epsilon 0.5 does not allow one round: that costs 1.9"),
        (Budget(epsilon=50.0, delta=0.25), "delta must be smaller than 1 / clients = 0.25, found 0.25"),
    ],
)
def test_a_budget_that_nobody_can_keep(tmp_path: Path, budget: Budget, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        go(plan(2), tmp_path / "run", Guards(clip=1.0, noise=2.0, n_max=30, budget=budget))
    with pytest.raises(ValueError, match="A budget of epsilon 8 without noise allows no round"):
        Guards(clip=1.0, budget=Budget(epsilon=8.0))


def test_noise_that_can_be_repeated_gets_no_number(tmp_path: Path) -> None:
    finish = go(plan(2), tmp_path / "run", Guards(clip=1.0, noise=2.0, n_max=30, audit_seed=3))
    assert all("epsilon" not in line for line in lines(tmp_path / "run"))
    assert finish.summary["privacy"]["epsilon"] is None and "views" not in finish.summary["privacy"]
    assert "protects nobody" in finish.summary["privacy"]["note"]
    bare = go(plan(1), tmp_path / "bare", Guards(clip=1.0))
    assert bare.summary["privacy"]["note"] == "clipped, without noise: no epsilon is claimed"
    assert not (tmp_path / "bare" / RELEASES).exists()


def test_how_a_cohort_is_drawn() -> None:
    assert sampling_of(Poisson(0.3), 4) == ("poisson", 0.3)
    assert sampling_of(Fixed(1), 4) == ("fixed", 0.25)
    for everyone in (Everyone(), Named((0, 2)), Fixed(4), Poisson(1.0)):
        assert sampling_of(everyone, 4) == ("everyone", 1.0)


def test_a_run_without_the_accountant_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Listens(Silent):
        def __init__(self) -> None:
            self.notes: list[str] = []

        def note(self, text: str) -> None:
            self.notes.append(text)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    watcher = Listens()
    finish = go(plan(1, Poisson(0.5)), tmp_path / "run", watcher=watcher)
    assert any("No amplified epsilon will be told" in note and "pip install 'coterie[privacy]'" in note for note in watcher.notes)
    views = finish.summary["privacy"]["views"]
    assert views["amplified"]["epsilon"] is None and "dp-accounting" in views["amplified"]["reason"] and views["local"]["epsilon"] is not None
    with pytest.raises(ValueError, match="A budget of the amplified view can't be kept: It needs the package dp-accounting"):
        go(plan(1, Poisson(0.5)), tmp_path / "stops", Guards(clip=1.0, noise=2.0, n_max=30, budget=Budget(epsilon=8.0)))


def test_a_budget_over_phases_that_no_bound_covers_is_refused_before_the_run(tmp_path: Path) -> None:
    """Poisson and fixed cohorts in one run have no common bound here; the second phase alone must not surprise."""
    first, second = plan(2, Poisson(0.5))[0], plan(2, Fixed(2))[0]
    mixed = (first, replace(second, name="later"))
    guards = Guards(clip=1.0, noise=5.0, n_max=30, budget=Budget(epsilon=20.0))
    with pytest.raises(ValueError, match="A budget of the amplified view can't be kept: Poisson cohorts and cohorts of fixed size are mixed"):
        go(mixed, tmp_path / "run", guards)
    fixed = replace(guards, budget=Budget(epsilon=20.0, accountant="pld"))
    with pytest.raises(ValueError, match="pld needs Poisson cohorts; for cohorts of fixed size there is the accountant rdp"):
        go(plan(2, Fixed(2)), tmp_path / "fixed", fixed)
