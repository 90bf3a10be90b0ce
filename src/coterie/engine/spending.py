"""What a run's clients have let out, written down before it leaves them, so that no stop and no crash makes it free.

`releases.jsonl` only ever grows. Before an attempt of a round may send anything, a line with its whole cohort is on the
disk; when the attempt is over, a second line says who really sent. A run that is killed between the two is charged for
the whole cohort. A resumed run repeats the rounds after its last checkpoint with fresh noise: both times are charged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.method import Cohort, Fixed, Nobody, Poisson
from coterie.privacy.accountant import Budget, Spending, View
from coterie.privacy.accountant.sampled import MISSING, available
from coterie.privacy.guards import Guards
from coterie.privacy.release import Release, Sampling
from coterie.states import ClientId

RELEASES = "releases.jsonl"


class Account:
    """The releases of one run: what was spent, what a next attempt would add, and whether the budget allows it."""

    def __init__(self, path: Path, guards: Guards, num_clients: int, *, attacked: bool = False) -> None:
        self.path = path / RELEASES
        self.guards = guards
        self.num_clients = num_clients
        self.attacked = attacked
        self.spending = Spending(guards.budget or Budget(), num_clients=num_clients)
        self.attempts = 0
        self.charged = 0  # the last round of this process that is charged
        self._begun: dict[int, Release] = {}

    def load(self, known: int) -> None:
        """Charge again what an earlier process of this run has written down; the checkpoint knows of so many attempts."""
        mend_last_line(self.path)
        attempts = read_attempts(self.path)
        if len(attempts) < known:
            raise ValueError(
                f"'{self.path}' tells of {len(attempts)} attempts, but the checkpoint knows of {known}: what was spent is lost. "
                "Restore the file, or start a new run."
            )
        self.attempts = max(attempts, default=-1) + 1
        for release in attempts.values():
            self.spending.add(release)

    def planned(self, round: int, cohort: Cohort, clients: tuple[ClientId, ...], slots: Collection[str]) -> Release | None:
        """What an attempt of this round lets out if all these clients send; nothing where there is no noise, or nothing to send."""
        if not self.guards.private or isinstance(cohort, Nobody) or not slots:
            return None
        sampling, rate = sampling_of(cohort, self.num_clients)
        secure = self.guards.secure is not None
        return self.guards.release(round=round, sampling=sampling, rate=rate, participants=clients, secure=secure)

    def begin(self, planned: Release | None) -> int | None:
        """Write down what is about to leave the clients; returns the attempt's number, for `end`."""
        if planned is None:
            return None
        number = self.attempts
        self._write(number, "begun", planned)
        self._begun[number] = planned
        self.attempts += 1
        return number

    def end(self, attempt: int | None, sent: tuple[ClientId, ...]) -> None:
        """Charge what left the clients."""
        if attempt is None:
            return
        begun = self._begun.pop(attempt)
        release = replace(begun, participants=sent, drawn=len(begun.participants))
        self._write(attempt, "done", release)
        self.spending.add(release)
        self.charged = release.round

    def allows(self, planned: list[Release]) -> bool:
        """Whether these releases stay within the budget."""
        return not planned or not self.spending.plus(planned).exceeds()

    @property
    def budget(self) -> float | None:
        """The epsilon that may be spent."""
        return self.spending.budget.epsilon

    def why_stopped(self) -> str:
        view = self.spending.view(self.spending.budget.view)
        return (
            f"the next one would exceed the budget of epsilon {self.budget:g} ({view.told()} is spent at delta {view.delta:g}, "
            f"{view.name} view)."
        )

    @property
    def protects_nobody(self) -> str | None:
        """Why no epsilon may be claimed, whatever the noise; None where it may."""
        if self.guards.audit_seed is not None:
            return "the noise has an audit seed, so it can be repeated and protects nobody"
        if self.attacked:
            return "the run was attacked, and attackers run no guard, so it is not private"
        return None

    def missing(self, cohorts: Iterable[Cohort]) -> str | None:
        """What a run with noise cannot tell here; None where it can tell everything."""
        sampled = any(sampling_of(cohort, self.num_clients)[0] != "everyone" for cohort in cohorts if not isinstance(cohort, Nobody))
        return f"No amplified epsilon will be told. {MISSING}" if self.guards.private and sampled and not available() else None

    def told(self) -> dict[str, Any]:
        """Epsilon of every view now and delta, for the log of a round; nothing without noise, or where nothing is protected."""
        if not self.spending.num_releases or self.protects_nobody:
            return {}
        views = self.spending.views()
        return {"epsilon": {name: view.epsilon for name, view in views.items()}, "delta": self.spending.budget.delta}

    def summary(self) -> dict[str, Any] | None:
        """The summary's "privacy": what was done to a Message, and what may be claimed."""
        guards = self.guards
        if guards.clip is None:
            return None
        done: dict[str, Any] = {"clip": guards.clip, "noise": guards.noise, "split": guards.split}
        if not guards.private:
            attacked = f"; {self.protects_nobody}" if self.attacked else ""
            return {**done, "epsilon": None, "note": f"clipped, without noise: no epsilon is claimed{attacked}"}
        if (why := self.protects_nobody) is not None:
            return {**done, "epsilon": None, "note": f"clipped and noised, no epsilon is claimed: {why}"}
        views, name = self.spending.views(sizes=True), self.spending.headline()
        head = views[name]
        return {
            **done, "epsilon": head.epsilon, "delta": head.delta, "view": name, "unit": head.unit, "relation": head.relation,
            "sampling": head.sampling, "accountant": head.accountant, "secure_sum": guards.secure is not None,
            "views": {name: view.to_json() for name, view in views.items()}, "releases": self.spending.num_releases,
            "budget": self.budget, "note": note(head, self.num_clients),
        }  # fmt: skip

    def _write(self, attempt: int, state: str, release: Release) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"attempt": attempt, "state": state, **release.to_json()}) + "\n")
            file.flush()
            os.fsync(file.fileno())


def note(view: View, num_clients: int) -> str:
    """One sentence about the number that stands for the run."""
    if view.epsilon is None:
        return f"clipped and noised, not accounted: no epsilon is claimed, because {view.reason}"
    condition = f"; only if {view.only_if}" if view.only_if else ""
    weak = f"; delta is not below 1 / clients = {1 / num_clients:.2g}, so this promises little" if view.delta >= 1.0 / num_clients else ""
    return f"epsilon {view.told()} at delta {view.delta:g}, {view.name} view: against {view.against}{condition}{weak}"


def sampling_of(cohort: Cohort, num_clients: int) -> tuple[Sampling, float]:
    """How a cohort is drawn, in the accountant's words. Named clients are known to everybody."""
    if isinstance(cohort, Poisson) and cohort.rate < 1.0:
        return "poisson", cohort.rate
    if isinstance(cohort, Fixed) and cohort.size < num_clients:
        return "fixed", cohort.size / num_clients
    return "everyone", 1.0


def read_attempts(path: Path) -> dict[int, Release]:
    """Number of an attempt -> what it let out (what it was about to, where it never ended)."""
    attempts: dict[int, Release] = {}
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = text.splitlines()
    for place, line in enumerate(lines, 1):
        try:
            found = json.loads(line)
            number, _ = found.pop("attempt"), found.pop("state")
            attempts[number] = Release.from_json(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if place == len(lines) and not text.endswith("\n"):
                break  # cut short by a crash: before its end was written, nothing had left
            raise ValueError(f"Line {place} of '{path}' is damaged ({error}). Restore the file, or start a new run.") from None
    return attempts


def mend_last_line(path: Path) -> None:
    """End a whole last line that a crash left open, and remove half of one, so that the next one starts on its own."""
    data = path.read_bytes() if path.exists() else b""
    if not data or data.endswith(b"\n"):
        return
    try:
        json.loads(data[data.rfind(b"\n") + 1 :])
    except ValueError:
        os.truncate(path, data.rfind(b"\n") + 1)
    else:
        with path.open("ab") as file:
            file.write(b"\n")


def check_budget(guards: Guards, num_clients: int, phases: Iterable[tuple[Cohort, Collection[str]]]) -> None:
    """Refuse, before the run, a budget that nobody can keep: no accountant, a delta that promises nothing, or too little noise.

    `phases`: how each draws its cohorts, and the slots that its clients send.
    """
    budget, account = guards.budget, Account(Path(), guards, num_clients)
    planned = [release for cohort, slots in phases if (release := account.planned(1, cohort, (0,), slots)) is not None]
    if budget is None or budget.epsilon is None or not planned:
        return
    if budget.delta >= 1.0 / num_clients:
        raise ValueError(
            f"delta must be smaller than 1 / clients = {1.0 / num_clients:.2g}, found {budget.delta:g}: with a larger one, handing "
            f"out one client's data whole would keep the promise. Use for example {0.1 / num_clients:.1g}."
        )
    if (view := Spending(budget, planned).view(budget.view)).epsilon is None:
        raise ValueError(f"A budget of the {view.name} view can't be kept: {str(view.reason).rstrip('.')}. Change that, or leave the budget out.")
    first = Spending(budget, planned[:1]).view(budget.view)
    if first.epsilon is None or first.epsilon > budget.epsilon:
        raise ValueError(
            f"The budget of epsilon {budget.epsilon:g} does not allow one round: that costs {first.told()} ({first.name} view, noise "
            f"{guards.noise:g}). Use more noise; coterie privacy plan tells how much."
        )
