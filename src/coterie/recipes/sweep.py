"""`coterie sweep`: every combination of some values, over several seeds, and the best one by validation data."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.text import Text

from coterie.engine.folder import write_json
from coterie.engine.run import RunError
from coterie.engine.settings import Settings
from coterie.metrics import Direction, better
from coterie.metrics.statistics import mean_and_deviation
from coterie.options import arguments_of, show_value
from coterie.recipes.folders import RECIPE_FILE, SWEEP_FILE, claim, default_folder, from_json, give_back, resumed_values
from coterie.recipes.session import Rehearsed, Session
from coterie.report.comparison import terminal_table
from coterie.report.read import find_runs, read_run
from coterie.report.run import Run
from coterie.report.wording import bare_spread, count, metric_name, unit

_LONGEST_NAME = 120


@dataclass(frozen=True)
class Combination:
    """One value for each key of the grid; its folder is `name` ("" where nothing varies)."""

    name: str
    chosen: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """One finished run: its main metric after the last round, on validation and on test parts."""

    method: str
    seed: int
    path: str
    model: str
    metric: str
    direction: Direction
    validation: float
    test: float


@dataclass(frozen=True, eq=False)
class Score:
    """One method in one combination, over all seeds."""

    method: str
    combination: Combination
    outcomes: tuple[Outcome, ...]

    @property
    def first(self) -> Outcome:
        return self.outcomes[0]

    @property
    def validation(self) -> tuple[float, float]:
        """Mean and deviation over seeds."""
        return mean_and_deviation([outcome.validation for outcome in self.outcomes])

    @property
    def test(self) -> tuple[float, float]:
        return mean_and_deviation([outcome.test for outcome in self.outcomes])

    def to_json(self, *, with_test: bool) -> dict[str, Any]:
        seen = ("validation", "test") if with_test else ("validation",)
        return {
            "method": self.method, "combination": self.combination.name, "values": self.combination.chosen,
            "model": self.first.model, "metric": self.first.metric,
            **{split: {"mean": getattr(self, split)[0], "seeds": {o.seed: getattr(o, split) for o in self.outcomes}} for split in seen},
            "runs": [outcome.path for outcome in self.outcomes],
        }  # fmt: skip


@dataclass
class Sweep:
    """What is swept, and how far it is. `done` names the finished parts: `<combination>/seed-<s>`."""

    recipe: str
    values: Mapping[str, Any]  # of every key of the recipe, the same for all combinations where `grid` has no values
    grid: Mapping[str, tuple[Any, ...]]
    seeds: tuple[int, ...]
    settings: Settings
    out: Path
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    known: dict[str, tuple[Outcome, ...]] = field(default_factory=dict)  # by part, read once

    def run(self, function: Callable[..., None], console: Console) -> None:
        """All parts that are not finished yet. A part whose run could not go on (a rate that diverges) can't be chosen."""
        parts = [(combination, seed) for combination in self.combinations() for seed in self.seeds]
        for number, (combination, seed) in enumerate(parts, 1):
            part = part_name(combination, seed)
            if part in self.done:
                continue
            if not self.settings.quiet:
                words = ", ".join([*(f"{key}={show_value(value)}" for key, value in combination.chosen.items()), f"seed {seed}"])
                console.print(f"[bold]Part {number} of {len(parts)}:[/] {escape(words)}")
            session = self.session(combination, seed)
            try:
                session.perform(function)
            except RunError as error:
                self.failed[part] = str(error)
                console.print(f"Left out: {escape(part)}: {escape(str(error))}", soft_wrap=True)
            else:
                self.failed.pop(part, None)
                self.done.append(part)
            self.write()

    def rehearse(self, function: Callable[..., None]) -> None:
        """Load the data of every combination and check its plans, with the first seed: nothing is written or trained."""
        for combination in self.combinations():
            settings = replace(self.settings, seed=self.seeds[0])
            values = self.values_of(combination, self.seeds[0])
            try:
                function(Session(self.recipe, values, settings, self.out, rehearsal=True), **arguments_of(function, values))
            except Rehearsed:
                continue

    def session(self, combination: Combination, seed: int) -> Session:
        path = self.out / part_name(combination, seed)
        values, settings = self.values_of(combination, seed), replace(self.settings, seed=seed)
        return Session.open(self.recipe, values, settings, path, resume=(path / RECIPE_FILE).exists())

    def values_of(self, combination: Combination, seed: int) -> dict[str, Any]:
        """A recipe that repeats over seeds by itself gets the one of this part."""
        own = {"seeds": (seed,)} if "seeds" in self.values else {}
        return {**self.values, **combination.chosen, **own}

    def combinations(self) -> list[Combination]:
        keys = list(self.grid)
        found: dict[str, Combination] = {}
        for values in itertools.product(*self.grid.values()):
            chosen = dict(zip(keys, values, strict=True))
            name = folder_name(chosen)
            if name in found:
                name = f"{name}-{len(found) + 1}"
            found[name] = Combination(name, chosen)
        return list(found.values())

    def write(self) -> None:
        """sweep.json and summary.json, whole at any time: what was asked for, what is there, and what is best so far."""
        scores = self.scores()
        runs = [outcome.path for part in self.done for outcome in self.outcomes(part)]
        write_json(self.out / "summary.json", {"recipe": self.recipe, "runs": runs})
        write_json(self.out / SWEEP_FILE, {
            "recipe": self.recipe, "values": self.values, "grid": self.grid, "seeds": self.seeds, "settings": asdict(self.settings),
            "select": {"split": "validation", "round": "last"},
            "budget": {"combinations": len(self.combinations()), "seeds": len(self.seeds)},
            "done": self.done, "failed": self.failed,
            "scores": [score.to_json(with_test=False) for score in scores],
            "chosen": {method: score.to_json(with_test=True) for method, score in choose(scores).items()},
        })  # fmt: skip

    def outcomes(self, part: str) -> tuple[Outcome, ...]:
        if part not in self.known:
            self.known[part] = tuple(outcome_of(read_run(path), self.out) for path in find_runs(self.out / part))
        return self.known[part]

    def scores(self) -> list[Score]:
        """Every method in every combination of which all seeds are finished."""
        found: list[Score] = []
        for combination in self.combinations():
            parts = [part_name(combination, seed) for seed in self.seeds]
            if not set(parts) <= set(self.done):
                continue
            outcomes = [outcome for part in parts for outcome in self.outcomes(part)]
            for method in dict.fromkeys(outcome.method for outcome in outcomes):
                found.append(Score(method, combination, tuple(o for o in outcomes if o.method == method)))
        return found

    def rendered(self) -> RenderableType:
        """For the terminal: validation means of every combination, the test value of the chosen ones alone."""
        scores = self.scores()
        if not scores:
            reason = next(iter(self.failed.values()), "nothing is finished yet.")
            raise ValueError(f"No combination of this sweep has a result: {reason} Sweep other values.")
        chosen = choose(scores)
        metric = scores[0].first.metric
        table = terminal_table(f"{metric_name(metric)}{unit(metric)} after the last round")
        table.add_column("method", overflow="fold")
        for key in self.grid:
            table.add_column(key, justify="right", overflow="fold")
        for split in ("validation", "test"):
            table.add_column(split, justify="right", no_wrap=True)
        for score in sorted(scores, key=lambda score: list(chosen).index(score.method)):
            best = chosen[score.method] is score
            cells = [show_value(score.combination.chosen[key]) for key in self.grid]
            numbers = [bare_spread(*score.validation, metric), bare_spread(*score.test, metric) if best else ""]
            table.add_row(score.method, *cells, *numbers, style="bold" if best else "")
        return Group(table, *map(Text, self.notes(scores)))

    def notes(self, scores: Sequence[Score]) -> list[str]:
        """What a reader of the table must know."""
        spread = f"± over {count(len(self.seeds), 'seed')}. " if len(self.seeds) > 1 else ""
        by_model: dict[str, list[str]] = {}
        for score in scores:
            by_model.setdefault(score.first.model, []).append(score.method)
        words = [f"{model} model" + (f" ({', '.join(dict.fromkeys(of))})" if len(by_model) > 1 else "") for model, of in by_model.items()]
        notes = [f"{spread}Chosen on validation parts by the {', '.join(words)}: the lines with a test value."]
        tried = Counter(score.method for score in scores)
        if len(set(tried.values())) > 1:
            notes.append("Not the same budget: " + ", ".join(f"{m} {count(n, 'combination')}" for m, n in tried.items()) + ".")
        missing = len(self.combinations()) * len(self.seeds) - len(self.done)
        if missing:
            notes.append(f"{count(missing, 'part')} not finished; a combination counts when all its seeds are.")
        return notes


def open_sweep(
    recipe: str, function: Callable[..., None], values: Mapping[str, Any], grid: Mapping[str, tuple[Any, ...]],
    seeds: tuple[int, ...], settings: Settings, out: Path | None,
) -> Sweep:  # fmt: skip
    """A new sweep: everything is checked, then the folder is claimed."""
    sweep = Sweep(recipe, values, grid, seeds, settings, out or default_folder(f"sweep-{recipe}"))
    made = claim(sweep.out, "sweep")
    try:
        sweep.rehearse(function)
        sweep.write()
    except BaseException:
        give_back(made)
        raise
    return sweep


def reopen_sweep(folder: Path, stored: Mapping[str, Any], given: Mapping[str, Any]) -> Sweep:
    """A sweep as its sweep.json tells it, without the parts whose folders are gone."""
    settings = resumed_values({**stored, "values": {}}, {}, given)[1]
    values = {key: from_json(value) for key, value in stored["values"].items()}
    grid = {key: from_json(several) for key, several in stored["grid"].items()}
    done = [part for part in stored["done"] if (folder / part / "summary.json").exists()]
    return Sweep(stored["recipe"], values, grid, tuple(stored["seeds"]), Settings(**settings), folder, done)


def read_seeds(text: str) -> tuple[int, ...]:
    """0-2 is 0, 1, 2; parts between commas."""
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if last < first:
            raise ValueError(f"--seeds must be whole numbers or ranges, found '{text}'. Use for example 0-2 or 0,3,7.")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds names a seed twice, found '{text}'. Give every seed once.")
    return tuple(seeds)


def folder_name(chosen: Mapping[str, Any]) -> str:
    """key-value pairs that any file system takes."""
    name = "_".join(f"{key}-{show_value(value)}".replace(",", "+") for key, value in chosen.items())
    name = re.sub(r"[^A-Za-z0-9.+_-]+", "-", name)
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def part_name(combination: Combination, seed: int) -> str:
    return "/".join(filter(None, [combination.name, f"seed-{seed}"]))


def outcome_of(run: Run, out: Path) -> Outcome:
    splits = sorted({point.split for point in run.points})
    models = run.models("validation")
    if not models:
        raise ValueError(
            f"'{run.path}' has no validation results to choose by, only {', '.join(splits) or 'nothing'}. "
            "Sweep a recipe whose clients have validation parts."
        )
    model = next((name for name in ("personal", "global") if name in models), models[0])
    values = [last_value(run, model, split) for split in ("validation", "test")]
    path, direction = run.path.relative_to(out).as_posix(), run.directions.get(run.main, "max")
    return Outcome(run.method, run.seed, path, model, run.main, direction, *values)


def last_value(run: Run, model: str, split: str) -> float:
    points = [point for point in run.points if (point.model, point.split) == (model, split)]
    return max(points, key=lambda point: point.round).values.get(run.main, math.nan) if points else math.nan


def choose(scores: Sequence[Score]) -> dict[str, Score]:
    """The best combination of each method by its validation mean; the first of equals, never one without a number."""
    best: dict[str, Score] = {}
    for score in scores:
        held = best.setdefault(score.method, score)
        if better(score.validation[0], held.validation[0], score.first.direction):
            best[score.method] = score
    return best
