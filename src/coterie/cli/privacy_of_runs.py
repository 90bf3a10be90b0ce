"""`coterie privacy account RUN`: what runs wrote down, added up again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from coterie.cli.privacy import say, tell_views, told_as_json
from coterie.engine.spending import RELEASES, read_attempts
from coterie.privacy.accountant import Accountant, Budget, Spending, View
from coterie.report.read import find_runs
from coterie.report.records import Record, read_record, record, records

SHARED = "fedxds.json"  # what a recipe that shares examples says of their own guarantee


def account_runs(folders: list[Path], delta: float | None, accountant: Accountant | None, json: Path | None) -> int:
    """Every run in these folders, one after another."""
    accounts = [(path, account_of(path, delta, accountant)) for folder in folders for path in find_runs(folder)]
    content = {"runs": [{"run": str(path), **account} for path, account in accounts]}
    if told_as_json(json, content):
        return 0
    for path, account in accounts:
        tell(path, account)
    return 0


def account_of(path: Path, delta: float | None, accountant: Accountant | None) -> dict[str, Any]:
    """What one run did to its messages, and what that promises."""
    info = read_record(path / "run.json")
    guards = record(info, "privacy")
    why = why_nothing(guards, record(info, "attack"))
    account: dict[str, Any] = {"guards": guards or None, "releases": 0, "views": None, "why": why, "examples": shared_by(path)}
    attempts = read_attempts(path / RELEASES)
    if not attempts:
        return account
    budget = budget_of(guards)
    budget = replace(budget, delta=budget.delta if delta is None else delta, accountant=accountant or budget.accountant)
    spending = Spending(budget, attempts.values(), len(records(record(info, "population"), "clients")) or None)
    views = {name: view.to_json() for name, view in spending.views(sizes=True).items()}
    return {**account, "releases": spending.num_releases, "budget": asdict(budget), "participations": spending.most_participations, "views": views}


def budget_of(guards: Record) -> Budget:
    found = record(guards, "budget")
    return Budget(**found) if found else Budget()  # type: ignore[arg-type]


def why_nothing(guards: Record, attack: Record) -> str | None:
    """Why no number is a promise of this run."""
    if attack:
        return "This run was attacked, and attackers run no guard: it is not private, and the numbers hold for nobody."
    if not guards or guards.get("clip") is None:
        return "This run neither clipped nor noised its messages: nothing bounds what they reveal."
    if not guards.get("noise"):
        return "This run clipped its messages and added no noise: no epsilon."
    if guards.get("audit_seed") is not None:
        return "The noise of this run has an audit seed, so it can be repeated and protects nobody: the numbers hold for fresh noise only."
    return None


def shared_by(path: Path) -> Mapping[str, Any] | None:
    """The guarantee of examples that this run shared, where its recipe states one."""
    place = path.parent / SHARED
    found = record(read_record(place), path.name) if place.exists() else {}
    return found if "guarantee" in found else None


def tell(path: Path, account: Mapping[str, Any]) -> None:
    say(f"{path}")
    if account["why"]:
        say(account["why"])
    if account["views"] is not None:
        say(f"{account['releases']:,} attempts of rounds left clients; the client that sent most sent {account['participations']:,} messages.")
        tell_views({name: View(**view) for name, view in account["views"].items()})
    if account["examples"] is not None:
        tell_examples(account["examples"])


def tell_examples(shared: Mapping[str, Any]) -> None:
    """Metric privacy of shared examples: the curve, the worst case, and to what each applies."""
    promise = shared["guarantee"]
    curve = ", ".join(f"{number(eps)} at {distance}" for distance, eps in promise["a_metric_curve"].items())
    holds = "" if promise["a_holds_for_this_mask"] else " It does not hold for this run's masks, which look at the image."
    say(f"{shared['shared_images']:,} images were shared. Unit: {promise['unit']}; delta {promise['delta']:g}.")
    say(f"By distance (L2), for masks that look at no image: epsilon {curve}.{holds}")
    say(f"Any two images: epsilon {number(promise['b_image_eps'])}; with the label: {number(promise['c_image_and_label_eps'])}.")
    say(f"This covers {promise['covers']}.{' ' + shared['warning'] if 'warning' in shared else ''}")


def number(eps: float | None) -> str:
    return "without a finite bound" if eps is None else f"{eps:,.2f}"
