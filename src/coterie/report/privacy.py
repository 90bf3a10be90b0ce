"""What a run promises about its clients' data: the words, the three views as a table, and epsilon over the rounds."""

from __future__ import annotations

import math

from coterie.report import markup
from coterie.report.charts import Line, from_zero, lines, rounds_axis
from coterie.report.plot import Axis, around
from coterie.report.records import Record, as_number, knob_words, number, record, text
from coterie.report.run import Run
from coterie.report.sections import phase_borders

VIEWS = ("local", "central", "amplified")
_FAR_APART = 20.0  # times: views that differ by more are drawn on a logarithmic axis


def privacy_words(run: Run) -> str:
    """What is promised, in words that promise no more. A number called epsilon needs an accountant behind it."""
    return _guard_words(run) + _secure_words(record(run.summary or {}, "secure_sum"))


def _guard_words(run: Run) -> str:
    found = (run.summary or {}).get("privacy") or run.info.get("privacy")
    if isinstance(found, dict) and "clip" in found and found["clip"] is None:
        found = None  # nothing but a secure sum
    if not isinstance(found, dict) or not found:
        return markup.box("No differential privacy. Nothing here bounds what the messages reveal about a client's data.")
    measured = bool(found.get("accountant"))
    apart = ("epsilon", "delta", "views", "note", "budget", "view") if not measured else ("views", "note")
    shown = {name: value for name, value in found.items() if not name.startswith(apart)}
    words = markup.pairs((name.replace("_", " "), text(shown, name)) for name in shown)
    note = text(found, "note")
    if measured:
        return (markup.box(f"{note[:1].upper()}{note[1:]}.") if note else "") + _views_table(found) + words
    why = f" {note[:1].upper()}{note[1:]}." if note else ""
    return (
        markup.box(f"Messages were guarded as below, but no accountant measured it: this run claims no differential privacy.{why}")
        + words
    )


def _views_table(privacy: Record) -> str:
    """All three views, always together."""
    views = record(privacy, "views")
    rows = []
    for name in [name for name in VIEWS if name in views]:
        view = record(views, name)
        epsilon, replaced = as_number(view.get("epsilon")), as_number(view.get("replaced_epsilon"))
        told = epsilon_words(epsilon) if epsilon is not None else text(view, "reason", "no number")
        more = f" ({epsilon_words(replaced)} if replaced)" if replaced is not None else ""
        cells = [markup.word(name), markup.Cell(told + more, strong=name == privacy.get("view"))]
        rows.append([*cells, *(markup.Cell(text(view, key), wrap=True) for key in ("relation", "against", "only_if"))])
    if not rows:
        return ""
    known = as_number(record(views, "amplified").get("sizes_known_epsilon"))
    sizes = f" A reader of the models who also knows every cohort's size: {epsilon_words(known)} if replaced." if known is not None else ""
    unit = f"Unit: {text(privacy, 'unit')}; delta {text(privacy, 'delta')}. Each row holds against its reader only, and only if the last column does.{sizes}"
    head = ["view", "epsilon", "if", "against", "only if"]
    return markup.table(head, rows, words=1) + markup.paragraph(unit, "note")


def epsilon_words(epsilon: float) -> str:
    """A little coarser than the account, and never rounded down: a promise must not look better than it is."""
    decimals = 2 if epsilon < 1000 else 0
    return f"{math.ceil(epsilon * 10**decimals - 1e-9) / 10**decimals:,.{decimals}f}"


def epsilon_figure(run: Run) -> str:
    """Epsilon after every round, of each view, with the budget."""
    curves = []
    for colour, name in enumerate(VIEWS):
        points = [(float(cost.round), cost.epsilon[name]) for cost in run.costs if cost.epsilon.get(name, 0.0) > 0.0]
        curves.append(Line(name, points, colour))
    values = [value for line in curves for _, value in line.points]
    if not values:
        return ""
    budget = number(record(run.summary or {}, "privacy"), "budget")
    if math.isfinite(budget):
        curves.append(Line("budget", [(1.0, budget), (float(max(2, run.rounds_done)), budget)], 7))
        values.append(budget)
    axis = from_zero(around(values, "epsilon so far", lambda value: f"{value:g}"))
    if max(values) > _FAR_APART * min(values):
        axis = Axis(0.8 * min(values), 1.25 * max(values), "epsilon so far (logarithmic)", lambda value: f"{value:g}", log=True)
    title = "Epsilon over the rounds"
    return markup.figure(lines(curves, rounds_axis(run.rounds_done), axis, title, borders=phase_borders(run), read=epsilon_words))


def _secure_words(told: Record) -> str:
    """Secure sums hide single updates, which is another promise than differential privacy."""
    if not told:
        return ""
    words = "Secure sums: in every round the server learned the sum of all updates, and no client's own."
    return markup.paragraph(words) + markup.pairs((name.replace("_", " "), knob_words(value)) for name, value in told.items() if name != "note")
