"""The page of a recipe of several runs: methods side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from coterie.report import markup
from coterie.report.charts import Dots, Line, lines, rounds_axis, strips
from coterie.report.compare import compare_runs
from coterie.report.comparison import difference_words
from coterie.report.groups import Group, best_group, conditions, group_runs, mean
from coterie.report.plot import Axis
from coterie.report.privacy import privacy_words
from coterie.report.records import record, text
from coterie.report.run import MODELS, Run
from coterie.report.sections import cumulative_bytes, data_section, metric_axis
from coterie.report.single import clients_words, events_table, knob_list, machine_words
from coterie.report.wording import count, duration, megabytes, metric_name, reader, show, show_spread, unit

LOG_RATIO = 20  # methods whose bytes differ by more are drawn on a logarithmic axis


def overview_page(path: Path, runs: Sequence[Run]) -> str:
    """Methods by models, curves over each other, what a point costs in bytes, and the way to each run's own page."""
    groups, notes = group_runs(runs)
    models = [model for model in MODELS if any(model in run.models() for run in runs)]
    body = [
        markup.section("Methods", _table(path, groups, models), "".join(markup.paragraph(note, "note") for note in notes)),
        markup.section("Is the difference more than luck?", _significance(runs, models)),
        markup.section("Round by round", _curves(groups, models)),
        markup.section("Accuracy for bytes" if runs[0].main == "accuracy" else "Result for bytes", _cost(groups, models)),
        markup.section("Client by client", _clients(groups, models)),
        markup.section("Data", data_section(runs)),
        markup.section("Privacy", _privacy(groups)),
        markup.section("Left out and warnings", _events(groups)),
        markup.section("How it ran", _setup(runs[0])),
    ]
    return markup.document(f"{runs[0].recipe}: {count(len(groups), 'method')}", _head(runs, groups), "".join(body))


def _head(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    shared = conditions(runs[0])
    seeds = sorted({run.seed for run in runs})
    seed_words = f"seed {seeds[0]}" if len(seeds) == 1 else f"{count(len(seeds), 'seed')} ({', '.join(map(str, seeds))})"
    facts = [clients_words(runs[0]), count(int(shared["rounds"]), "round"), seed_words]
    open_runs = [run for run in runs if not run.finished]
    going = f'<div class="badge">{count(len(open_runs), "run")} not finished</div>' if open_runs else ""
    parts = [
        markup.paragraph(f"coterie · {runs[0].recipe}", "eyebrow"),
        f"<h1>{count(len(groups), 'method')} on {markup.escape(shared['data'])}</h1>",
        markup.paragraph(", ".join(facts), "lead"),
        markup.paragraph(machine_words(runs[0], _buffers(groups)), "note"),
        going,
    ]
    return "".join(parts)


def _buffers(groups: Sequence[Group]) -> str:
    """One word where all methods treat batch-norm statistics alike, one per method otherwise."""
    choices = {group.label: text(group.runs[0].info, "buffers", "none") for group in groups}
    words = set(choices.values())
    return words.pop() if len(words) == 1 else "; ".join(f"{choice} ({label})" for label, choice in choices.items())


def _table(path: Path, groups: Sequence[Group], models: Sequence[str]) -> str:
    main = groups[0].main
    judged = models[0] if models else "personal"
    best = {model: best_group(groups, model) for model in models}
    rows = []
    for group in groups:
        judged_results = group.results(judged)
        cells = [markup.word(group.label)]
        cells += [markup.Cell(show_spread(*group.spread(model), main), strong=group is best[model]) for model in models]
        cells.append(markup.Cell(show(mean([result.worst10 for result in judged_results]), main)))
        cells.append(markup.Cell(show(mean([result.best for result in judged_results]), main)))
        cells += [markup.Cell(megabytes(group.bytes(way))) for way in ("up", "down")]
        cells.append(markup.Cell(duration(group.seconds)))
        links = [
            markup.link(f"{run.path.relative_to(path).as_posix()}/report.html", _link_name(group, run)) for run in group.runs
        ]
        cells.append(markup.Cell(markup=", ".join(links), word=True))
        rows.append(cells)
    judged_head = [f"{judged}, worst 10 %", f"{judged}, best on validation"]
    links_head = "own report" if len(groups[0].runs) == 1 else "report of seed"
    head = ["method", *models, *judged_head, "MB up", "MB down", "time", links_head]
    seeds = max(len(group.runs) for group in groups)
    spread = "mean ± std over seeds" if seeds > 1 else "mean ± std over clients"
    note = f"{metric_name(main)} on the clients' test parts at the last round, {spread}; clients count once. MB: 10⁶ bytes."
    return markup.table(head, rows) + markup.paragraph(note, "note")


def _link_name(group: Group, run: Run) -> str:
    return "open" if len(group.runs) == 1 else str(run.seed)


def _significance(runs: Sequence[Run], models: Sequence[str]) -> str:
    """The comparison of `coterie compare` with its defaults, for the model that the methods are judged by."""
    judged = next((model for model in models if any(run.main in run.results.get(model, {}) for run in runs)), None)
    if judged is None or len({run.method for run in runs}) < 2:
        return ""
    comparison = compare_runs(runs, model=judged)
    rows = []
    for row in comparison.rows:
        difference, p = difference_words(row.against, comparison.metric)
        rows.append(
            [
                markup.word(row.method),
                markup.Cell(show(row.last.mean, comparison.metric)),
                markup.Cell(difference),
                markup.Cell(p),
            ]
        )
    points = ", points" if unit(comparison.metric) else ""
    against = f"against {comparison.baseline}{points} [95 % interval]"
    head = ["method", f"{judged} {metric_name(comparison.metric, inside=True)}", against, "p, Holm"]
    untested = [note for note in comparison.notes if "is not tested" in note]
    return markup.table(head, rows) + "".join(
        markup.paragraph(words, "note") for words in [comparison.method_text(), *untested]
    )


def _curves(groups: Sequence[Group], models: Sequence[str]) -> str:
    """One picture per model, one line per method: the mean over its seeds."""
    main = groups[0].main
    last = max(run.rounds_done for group in groups for run in group.runs)
    figures = []
    for model in models:
        series = [Line(group.label, _mean_curve(group, model), colour) for colour, group in enumerate(groups)]
        values = [value for line in series for _, value in line.points]
        if values:
            axis = metric_axis(values, main, f"{model} {metric_name(main, inside=True)}, test")
            figures.append(
                markup.figure(lines(series, rounds_axis(last), axis, axis.label, height=_height(groups), read=reader(main)))
            )
    return markup.grid(figures)


def _height(groups: Sequence[Group]) -> float:
    """High enough that every method's name finds a place."""
    return max(290.0, 70 + 15.0 * len(groups))


def _mean_curve(group: Group, model: str) -> list[tuple[float, float]]:
    """The mean over the seeds, at the rounds that all of them have."""
    main = group.main
    curves = [dict(run.curve(model, main)) for run in group.runs]
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    return [(float(round), sum(curve[round] for curve in curves) / len(curves)) for round in rounds]


def _cost(groups: Sequence[Group], models: Sequence[str]) -> str:
    """The judged model's number against all bytes so far; a method that sends nothing is a level line."""
    main = groups[0].main
    judged = models[0] if models else "personal"
    paid: list[Line] = []
    free: list[tuple[str, float, int]] = []
    for colour, group in enumerate(groups):
        run = group.runs[0]
        spent = {
            round: up + down
            for (round, up), (_, down) in zip(*(cumulative_bytes(run, way) for way in ("up", "down")), strict=True)
        }
        curve = _mean_curve(group, judged)
        if not curve:
            continue
        if not any(spent.values()):
            free.append((group.label, curve[-1][1], colour))
            continue
        paid.append(
            Line(group.label, [(spent[round] / 1e6, value) for round, value in curve if spent.get(round, 0) > 0], colour)
        )
    ends = [line.points[-1][0] for line in paid if line.points]
    if not ends:
        return ""
    log = max(ends) / min(ends) > LOG_RATIO
    low = min(line.points[0][0] for line in paid if line.points) if log else 0.0
    x = Axis(low, max(ends), "MB so far, up and down, all clients", lambda value: f"{value:,.10g}", log=log)
    level = [Line(f"{name} (sends nothing)", [(low, value), (max(ends), value)], colour) for name, value, colour in free]
    values = [value for line in [*paid, *level] for _, value in line.points]
    axis = metric_axis(values, main, f"{judged} {metric_name(main, inside=True)}, test")
    title = f"{metric_name(main)} against bytes"
    return markup.figure(
        lines([*paid, *level], x, axis, title, width=1060, height=max(320.0, _height(groups)), read=reader(main)), wide=True
    )


def _clients(groups: Sequence[Group], models: Sequence[str]) -> str:
    """Every client of every method, for the judged model at the last round; the first seed where there are several."""
    main = groups[0].main
    judged = models[0] if models else "personal"
    rows = []
    for colour, group in enumerate(groups):
        values = [row.values.get(main, math.nan) for row in group.runs[0].last_clients(judged)]
        if any(math.isfinite(value) for value in values):
            rows.append(Dots(group.label, values, colour))
    if not rows:
        return ""
    axis = metric_axis(
        [value for row in rows for value in row.values], main, f"{judged} {metric_name(main, inside=True)}, test"
    )
    several = any(len(group.runs) > 1 for group in groups)
    note = "One dot per client, the bar is the mean." + (" The first seed of each method." if several else "")
    return markup.figure(strips(rows, axis, "Clients of each method"), note, wide=True)


def _privacy(groups: Sequence[Group]) -> str:
    """One statement where it is the same for all, one per method otherwise."""
    statements: dict[str, list[str]] = {}
    for group in groups:
        statements.setdefault(privacy_words(group.runs[0]), []).append(group.label)
    if len(statements) == 1:
        return next(iter(statements))
    return "".join(f"<h3>{markup.escape(', '.join(labels))}</h3>{words}" for words, labels in statements.items())


def _events(groups: Sequence[Group]) -> str:
    found = [
        (event, group.label if len(group.runs) == 1 else f"{group.label}, seed {run.seed}")
        for group in groups
        for run in group.runs
        for event in run.events
    ]
    return events_table([event for event, _ in found], [name for _, name in found])


def _setup(run: Run) -> str:

    values = markup.pairs([("recipe", text(run.info, "recipe"))]) + knob_list(record(run.info, "values"))
    return f"<h3>Values of the recipe</h3>{values}<h3>Versions</h3>{knob_list(record(run.info, 'versions'))}"
