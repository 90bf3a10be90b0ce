"""Which runs are one method with several seeds, and which are not comparable as they stand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.metrics.statistics import mean_and_deviation
from coterie.report.records import Json, knob_words, leaves, record, records, text
from coterie.report.run import Result, Run

# Values that do not make another method: which repetition it is, and how and where it was computed.
NOT_CONDITIONS = frozenset(
    {"seed", "seeds", "methods", "knobs", "out", "resume", "backend", "workers", "devices", "threads", "quiet"}
)


@dataclass(frozen=True, eq=False)
class Group:
    """One method under one set of conditions; one run per seed."""

    label: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)

    @property
    def main(self) -> str:
        return self.runs[0].main

    def results(self, model: str) -> list[Result]:
        """The main metric of this model in every run that has it."""
        found = [run.results.get(model, {}).get(self.main) for run in self.runs]
        return [result for result in found if result is not None]

    def last(self, model: str) -> float:
        return mean([result.last for result in self.results(model)])

    def spread(self, model: str) -> tuple[float, float]:
        """Mean and deviation over seeds; over clients where there is one seed."""
        found = self.results(model)
        if len(found) == 1:
            return found[0].last, found[0].std
        return mean_and_deviation([result.last for result in found]) if found else (math.nan, math.nan)

    def bytes(self, direction: str) -> float:
        return mean([run.bytes(direction) for run in self.runs])

    @property
    def seconds(self) -> float:
        return mean([run.seconds for run in self.runs])


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def best_group(groups: Sequence[Group], model: str) -> Group | None:
    """The group whose main metric of this model is best at the last round."""
    known = [group for group in groups if not math.isnan(group.last(model))]
    sign = -1.0 if groups[0].runs[0].directions.get(groups[0].main) == "min" else 1.0
    return max(known, key=lambda group: sign * group.last(model), default=None)


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """Runs that differ in their seed only belong together; notes say what a reader must know about the rest."""
    notes: list[str] = []
    gathered: dict[str, list[Run]] = {}
    for run in runs:
        gathered.setdefault(_identity(run), []).append(run)
    groups = []
    members = list(gathered.values())
    for own in members:
        same_name = [others[0] for others in members if others[0].method == own[0].method]
        label = own[0].method if len(same_name) == 1 else f"{own[0].method} ({_difference(own[0], same_name)})"
        kept: dict[int, Run] = {}
        for run in own:
            if run.seed in kept:
                notes.append(f"{label}: seed {run.seed} is there twice; '{run.path}' is left out.")
            kept.setdefault(run.seed, run)
        groups.append(Group(label, tuple(kept[seed] for seed in sorted(kept))))
    return groups, notes + _conditions(groups) + _unfinished(groups)


def conditions(run: Run) -> dict[str, str]:
    """What two methods must share to be compared fairly, in words."""
    population = record(run.info, "population")
    return {
        "data": text(population, "name", "unknown"),
        "partition": text(population, "partition", "unknown"),
        "clients": str(run.num_clients),
        "rounds": str(run.rounds),
        "precision": text(run.info, "precision", "unknown"),
    }


def _identity(run: Run) -> str:
    knobs: list[Json] = [dict(method) for method in records(run.info, "methods")]
    return json.dumps([run.recipe, run.method, knobs, _values(run)], sort_keys=True)


def _values(run: Run) -> dict[str, Json]:
    return {name: value for name, value in record(run.info, "values").items() if name not in NOT_CONDITIONS}


def _settings(run: Run) -> dict[str, str]:
    """Everything that may tell two runs of the same method apart."""
    found = {name: knob_words(value) for name, value in _values(run).items()}
    for phase in records(run.info, "methods"):
        found = {**leaves(dict(record(phase, "knobs")), ""), **found}
    return {**found, "recipe": run.recipe}


def _difference(run: Run, others: Sequence[Run]) -> str:
    """The settings in which a run differs from its namesakes, at most three; its folder where none does."""
    own = _settings(run)
    differing = [name for name in own if len({_settings(other).get(name) for other in others}) > 1]
    return ", ".join(f"{name}={own[name]}" for name in differing[:3] if name != "is") or run.path.name


def _conditions(groups: Sequence[Group]) -> list[str]:
    notes = []
    table = {group.label: [conditions(run) for run in group.runs] for group in groups}
    for name in next(iter(table.values()))[0] if table else ():
        values: dict[str, list[str]] = {}
        for label, found in table.items():
            for entry in found:
                values.setdefault(entry[name], []).append(label)
        if len(values) > 1:
            words = "; ".join(f"{value} ({', '.join(dict.fromkeys(labels))})" for value, labels in values.items())
            notes.append(f"Not the same {name} everywhere: {words}.")
    return notes


def _unfinished(groups: Sequence[Group]) -> list[str]:
    return [
        f"{group.label}, seed {run.seed}: not finished, round {run.rounds_done} of {run.rounds}."
        for group in groups
        for run in group.runs
        if not run.finished
    ]
