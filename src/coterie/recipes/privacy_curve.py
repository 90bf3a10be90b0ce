"""What privacy costs: methods at several epsilons and seeds, each a run of its own, as a table, a picture and numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from coterie.data.examples import Population
from coterie.engine.run import Finish
from coterie.method import Cohort, Plan
from coterie.metrics.classification import Classification
from coterie.models.net import Net
from coterie.privacy.guards import Guards
from coterie.recipes.private import Privacy, told
from coterie.recipes.session import Session
from coterie.report.epsilon_curve import Point, epsilon_curve, epsilon_word

PICTURE, NUMBERS = "accuracy_against_epsilon.svg", "accuracy_against_epsilon.json"
UNPROTECTED = ("local",)  # methods that send nothing: the same at every epsilon

World = tuple[Population, Net]
PlanOf = Callable[[str, Cohort], Plan]


@dataclass(frozen=True)
class Curve:
    """What is compared: the plan of every method, and data and first weights by method and seed."""

    title: str
    methods: tuple[str, ...]
    epsilons: tuple[float | None, ...]
    seeds: tuple[int, ...]
    rounds: int
    clients: int
    rate: float
    plan: PlanOf
    world: Callable[[str, int], World]
    chance: float = 0.1


def read_epsilons(texts: Sequence[str]) -> tuple[float | None, ...]:
    """Numbers above 0; "inf" is no noise."""
    found: list[float | None] = []
    for text in texts:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not value > 0:
            raise ValueError(f"An epsilon must be a number above 0, or inf for no noise, found '{text}'. Use for example --epsilons 1,8,inf.")
        found.append(None if value == math.inf else value)
    if len(set(found)) < len(found):
        raise ValueError(f"An epsilon is given twice in {','.join(texts)}. Give each once.")
    return tuple(found)


def run_curve(session: Session, curve: Curve, privacy: Privacy) -> list[Point]:
    """Every run, after all of them are checked; then table, picture and numbers."""
    if privacy.noised:
        raise ValueError("This recipe runs several epsilons, found one of --epsilon and --noise. Use for example --epsilons 1,8,inf.")
    if privacy.clip is None:
        raise ValueError("This recipe compares guarded runs, found no clip. Leave --clip out for its default.")
    if not 0 < curve.rate <= 1:
        raise ValueError(f"rate must be above 0 and at most 1, found {curve.rate}. Use for example 0.1.")
    guards = guards_of(session, curve, privacy)
    for epsilon in curve.epsilons:
        session.tell(f"epsilon {epsilon_word(epsilon)}: {told(guards[epsilon][1])}")
    for method in curve.methods:
        population, net = curve.world(method, curve.seeds[0])
        for cohort, guard in guards.values():
            session.check(curve.plan(method, cohort), population, net=net, metric=Classification(10), guards=guard, name="none")
    points = []
    for method in curve.methods:
        for epsilon in (None,) if method in UNPROTECTED else curve.epsilons:
            finished = [run_one(session, curve, method, epsilon, seed, guards) for seed in curve.seeds]
            accuracies = tuple(accuracy(finish.summary) for finish in finished)
            noise = 0.0 if method in UNPROTECTED else guards[epsilon][1].noise
            points.append(Point(method, epsilon, accuracies, noise))
            publish(session, curve, points, guards)  # as it grows: a long recipe may be stopped
    if not session.settings.quiet:
        console = Console(highlight=False)
        console.print(table_of(points, curve))
        console.print(f"Picture: {session.out / PICTURE}", soft_wrap=True, markup=False)
    return points


def guards_of(session: Session, curve: Curve, privacy: Privacy) -> dict[float | None, tuple[Cohort, Guards]]:
    """Cohorts and guards by epsilon; without noise the same cohorts are drawn, and updates are clipped all the same."""
    found: dict[float | None, tuple[Cohort, Guards]] = {}
    size = max(1, round(curve.rate * curve.clients))
    sampling = privacy.sampling or "poisson"
    population, _ = curve.world(curve.methods[0], curve.seeds[0])
    for epsilon in dict.fromkeys((*curve.epsilons, None)):
        asked = replace(privacy if epsilon is not None else privacy.without_noise(), epsilon=epsilon, sampling=sampling)
        cohort = asked.cohort(None if size == curve.clients else size, curve.clients)
        found[epsilon] = cohort, asked.guards(cohort, population, curve.rounds, session.settings)
    return found


def run_one(
    session: Session, curve: Curve, method: str, epsilon: float | None, seed: int, guards: Mapping[float | None, tuple[Cohort, Guards]]
) -> Finish:
    population, net = curve.world(method, seed)
    cohort, guard = guards[epsilon]
    sends = method not in UNPROTECTED
    label = f"{method}, epsilon {epsilon_word(epsilon)}" if sends else method
    settings = replace(session.settings, seed=seed, eval_every=max(session.settings.eval_every, curve.rounds // 5))
    return session.run(
        curve.plan(method, cohort), population, net=net, metric=Classification(10), method=label, settings=settings,
        name=f"{method}/{f'epsilon-{epsilon_word(epsilon)}/' if sends else ''}seed-{seed}", guards=guard if sends else Guards(),
    )  # fmt: skip


def accuracy(summary: Mapping[str, object]) -> float:
    """What clients would deploy, on their test parts after the last round: the mean over clients."""
    results = summary["results"]
    assert isinstance(results, Mapping)
    return float(results["personal"]["accuracy"]["last"])


def publish(session: Session, curve: Curve, points: Sequence[Point], guards: Mapping[float | None, tuple[Cohort, Guards]]) -> None:
    budget = next((guard.budget for _, guard in guards.values() if guard.budget is not None), None)
    numbers = {
        "title": curve.title, "chance": curve.chance, "delta": None if budget is None else budget.delta,
        "view": None if budget is None else budget.view, "rounds": curve.rounds, "rate": curve.rate, "clients": curve.clients,
        "seeds": list(curve.seeds), "points": [point.to_json(curve.chance) for point in points],
    }  # fmt: skip
    (session.out / NUMBERS).write_text(json.dumps(numbers, indent=1) + "\n")
    (session.out / PICTURE).write_text(epsilon_curve(points, curve.chance, curve.title))


def table_of(points: Sequence[Point], curve: Curve) -> Table:
    """Accuracies in percent by method and epsilon, with their interval and whether they lie above chance."""
    table = Table(title=f"{curve.title}: accuracy in %", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name, justify in (("method", "left"), ("epsilon", "right"), ("noise", "right"), ("mean", "right"), ("95 % interval", "right"), ("", "left")):
        table.add_column(name, justify="left" if justify == "left" else "right")
    for point in points:
        low, high = point.interval
        between = "" if math.isnan(low) else f"{100 * low:.1f} to {100 * high:.1f}"
        epsilon = "" if point.method in UNPROTECTED else epsilon_word(point.epsilon)
        noise = f"{point.noise:.3g}" if point.noise else "none"
        table.add_row(point.method, epsilon, noise, f"{100 * point.mean:.1f}", between, point.verdict(curve.chance))
    table.caption = f"Over {len(curve.seeds)} seeds; chance is {100 * curve.chance:.0f} %."
    table.caption_justify = "left"
    return table
