"""The page of one run."""

from __future__ import annotations

import math
import statistics

from coterie.report import markup
from coterie.report.attack import attack_words
from coterie.report.media import media_section
from coterie.report.privacy import epsilon_figure, privacy_words
from coterie.report.records import Record, knob_words, record, records, text, whole
from coterie.report.run import MODELS, Event, Run
from coterie.report.sections import clients_section, cost_section, curves_section, data_section
from coterie.report.wording import count, duration, megabytes, metric_name, show, show_spread

MOST_EVENTS = 200
EXPLAINED = {
    "personal": "what each client would use now",
    "global": "the server's model on each client's data",
    "local": "each client's model right after its own training",
}


def run_page(run: Run, *, above: str = "") -> str:
    """The whole file; `above` is a link back to the comparison that this run belongs to."""
    body = [
        _tiles(run),
        markup.section("Results", _results(run)),
        markup.section("Round by round", curves_section(run)),
        markup.section("Client by client", clients_section(run)),
        media_section(run),
        markup.section("Data", data_section([run])),
        markup.section("What it cost", cost_section(run)),
        markup.section("Attack and reduction", attack_words(run)),
        markup.section("Privacy", privacy_words(run) + epsilon_figure(run)),
        markup.section("Left out and warnings", events_table(run.events)),
        markup.section("How it ran", _setup(run)),
    ]
    return markup.document(f"{run.method} on {_data_name(run)}", _head(run, above), "".join(body))


def _head(run: Run, above: str) -> str:
    facts = [clients_words(run), count(run.rounds, "round"), f"seed {run.seed}"]
    stopped = text(run.summary or {}, "stopped")
    going = (f'<div class="badge">{markup.escape(stopped)}</div>' if stopped else "") if run.finished else f'<div class="badge">Not finished: round {run.rounds_done} of {run.rounds}</div>'
    parts = [
        f'<p class="eyebrow">{markup.link(above, "All methods of this recipe")}</p>' if above else "",
        markup.paragraph("coterie" if run.recipe == "unknown" else f"coterie · {run.recipe}", "eyebrow"),
        f"<h1>{markup.escape(run.method)} on {markup.escape(_data_name(run))}</h1>",
        markup.paragraph(", ".join(facts), "lead"),
        markup.paragraph(machine_words(run, text(run.info, "buffers", "none")), "note"),
        going,
    ]
    return "".join(parts)


def clients_words(run: Run) -> str:
    """How many clients and how the data came to them; a partition that says the number itself is enough."""
    partition, clients = text(record(run.info, "population"), "partition"), count(run.num_clients, "client")
    return partition if clients in partition else ", ".join(filter(None, [clients, partition]))


def machine_words(run: Run, buffers: str) -> str:
    """Backend and why, device, precision, buffers, commit: what decides whether numbers can be repeated."""
    info = run.info
    reason = text(info, "backend_reason")
    backend = f"Backend {text(info, 'backend', 'unknown')}{f' ({reason})' if reason else ''}"
    commit = text(info, "commit")
    parts = [
        f"{backend} on {text(info, 'device', 'an unknown device')}",
        f"precision {text(info, 'precision', 'unknown')}",
        f"buffers {buffers}",
        f"commit {commit[:12]}" if commit else "no commit recorded",
    ]
    return ", ".join(parts) + "."


def _data_name(run: Run) -> str:
    return text(record(run.info, "population"), "name", "unknown data")


def _tiles(run: Run) -> str:
    entries: list[tuple[str, str, str, int | None]] = []
    for model in run.models():
        result = run.results.get(model, {}).get(run.main)
        if result is not None:
            name, remark = f"{model} {metric_name(run.main, inside=True)}", f"worst 10 %: {show(result.worst10, run.main)}"
            entries.append((show(result.last, run.main), name, remark, colour_of(model)))
    per_client = f"{megabytes(run.bytes('up') / max(1, run.num_clients))} MB per client"
    entries.append((f"{megabytes(run.bytes('up'))} MB", "sent up", per_client, None))
    entries.append((f"{megabytes(run.bytes('down'))} MB", "sent down", f"{count(run.rounds_done, 'round')}", None))
    entries.append((duration(run.seconds), "whole run", _median_words(run), None))
    return markup.tiles(entries)


def _median_words(run: Run) -> str:
    known = [cost.seconds for cost in run.costs if math.isfinite(cost.seconds)]
    return f"{duration(statistics.median(known))} per round" if known else "no round yet"


def colour_of(model: str) -> int:
    return MODELS.index(model) if model in MODELS else len(MODELS)


def _results(run: Run) -> str:
    rows = []
    for metric in run.metrics():
        named = metric_name(metric)
        for model in run.models():
            result = run.results.get(model, {}).get(metric)
            if result is None:
                continue
            best_round = "" if result.best_round is None else f"round {result.best_round}"
            rows.append(
                [
                    markup.word(named),
                    markup.word(model),
                    markup.Cell(show_spread(result.last, result.std, metric), strong=metric == run.main),
                    markup.Cell(show(result.worst10, metric)),
                    markup.Cell(show(result.best, metric)),
                    markup.Cell(best_round),
                ]
            )
            named = ""
        central = run.curve("global", metric, "central")
        if central:
            last = markup.Cell(show(central[-1][1], metric))
            rows.append([markup.word(named), markup.word("global, central test set"), last, *[markup.Cell("")] * 3])
    if not rows:
        return markup.paragraph("Nothing has been evaluated yet.")
    head = ["", "model", "last round, mean ± std", "worst 10 % of clients", "best on validation", "at"]
    models = "; ".join(f"{model}: {EXPLAINED[model]}" for model in run.models() if model in EXPLAINED)
    note = (
        f"On the clients' test parts, every client counted once. {models[:1].upper()}{models[1:]}. "
        "“Best on validation” is the test value at the round that was best on the clients' validation parts."
    )
    return markup.table(head, rows, words=2) + markup.paragraph(note, "note") + _undefined(run)


def _undefined(run: Run) -> str:
    """How many clients a mean had to leave out because the number does not exist for them."""
    parts = []
    for metric in run.metrics():
        for model in run.models():
            rows = run.last_clients(model)
            missing = sum(math.isnan(row.values.get(metric, math.nan)) for row in rows)
            if missing:
                parts.append(f"{metric_name(metric)} ({model}) is not defined for {missing} of {count(len(rows), 'client')}")
    return markup.paragraph(f"{'; '.join(parts)}: their means are over the others.", "note") if parts else ""


def events_table(events: list[Event], runs: list[str] | None = None) -> str:
    """Clients left out, warnings and whatever else a run wanted to be known; `runs` names the run of each."""
    if not events:
        return ""
    rows = []
    for number, event in enumerate(events[:MOST_EVENTS]):
        cells = [markup.word("" if event.round is None else str(event.round)), markup.word(event.kind.replace("_", " "))]
        cells += [markup.word(event.client or ""), markup.Cell(event.text, wrap=True)]
        rows.append([markup.word(runs[number]), *cells] if runs else cells)
    head = ["run"] * bool(runs) + ["round", "event", "client", "what happened"]
    rest = len(events) - MOST_EVENTS
    more = markup.paragraph(f"{rest:,} more in metrics.jsonl.", "note") if rest > 0 else ""
    return markup.table(head, rows, words=len(head)) + more


def _setup(run: Run) -> str:
    phases = records(run.info, "methods")
    parts = []
    for phase in phases:
        title = text(phase, "name", run.method)
        if len(phases) > 1 or text(phase, "phase") not in ("", "train"):
            title = f"{text(phase, 'phase')}: {title}"
        facts = [count(whole(phase, "rounds"), "round"), text(phase, "cohort")] if "rounds" in phase else []
        parts.append(
            f"<h3>{markup.escape(title)}</h3>{markup.paragraph(', '.join(filter(None, facts)), 'note') if facts else ''}"
        )
        if off := text(phase, "switched_off"):
            parts.append(markup.paragraph(f"Mind: {off}."))
        parts.append(knob_list(record(phase, "knobs")) or markup.paragraph("No knobs.", "note"))
    values = record(run.info, "values")
    parts.append(f"<h3>Values of the recipe</h3>{knob_list(values)}" if values else "")
    parts.append(f"<h3>Versions</h3>{knob_list(record(run.info, 'versions'))}" if record(run.info, "versions") else "")
    return "".join(parts)


def knob_list(knobs: Record) -> str:
    return markup.pairs((name, knob_words(value)) for name, value in knobs.items() if name != "is")
