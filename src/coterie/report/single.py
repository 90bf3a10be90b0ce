"""The page of one run."""

from __future__ import annotations

import math

from coterie.report import page
from coterie.report.media import media_section
from coterie.report.records import Record, record, records, text
from coterie.report.run import MODELS, Event, Run
from coterie.report.sections import clients_section, curves_section, data_section, time_section, wire_section
from coterie.report.wording import count, duration, megabytes, metric_name, plain, show, show_spread

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
        page.section("Results", _results(run)),
        page.section("Round by round", curves_section(run)),
        page.section("Client by client", clients_section(run)),
        media_section(run),
        page.section("Data", data_section([run])),
        page.section("Bytes on the wire", wire_section(run)),
        page.section("Time", time_section(run)),
        page.section("Privacy", privacy_words(run)),
        page.section("Left out and warnings", events_table(run.events)),
        page.section("How it ran", _setup(run)),
    ]
    return page.document(f"{run.method} on {_data_name(run)}", _head(run, above), "".join(body))


def _head(run: Run, above: str) -> str:
    population = record(run.info, "population")
    facts = [count(run.num_clients, "client"), text(population, "partition"), count(run.rounds, "round"), f"seed {run.seed}"]
    going = "" if run.finished else f'<div class="badge">Not finished: round {run.rounds_done} of {run.rounds}</div>'
    back = f'<p class="eyebrow">{page.link(above, "All methods of this recipe")}</p>' if above else ""
    return (
        f"{back}{page.paragraph(f'coterie · {run.recipe}', 'eyebrow')}<h1>{page.escape(run.method)} on {page.escape(_data_name(run))}</h1>"
        f"{page.paragraph(', '.join(fact for fact in facts if fact), 'lead')}{page.paragraph(machine_words(run), 'note')}{going}"
    )


def machine_words(run: Run) -> str:
    """Backend and why, device, precision, buffers, commit: what decides whether numbers can be repeated."""
    info = run.info
    reason = text(info, "backend_reason")
    backend = f"Backend {text(info, 'backend', 'unknown')}{f' ({reason})' if reason else ''}"
    commit = text(info, "commit")
    parts = [
        f"{backend} on {text(info, 'device', 'an unknown device')}",
        f"precision {text(info, 'precision', 'unknown')}",
        f"buffers: {text(info, 'buffers', 'none')}",
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
            remark = f"worst 10 % of clients {show(result.worst10, run.main)}"
            entries.append((show(result.last, run.main), f"{model} {metric_name(run.main)}", remark, colour_of(model)))
    per_client = f"{megabytes(run.bytes('up') / max(1, run.num_clients))} MB per client"
    entries.append((f"{megabytes(run.bytes('up'))} MB", "sent up", per_client, None))
    entries.append((f"{megabytes(run.bytes('down'))} MB", "sent down", f"{count(run.rounds_done, 'round')}", None))
    entries.append((duration(run.seconds), "whole run", _median_words(run), None))
    return page.tiles(entries)


def _median_words(run: Run) -> str:
    known = sorted(cost.seconds for cost in run.costs if math.isfinite(cost.seconds))
    return f"{duration(known[len(known) // 2])} per round" if known else "no round yet"


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
                    page.word(named),
                    page.word(model),
                    page.Cell(show_spread(result.last, result.std, metric), strong=metric == run.main),
                    page.Cell(show(result.worst10, metric)),
                    page.Cell(show(result.best, metric)),
                    page.Cell(best_round),
                ]
            )
            named = ""
        central = run.curve("global", metric, "central")
        if central:
            last = page.Cell(show(central[-1][1], metric))
            rows.append([page.word(named), page.word("global, central test set"), last, *[page.Cell("")] * 3])
    if not rows:
        return page.paragraph("Nothing has been evaluated yet.")
    head = ["", "model", "last round, mean ± std", "worst 10 % of clients", "best on validation", "at"]
    models = "; ".join(f"{model}: {EXPLAINED[model]}" for model in run.models() if model in EXPLAINED)
    note = (
        f"On the clients' test parts, every client counted once. {models[:1].upper()}{models[1:]}. "
        "“Best on validation” is the test value at the round that was best on the clients' validation parts."
    )
    return page.table(head, rows, words=2) + page.paragraph(note, "note") + _undefined(run)


def _undefined(run: Run) -> str:
    """How many clients a mean had to leave out because the number does not exist for them."""
    parts = []
    for metric in run.metrics():
        for model in run.models():
            rows = run.last_clients(model)
            missing = sum(math.isnan(row.values.get(metric, math.nan)) for row in rows)
            if missing:
                parts.append(f"{metric_name(metric)} ({model}) is not defined for {missing} of {count(len(rows), 'client')}")
    return page.paragraph(f"{'; '.join(parts)}: their means are over the others.", "note") if parts else ""


def privacy_words(run: Run) -> str:
    """What is promised, in words that promise no more. A number called epsilon needs an accountant behind it."""
    found = run.info.get("privacy") or (run.summary or {}).get("privacy")
    if not isinstance(found, dict) or not found:
        return page.box("No differential privacy. Nothing here bounds what the messages reveal about a client's data.")
    measured = bool(found.get("accountant"))
    shown = {name: value for name, value in found.items() if measured or not name.startswith(("epsilon", "delta"))}
    words = page.pairs((name.replace("_", " "), text(shown, name)) for name in shown)
    if measured:
        return words
    return (
        page.box("Messages were guarded as below, but no accountant measured it: this run claims no differential privacy.")
        + words
    )


def events_table(events: list[Event], runs: list[str] | None = None) -> str:
    """Clients left out, warnings and whatever else a run wanted to be known; `runs` names the run of each."""
    if not events:
        return ""
    rows = []
    for number, event in enumerate(events[:MOST_EVENTS]):
        cells = [page.word("" if event.round is None else str(event.round)), page.word(event.kind.replace("_", " "))]
        cells += [page.word(event.client or ""), page.Cell(event.text, wrap=True)]
        rows.append([page.word(runs[number]), *cells] if runs else cells)
    head = ["run"] * bool(runs) + ["round", "event", "client", "what happened"]
    rest = len(events) - MOST_EVENTS
    more = page.paragraph(f"{rest:,} more in metrics.jsonl.", "note") if rest > 0 else ""
    return page.table(head, rows, words=len(head)) + more


def _setup(run: Run) -> str:
    phases = records(run.info, "methods")
    parts = []
    for phase in phases:
        title = text(phase, "name", run.method)
        if len(phases) > 1 or text(phase, "phase") not in ("", "train"):
            title = f"{text(phase, 'phase')}: {title}"
        parts.append(f"<h3>{page.escape(title)}</h3>{knob_list(record(phase, 'knobs')) or page.paragraph('No knobs.', 'note')}")
    values = record(run.info, "values")
    parts.append(f"<h3>Values of the recipe</h3>{knob_list(values)}" if values else "")
    parts.append(f"<h3>Versions</h3>{knob_list(record(run.info, 'versions'))}" if record(run.info, "versions") else "")
    return "".join(parts)


def knob_list(knobs: Record) -> str:
    return page.pairs((name, _knob(knobs, name)) for name in knobs)


def _knob(knobs: Record, name: str) -> str:
    value = knobs[name]
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return plain(value) if isinstance(value, float) and value != 0 and abs(value) < 1e-4 else text(knobs, name)
