"""The parts of a run's page that hold pictures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from coterie.metrics import better
from coterie.report import markup
from coterie.report.charts import Dots, Line, client_dots, from_zero, lines, quantiles, rounds_axis
from coterie.report.partition_picture import partition_svg
from coterie.report.plot import Axis, around
from coterie.report.records import record, records, strings, text
from coterie.report.run import MODELS, ClientResult, Run
from coterie.report.wording import count, duration, is_share, megabytes, metric_name, reader, show, show_tick

MOST_COLUMNS = 150  # clients drawn one by one; more become a curve
MOST_CLIENT_ROWS = 500


def metric_axis(values: Sequence[float], metric: str, label: str = "") -> Axis:
    """An axis that fits the values; shares stay within 0 and 1."""
    floor, ceiling = (0.0, 1.0) if is_share(metric) else (None, None)
    return around(values, label or metric_name(metric), lambda value: show_tick(value, metric), floor=floor, ceiling=ceiling)


def first_rounds(run: Run) -> dict[str, int]:
    """The round in which each phase begins."""
    first: dict[str, int] = {}
    for cost in run.costs:
        first[cost.phase] = min(first.get(cost.phase, cost.round), cost.round)
    return first


def phase_borders(run: Run) -> list[tuple[float, str]]:
    """Where each phase begins; nothing for a run of one phase."""
    first = first_rounds(run)
    return [(float(max(1, round)), name) for name, round in first.items()] if len(first) > 1 else []


def curves_section(run: Run) -> str:
    """Every metric over the rounds: test drawn through, validation dashed, the chosen round ringed."""
    figures = []
    for metric in run.metrics():
        series = []
        for model in run.models():
            colour = MODELS.index(model) if model in MODELS else len(MODELS)
            test, validation = run.curve(model, metric), run.curve(model, metric, "validation")
            result = run.results.get(model, {}).get(metric)
            ring = None
            if metric == run.main and result is not None and result.best_round is not None and math.isfinite(result.best):
                ring = (float(result.best_round), result.best)
            series.append(Line(model, test, colour, mark=ring))
            series.append(Line(f"{model}, validation", validation, colour, faint=True))
        central = run.curve("global", metric, "central")
        series.append(Line("central test set", central, 3))
        figures.append(_curve_figure(run, metric, series))
    loss = [(float(cost.round), cost.train_loss) for cost in run.costs if math.isfinite(cost.train_loss)]
    if loss:
        axis = from_zero(around((value for _, value in loss), "Loss while training", lambda value: f"{value:.4g}"))
        picture = lines(
            [Line("training", loss, 7)], rounds_axis(run.rounds_done), axis, "Training loss", borders=phase_borders(run)
        )
        figures.append(markup.figure(picture))
    note = "Drawn through: test. Dashed: validation. Ring: the round chosen on validation. Means over clients."
    return markup.grid(figure for figure in figures if figure) + (markup.paragraph(note, "note") if figures else "")


def _curve_figure(run: Run, metric: str, series: list[Line]) -> str:
    values = [value for line in series for _, value in line.points]
    if not values:
        return ""
    axis = metric_axis(values, metric)
    title = f"{metric_name(metric)} over the rounds"
    return markup.figure(
        lines(series, rounds_axis(run.rounds_done), axis, title, borders=phase_borders(run), read=reader(metric))
    )


def clients_section(run: Run) -> str:
    """How the clients differ: each one's models at the last round."""
    by_model = {model: {row.client: row for row in run.last_clients(model)} for model in run.models()}
    by_model = {model: rows for model, rows in by_model.items() if rows}
    if not by_model:
        return ""
    first = {client: row for rows in by_model.values() for client, row in rows.items()}
    clients = list(first)
    names = [first[client].name for client in clients]
    series = [
        Dots(model, [_value(rows.get(client), run.main) for client in clients], MODELS.index(model) if model in MODELS else 3)
        for model, rows in by_model.items()
    ]
    known = [value for dots in series for value in dots.values if math.isfinite(value)]
    if not known:
        return ""
    title = f"{metric_name(run.main)} of each client, test, round {next(iter(first.values())).round}"
    axis = metric_axis(known, run.main, f"{metric_name(run.main)}, test")
    draw = client_dots if len(clients) <= MOST_COLUMNS else quantiles
    caption = _gain_words(run, series)
    return markup.figure(
        draw(names, series, axis, title) if draw is client_dots else quantiles(series, axis, title), caption, wide=True
    ) + (markup.folded(f"All numbers of {count(len(clients), 'client')}", _client_table(run, by_model, clients)))


def _value(row: ClientResult | None, metric: str) -> float:
    return math.nan if row is None else row.values.get(metric, math.nan)


def _gain_words(run: Run, series: list[Dots]) -> str:
    """For how many clients the personal model is the better one."""
    by_name = {dots.name: dots.values for dots in series}
    own = by_name.get("personal")
    if own is None:
        return ""
    direction = run.directions.get(run.main, "max")
    parts = []
    for other in ("local", "global"):
        pairs = [(a, b) for a, b in zip(own, by_name.get(other, []), strict=False) if math.isfinite(a) and math.isfinite(b)]
        if pairs:
            wins = sum(better(a, b, direction) for a, b in pairs)
            ties = sum(a == b for a, b in pairs)
            tied = f" (equal for {ties})" if ties else ""
            parts.append(f"better than the {other} one for {wins} of {count(len(pairs), 'client')}{tied}")
    return f"The personal model is {' and '.join(parts)}." if parts else ""


def _client_table(run: Run, by_model: dict[str, dict[str, ClientResult]], clients: list[str]) -> str:
    sizes = {size.name: size for size in run.population}
    rows = []
    for client in clients[:MOST_CLIENT_ROWS]:
        found = {model: by_model[model].get(client) for model in by_model}
        row = next(row for row in found.values() if row is not None)
        train = sizes[row.name].train if row.name in sizes else None
        cells = [markup.word(row.name), markup.Cell("" if train is None else f"{train:,}"), markup.Cell(f"{row.examples:,}")]
        rows.append(cells + [markup.Cell(show(_value(found[model], run.main), run.main)) for model in by_model])
    rest = len(clients) - MOST_CLIENT_ROWS
    more = markup.paragraph(f"{rest:,} more in clients.csv.", "note") if rest > 0 else ""
    return markup.table(["client", "train", "test", *by_model], rows) + more


def data_section(runs: Sequence[Run]) -> str:
    """Which classes each client holds. Several runs share one picture; where their seeds part the data, the first is shown."""
    run = runs[0]
    sizes = run.population
    if not sizes:
        return ""
    trains = sorted(size.train for size in sizes)
    smallest, median, largest = trains[0], statistics.median(trains), trains[-1]
    validation, test = sum(size.validation for size in sizes), sum(size.test for size in sizes)
    words = (
        f"{count(len(sizes), 'client')} with {smallest:,} to {largest:,} training examples (median {median:,.0f}), "
        f"{sum(trains):,} in all; {validation:,} for validation and {test:,} for test."
    )
    if any(other.population != run.population for other in runs):
        words += f" The seeds part the data differently; the picture shows seed {run.seed}."
    picture = ""
    if sizes[0].counts and len({len(size.counts) for size in sizes}) == 1:
        classes = strings(record(run.info, "population"), "classes") or [str(i) for i in range(len(sizes[0].counts))]
        svg = partition_svg([size.counts for size in sizes], [size.name for size in sizes], classes)
        picture = f'<figure class="wide"><div class="partition">{svg}</div></figure>'
    return markup.paragraph(words) + _leak_words(run) + picture


def _leak_words(run: Run) -> str:
    """What the leak check of the data found, where the run says that there was one."""
    if not isinstance(run.info.get("leak_check"), list):
        return ""
    found = [text(finding, "text") for finding in records(run.info, "leak_check")]
    return markup.paragraph(f"Leak check: {'; '.join(found) or 'nothing found'}.", "note")


def cost_section(run: Run) -> str:
    """Bytes and seconds side by side, then which slots the bytes are."""
    figures = [_bytes_figure(run), _seconds_figure(run)]
    return markup.grid(figure for figure in figures if figure) + _cost_words(run) + _slot_table(run)


def _bytes_figure(run: Run) -> str:
    if not run.bytes("up") and not run.bytes("down"):
        return ""
    series = []
    for colour, direction in enumerate(("up", "down")):
        so_far = [(round, total / 1e6) for round, total in cumulative_bytes(run, direction)]
        series.append(Line(direction, so_far, colour))
    values = (total for line in series for _, total in line.points)
    axis = from_zero(around(values, "MB so far, all clients", lambda value: f"{value:g}"))
    title, borders = "Bytes over the rounds", phase_borders(run)
    return markup.figure(lines(series, rounds_axis(run.rounds_done), axis, title, borders=borders, read=_mb_words))


def _seconds_figure(run: Run) -> str:
    points = [(float(cost.round), cost.seconds) for cost in run.costs if math.isfinite(cost.seconds)]
    if not points:
        return ""
    axis = from_zero(around((value for _, value in points), "seconds per round", lambda value: f"{value:g}"))
    series = [Line("", points, 7)]
    borders = phase_borders(run)
    return markup.figure(lines(series, rounds_axis(run.rounds_done), axis, "Seconds per round", borders=borders, read=duration))


def _cost_words(run: Run) -> str:
    words = [] if run.bytes("up") or run.bytes("down") else ["Nothing crossed between clients and server."]
    cohort = sorted(cost.cohort for cost in run.costs)
    returned, asked = sum(cost.returned for cost in run.costs), sum(cohort)
    if asked:
        size = f"{cohort[0]:,}" if cohort[0] == cohort[-1] else f"{cohort[0]:,} to {cohort[-1]:,}"
        words.append(f"Cohorts of {size} clients; {returned:,} of {asked:,} answers came back.")
    words.append(f"{duration(run.seconds)} in all, evaluation included.")
    return markup.paragraph(" ".join(words), "note")


def _mb_words(value: float) -> str:
    return f"{megabytes(value * 1e6)} MB"


def cumulative_bytes(run: Run, direction: str) -> list[tuple[float, float]]:
    """(round, bytes so far). Content that is sent once has no round of its own: it stands at its phase's beginning."""
    per_round: dict[int, float] = {}
    first = first_rounds(run)
    for line in run.wire:
        if line.direction == direction:
            round = first.get(line.phase, 1) if line.once else line.round
            per_round[round] = per_round.get(round, 0.0) + line.bytes
    if not run.wire:
        per_round = {cost.round: cost.bytes_up if direction == "up" else cost.bytes_down for cost in run.costs}
    total = 0.0
    points = []
    for round in range(1, run.rounds_done + 1):
        total += per_round.get(round, 0.0)
        points.append((float(round), total))
    return points


def _slot_table(run: Run) -> str:
    several = len({line.phase for line in run.wire}) > 1
    totals: dict[tuple[str, str, str, str], tuple[float, int]] = {}
    for line in run.wire:
        name = f"{line.slot} (once)" if line.once else line.slot
        key = (line.phase if several else "", line.exchange or "", name, line.direction)
        size, messages = totals.get(key, (0.0, 0))
        totals[key] = (size + line.bytes, messages + line.clients)
    exchanged = any(key[1] for key in totals)
    rows = []
    for (phase, exchange, slot, direction), (size, messages) in totals.items():
        cells = (
            [markup.word(phase)] * several + [markup.word(exchange)] * exchanged + [markup.word(slot), markup.word(direction)]
        )
        rows.append([*cells, markup.Cell(megabytes(size)), markup.Cell(f"{size / max(1, messages):,.0f}")])
    head = ["phase"] * several + ["exchange"] * exchanged + ["slot", "way"]
    return markup.table([*head, "MB", "bytes per message"], rows, words=len(head)) if rows else ""
