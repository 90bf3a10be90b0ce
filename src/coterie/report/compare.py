"""Methods side by side: spread over seeds, and whether a difference is more than luck."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from coterie.metrics import Direction, better, over_clients
from coterie.metrics.statistics import TTest, holm, mean_and_deviation, paired, welch
from coterie.report.comparison import Against, Comparison, Correction, Row, Spread, Test, Value
from coterie.report.groups import Group, group_runs
from coterie.report.read import read_runs
from coterie.report.run import Result, Run
from coterie.report.wording import count


def compare(
    folders: Sequence[Path | str],
    *,
    test: Test = "paired",
    correct: Correction = "holm",
    model: str = "personal",
    metric: str | None = None,
    value: Value = "last",
    baseline: str | None = None,
    json_file: Path | str | None = None,
) -> Comparison:
    """Compare the runs in these folders. The baseline is the best method unless one is named."""
    _one_of("test", test, ("paired", "welch"))
    _one_of("correct", correct, ("holm", "none"))
    _one_of("value", value, ("last", "best"))
    runs = [run for folder in folders for run in read_runs(folder)]
    if not runs:
        raise ValueError("There is nothing to compare: no folder was given. Give folders made by coterie run.")
    result = compare_runs(runs, test=test, correct=correct, model=model, metric=metric, value=value, baseline=baseline)
    if json_file is not None:
        _write(Path(json_file), result)
    return result


def compare_runs(
    runs: Sequence[Run],
    *,
    test: Test = "paired",
    correct: Correction = "holm",
    model: str = "personal",
    metric: str | None = None,
    value: Value = "last",
    baseline: str | None = None,
) -> Comparison:
    """`compare` for runs that are read already."""
    metric = metric or runs[0].main
    with_model = [run for run in runs if metric in run.results.get(model, {})]
    if not with_model:
        found = sorted({f"{name} {number}" for run in runs for name, entry in run.results.items() for number in entry})
        raise ValueError(
            f"No run has the metric '{metric}' of the {model} model on test. "
            f"Found: {', '.join(found) or 'no results yet'}. Choose a model and a metric among these."
        )
    missing = [f"{run.method}, seed {run.seed}: no {model} {metric}; left out." for run in runs if run not in with_model]
    groups, notes = group_runs(with_model)
    direction = with_model[0].directions.get(metric, "max")
    rows = {group.label: _row(group, model, metric, direction) for group in groups}
    base = baseline or _best(rows, value, direction)
    if base not in rows:
        raise ValueError(f"The baseline '{base}' is not among the methods. Found: {', '.join(rows)}. Choose one of these.")
    by_label = {group.label: group for group in groups}
    others = [label for label in rows if label != base]
    tests = [_against(by_label[label], by_label[base], model, metric, value, test) for label in others]
    p_values = [against.p for against in tests]
    corrected = holm(p_values) if correct == "holm" else p_values
    for label, against, p in zip(others, tests, corrected, strict=True):
        rows[label] = replace(rows[label], against=replace(against, corrected=p))
        if against.reason:
            notes.append(f"{label} is not tested: {against.reason}")
    ordered = sorted(rows.values(), key=lambda row: _rank(_chosen(row, value), direction))
    return Comparison(metric, model, direction, value, test, correct, base, tuple(ordered), tuple(notes + missing))


def _row(group: Group, model: str, metric: str, direction: Direction) -> Row:
    results = [run.results[model][metric] for run in group.runs]
    num = len(group.runs)
    return Row(
        method=group.label,
        paths=tuple(str(run.path) for run in group.runs),
        seeds=group.seeds,
        last=_spread(group, results, model, metric, "last", direction),
        best=_spread(group, results, model, metric, "best", direction),
        worst10=sum(result.worst10 for result in results) / num,
        bytes_up=sum(run.bytes("up") for run in group.runs) / num,
        bytes_down=sum(run.bytes("down") for run in group.runs) / num,
        seconds=sum(run.seconds for run in group.runs) / num,
    )


def _spread(group: Group, results: list[Result], model: str, metric: str, value: Value, direction: Direction) -> Spread:
    values = tuple(result.last if value == "last" else result.best for result in results)
    if len(values) > 1:
        return Spread(*mean_and_deviation(values), "seeds", values)
    clients = over_clients(_clients(group.runs[0], model, metric, value).values(), direction)
    return Spread(values[0], clients.std, "clients", values)


def _clients(run: Run, model: str, metric: str, value: Value) -> dict[tuple[str, int], float]:
    """(client, number of its test examples) -> its number at the last or the chosen round."""
    rows = run.last_clients(model)
    if value == "best":
        chosen = run.results[model][metric].best_round
        rows = [row for row in run.clients if (row.model, row.split, row.round) == (model, "test", chosen)]
    return {(row.client, row.examples): row.values.get(metric, math.nan) for row in rows}


def _against(group: Group, base: Group, model: str, metric: str, value: Value, test: Test) -> Against:
    own, other = _seed_values(group, model, metric, value), _seed_values(base, model, metric, value)
    difference = sum(own.values()) / len(own) - sum(other.values()) / len(other)
    untested = Against(difference, math.nan, math.nan, math.nan, math.nan, 0, "seeds")
    common = sorted(own.keys() & other.keys())
    if test == "welch" and min(len(own), len(other)) >= 2:
        return _tested(welch(list(own.values()), list(other.values())), len(own) + len(other), "seeds")
    if test == "paired" and len(common) >= 2:
        return _tested(paired([own[seed] for seed in common], [other[seed] for seed in common]), len(common), "seeds")
    if max(len(own), len(other)) > 1:
        few = f"{count(len(common), 'seed')} in common" if test == "paired" else f"{len(own)} and {len(other)} seeds"
        return replace(untested, reason=f"{few}, but a test over seeds needs 2. Run the same seeds for both.")
    mine, theirs = (_clients(side.runs[0], model, metric, value) for side in (group, base))
    both = [key for key in mine if key in theirs and math.isfinite(mine[key]) and math.isfinite(theirs[key])]
    same_clients = {client for client, _ in mine} == {client for client, _ in theirs}
    if not same_clients or mine.keys() != theirs.keys():
        return replace(untested, reason="one seed each, and their clients do not hold the same test examples.")
    if len(both) < 2:
        return Against(
            **{**vars(untested), "reason": f"one seed each and {count(len(both), 'client')} in common. Run more seeds."}
        )
    over = [mine[key] for key in both], [theirs[key] for key in both]
    return _tested(paired(*over) if test == "paired" else welch(*over), len(both), "clients")


def _tested(result: TTest, num: int, over: str) -> Against:
    reason = f"the {over} do not vary, so there is no spread to test against." if math.isnan(result.p) else ""
    return Against(result.difference, result.low, result.high, result.p, result.p, num, over, reason)


def _seed_values(group: Group, model: str, metric: str, value: Value) -> dict[int, float]:
    results = {run.seed: run.results[model][metric] for run in group.runs}
    return {seed: result.last if value == "last" else result.best for seed, result in results.items()}


def _chosen(row: Row, value: Value) -> float:
    return row.last.mean if value == "last" else row.best.mean


def _rank(value: float, direction: Direction) -> float:
    """A sort key: the best first, unknown last."""
    if math.isnan(value):
        return math.inf
    return -value if direction == "max" else value


def _best(rows: dict[str, Row], value: Value, direction: Direction) -> str:
    best = next(iter(rows))
    for label, row in rows.items():
        if better(_chosen(row, value), _chosen(rows[best], value), direction):
            best = label
    return best


def _one_of(name: str, found: str, known: tuple[str, ...]) -> None:
    if found not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, found '{found}'. Choose one of these.")


def _write(path: Path, comparison: Comparison) -> None:
    try:
        path.write_text(json.dumps(comparison.to_json(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"The comparison cannot be written to '{path}' ({error.strerror}). Choose a path that you may write."
        ) from error
