"""The pictures of a report: lines over rounds, dots over clients, strips over methods."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from coterie.report.plot import Axis, Frame, dash_of, picture, room_for, series_class, spread, words

MOST_NAMES = 30  # client names along an axis
MOST_POINTS = 400  # points of one line that the pointer can read; a longer line is thinned for it, not for the eye


@dataclass(frozen=True)
class Line:
    """One curve; `faint` ones (validation) are drawn dashed and carry no label."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    faint: bool = False
    mark: tuple[float, float] | None = None


@dataclass(frozen=True)
class Dots:
    """One value per client (nan where there is none), in the order of the clients."""

    name: str
    values: Sequence[float]
    colour: int


def lines(
    series: Sequence[Line],
    x: Axis,
    y: Axis,
    title: str,
    *,
    width: float = 520,
    height: float = 290,
    borders: Sequence[tuple[float, str]] = (),
    read: Callable[[float], str] | None = None,
) -> str:
    """Curves with their names at their ends; `borders` are named beginnings of phases."""
    shown = [line for line in series if line.points]
    named = [line for line in shown if not line.faint]
    frame = Frame(
        x, y, width, height, left=room_for((y.show(t) for t in y.ticks(5)), 30), right=room_for(line.name for line in named) + 8
    )
    body = [frame.grid()]
    body += [_border(start, name, number, frame) for number, (start, name) in enumerate(borders)]
    body += [_curve(line, frame) for line in sorted(reversed(shown), key=lambda line: not line.faint)]  # the first on top
    ends = [frame.py(_inside(line.points[-1][1], y)) for line in named]
    for line, end, at in zip(named, ends, spread(ends, frame.top, height - frame.bottom), strict=True):
        tip = frame.px(line.points[-1][0])
        edge = width - frame.right
        if abs(at - end) > 3 or edge - tip > 3:
            body.append(f'<path class="lead" d="M{tip + 4:.1f} {end:.1f}L{edge + 6:.1f} {at:.1f}"/>')
        body.append(words(edge + 9, at + 4, line.name, kind=f"name {series_class(line.colour)}"))
    body.append('<line class="cross" y1="0" y2="0"/>')
    return picture(width, height, "".join(body), title, _readout(shown, frame, read or y.show))


def _border(start: float, name: str, number: int, frame: Frame) -> str:
    """Where a phase begins; neighbours' names stand at two heights, since a phase may last one round."""
    at, low = frame.px(start), frame.height - frame.bottom
    line = f'<line class="border" x1="{at:.1f}" x2="{at:.1f}" y1="{frame.top:.1f}" y2="{low:.1f}"/>'
    return line + words(at + 4, frame.top + 8 + 12 * (number % 2), name, kind="muted small")


def _curve(line: Line, frame: Frame) -> str:
    colour = series_class(line.colour)
    points = [(frame.px(x), frame.py(_inside(y, frame.y))) for x, y in line.points]
    dash = "3 3" if line.faint else dash_of(line.colour)
    pattern = f' stroke-dasharray="{dash}"' if dash else ""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    drawn = f'<path class="line {colour}{" faint" if line.faint else ""}" d="M{path}"{pattern}/>'
    if not line.faint:
        drawn += f'<circle class="dot {colour}" cx="{points[-1][0]:.1f}" cy="{points[-1][1]:.1f}" r="3"/>'
    if line.mark is not None:
        x, y = frame.px(line.mark[0]), frame.py(_inside(line.mark[1], frame.y))
        drawn += f'<circle class="ring {colour}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
    return drawn


def _inside(value: float, axis: Axis) -> float:
    return min(max(value, axis.low), axis.high)


def _readout(series: Sequence[Line], frame: Frame, read: Callable[[float], str]) -> str:
    """What the page's pointer shows: per line its name, colour class and (pixel, x, y) of its points."""
    data = []
    for line in series:
        stride = math.ceil(len(line.points) / MOST_POINTS)
        points = [[round(frame.px(x), 1), frame.x.show(x), read(y)] for x, y in line.points[::stride]]
        data.append({"name": line.name, "colour": series_class(line.colour), "points": points})
    box = [frame.left, frame.top, frame.width - frame.right, frame.height - frame.bottom]
    return json.dumps({"box": box, "x": frame.x.label, "lines": data}, separators=(",", ":"))


def client_dots(
    names: Sequence[str], series: Sequence[Dots], y: Axis, title: str, *, width: float = 1060, height: float = 300
) -> str:
    """One column per client, sorted by the first series; a thin line joins a client's models."""
    order = sorted(range(len(names)), key=lambda i: _sortable(series[0].values[i]))
    x = Axis(-0.7, len(names) - 0.3, f"clients, sorted by {series[0].name}", lambda value: f"{value:g}")
    rotated = len(names) <= MOST_NAMES and any(len(name) > 4 for name in names)
    bottom = 40.0 + (min(64.0, 3.6 * max(map(len, names))) if rotated else 0.0)
    right = room_for(dots.name for dots in series) + 8
    frame = Frame(
        x, y, width, height + bottom - 40, left=room_for((y.show(t) for t in y.ticks(5)), 30), right=right, bottom=bottom
    )
    body = [frame.grid(x_ticks=False)]
    column = frame.px(1) - frame.px(0)
    radius = 4.5 if len(names) <= 60 else 3.0 if len(names) <= 120 else 2.2
    for position, client in enumerate(order):
        at = frame.px(position)
        known = [(dots, dots.values[client]) for dots in series if math.isfinite(dots.values[client])]
        if not known:
            continue
        heights = [frame.py(_inside(value, y)) for _, value in known]
        hint = ", ".join(f"{dots.name} {y.show(value)}" for dots, value in known)
        body.append(f"<g><title>{html.escape(names[client])}: {html.escape(hint)}</title>")
        body.append(f'<line class="join" x1="{at:.1f}" x2="{at:.1f}" y1="{min(heights):.1f}" y2="{max(heights):.1f}"/>')
        for number, ((dots, _), height_of) in enumerate(zip(known, heights, strict=True)):
            aside = (number - (len(known) - 1) / 2) * min(6.0, 0.22 * column)  # equal values must not hide each other
            body.append(
                f'<circle class="dot {series_class(dots.colour)}" cx="{at + aside:.1f}" cy="{height_of:.1f}" r="{radius}"/>'
            )
        body.append("</g>")
        if len(names) <= MOST_NAMES:
            body.append(_client_name(at, frame.height - bottom + 16, names[client], rotated))
    ends = [_end(dots, order, frame) for dots in series]
    for dots, at in zip(series, spread(ends, frame.top, frame.height - bottom), strict=True):
        body.append(words(width - right + 9, at + 4, dots.name, kind=f"name {series_class(dots.colour)}"))
    return picture(width, frame.height, "".join(body), title)


def _client_name(x: float, y: float, name: str, rotated: bool) -> str:
    if not rotated:
        return words(x, y, name, anchor="middle", kind="muted")
    short = name if len(name) <= 16 else f"{name[:15]}…"
    label = words(0, 0, short, anchor="end", kind="muted small")
    return f'<g transform="translate({x + 4:.1f} {y - 4:.1f}) rotate(-40)">{label}</g>'


def _end(dots: Dots, order: Sequence[int], frame: Frame) -> float:
    known = [dots.values[i] for i in order if math.isfinite(dots.values[i])]
    return frame.py(_inside(known[-1], frame.y)) if known else frame.top


def _sortable(value: float) -> float:
    return value if math.isfinite(value) else -math.inf


def quantiles(series: Sequence[Dots], y: Axis, title: str, *, width: float = 1060, height: float = 320) -> str:
    """For many clients: each model's clients sorted by themselves, from the worst to the best."""
    curves = []
    for dots in series:
        known = sorted(value for value in dots.values if math.isfinite(value))
        share = max(1, len(known) - 1)
        curves.append(Line(dots.name, [(100 * i / share, value) for i, value in enumerate(known)], dots.colour))
    x = Axis(0, 100, "share of clients", lambda value: f"{value:.3g} %")
    return lines(curves, x, y, title, width=width, height=height)


def strips(
    rows: Sequence[Dots], x: Axis, title: str, *, width: float = 1060, unit: Literal["client", "seed"] = "client"
) -> str:
    """One row per method, one dot per client, a bar at the mean."""
    left, row_height = room_for(row.name for row in rows), 34.0
    height = 26 + row_height * len(rows) + 40
    frame = Frame(x, Axis(0, 1, "", str), width, height, left=left, right=24, top=26)
    base = height - frame.bottom
    body = []
    for tick in x.ticks(8):
        at = frame.px(tick)
        body.append(f'<line class="rule" x1="{at:.1f}" x2="{at:.1f}" y1="{frame.top:.1f}" y2="{base:.1f}"/>')
        body.append(words(at, base + 18, x.show(tick), anchor="middle", kind="muted"))
    body.append(words(width - 24, height - 4, x.label, anchor="end", kind="axis"))
    for number, row in enumerate(rows):
        middle = frame.top + row_height * (number + 0.5)
        known = [value for value in row.values if math.isfinite(value)]
        body.append(words(left - 10, middle + 4, row.name, anchor="end"))
        for i, value in enumerate(sorted(known)):
            at = middle + ((i * 7) % 5 - 2) * 4.0  # fixed jitter: neighbours in value lie at different heights
            across = frame.px(_inside(value, x))
            body.append(f'<circle class="dot soft {series_class(row.colour)}" cx="{across:.1f}" cy="{at:.1f}" r="4.2"/>')
        if known:
            mean = frame.px(_inside(sum(known) / len(known), x))
            hint = f"{row.name}: mean {x.show(sum(known) / len(known))} over {len(known)} {unit}s"
            body.append(
                f'<g><title>{html.escape(hint)}</title><line class="mean {series_class(row.colour)}" '
                f'x1="{mean:.1f}" x2="{mean:.1f}" y1="{middle - 14:.1f}" y2="{middle + 14:.1f}"/></g>'
            )
    return picture(width, height, "".join(body), title)


def rounds_axis(last: int) -> Axis:
    """Rounds 1 to `last`; a single round still gets a width."""
    return Axis(1.0, float(max(last, 2)), "round", lambda value: f"{value:g}", integer=True)


def from_zero(axis: Axis) -> Axis:
    return replace(axis, low=0.0)
