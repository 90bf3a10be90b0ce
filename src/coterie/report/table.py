"""The table at the end of a run, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from coterie.report.comparison import terminal_table
from coterie.report.groups import Group, best_group, group_runs, mean
from coterie.report.read import read_runs
from coterie.report.run import MODELS, Run
from coterie.report.wording import NOTHING, bare, bare_spread, count, duration, megabytes, metric_name, unit


def final_table(folder: Path | str) -> Table | None:
    """Methods by models for a recipe of several runs, models by metrics for a single one; None before any result."""
    runs = [run for run in read_runs(folder) if run.results]
    if not runs:
        return None
    groups, notes = group_runs(runs)
    return _of_one(runs[0]) if len(runs) == 1 else _of_many(groups, notes)


def _of_many(groups: Sequence[Group], notes: Sequence[str]) -> Table:
    main = groups[0].main
    models = [model for model in MODELS if any(group.results(model) for group in groups)]
    judged = models[0]
    table = terminal_table(f"{metric_name(main)}{unit(main)} on the clients' test parts, last round")
    table.padding = (0, 1, 0, 0)  # eighty columns are few: a cell that wraps is read wrongly
    table.add_column("method", overflow="fold")
    for name in [*models, "worst", "MB", "time"]:
        table.add_column(name, justify="right", no_wrap=True)
    best = best_group(groups, judged)
    for group in groups:
        cells = [bare_spread(*group.spread(model), main) for model in models]
        worst = bare(mean([result.worst10 for result in group.results(judged)]), main)
        cost = [megabytes(group.bytes("up") + group.bytes("down")), duration(group.seconds)]
        table.add_row(group.label, *cells, worst, *cost, style="bold" if group is best else "")
    seeds = max(len(group.runs) for group in groups)
    spread = count(seeds, "seed") if seeds > 1 else "clients"
    caption = f"± over {spread}; worst: {judged}, worst 10 % of clients; MB: up and down."
    table.caption = "\n".join([caption, *notes])
    return table


def _of_one(run: Run) -> Table:
    metrics = [metric for metric in run.metrics() if any(metric in found for found in run.results.values())]
    table = terminal_table(
        f"{run.method}: test parts of {count(run.num_clients, 'client')}, last round, mean ± std over clients"
    )
    table.add_column("model", no_wrap=True)
    for metric in metrics:
        table.add_column(metric_name(metric, inside=True) + unit(metric).removeprefix(" in"), justify="right")
    for name in ("worst", "best"):
        table.add_column(name, justify="right")
    for model in run.models():
        found = run.results.get(model, {})
        cells = [bare_spread(found[m].last, found[m].std, m) if m in found else NOTHING for m in metrics]
        result = found.get(run.main)
        ends = [bare(result.worst10, run.main), bare(result.best, run.main)] if result else [NOTHING, NOTHING]
        table.add_row(model, *cells, *ends)
    traffic = f"{megabytes(run.bytes('up'))} MB up, {megabytes(run.bytes('down'))} MB down"
    legend = f"worst 10 % of clients and best round on validation: {metric_name(run.main, inside=True)}."
    table.caption = f"{legend}\n{traffic}, {count(run.rounds_done, 'round')} in {duration(run.seconds)}."
    return table
