"""What an audit saw, as one SVG: scores with and without a canary, and the attacker's trade-off beside the claimed limit."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from coterie.report.plot import Axis

Curve = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 920, 400
_TOP, _BASE = 92, 340
_LEFT, _MIDDLE, _RIGHT = (56.0, 470.0), (560.0, 808.0), 36
_INK, _SOFT, _RULE = "#1f2933", "#66727f", "#d9dee4"
_WITHOUT, _WITH, _LIMIT = "#8a96a3", "#2f6db5", "#c2410c"
_BINS = 48


def audit_svg(
    without: npt.NDArray[np.float64], with_canary: npt.NDArray[np.float64], limit: Curve, *, title: str, subtitle: str
) -> str:
    """`limit`: points (FPR, TPR) that the claim allows at most."""
    body = [
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(20, 28, title, size=16, weight=600),
        _text(20, 50, subtitle, fill=_SOFT),
        *_histograms(without, with_canary),
        *_trade_off(without, with_canary, limit),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'role="img" aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12">\n' + "\n".join(body) + "\n</svg>\n"
    )


def _histograms(without: npt.NDArray[np.float64], with_canary: npt.NDArray[np.float64]) -> list[str]:
    left, right = _LEFT
    both = np.concatenate([without, with_canary])
    low, high = float(both.min()), float(both.max())
    pad = 0.03 * (high - low) or 1.0
    low, high = low - pad, high + pad
    counts = [np.histogram(scores, bins=_BINS, range=(low, high))[0] / len(scores) for scores in (without, with_canary)]
    tallest = max(float(count.max()) for count in counts)
    step = (right - left) / _BINS
    marks = [_text(left, _TOP - 14, "share of scores", fill=_SOFT)]
    for count, colour in zip(counts, (_WITHOUT, _WITH), strict=True):
        points = [f"{left:.1f},{_BASE}"]
        for number, share in enumerate(count):
            top = _BASE - float(share) / tallest * (_BASE - _TOP)
            points += [f"{left + number * step:.1f},{top:.1f}", f"{left + (number + 1) * step:.1f},{top:.1f}"]
        points.append(f"{right:.1f},{_BASE}")
        marks.append(f'<polygon points="{" ".join(points)}" fill="{colour}" fill-opacity=".28" stroke="{colour}" stroke-width="1.5"/>')
    marks.append(_line(left, _BASE, right, _BASE, _SOFT))
    axis = Axis(low, high, "attacker's score", "{:.3g}".format)
    for tick in axis.ticks(6):
        marks.append(_text(left + axis.place(tick) * (right - left), _BASE + 18, axis.show(tick), anchor="middle", fill=_SOFT))
    marks.append(_text(right, _BASE + 40, axis.label, anchor="end", fill=_SOFT))
    marks += [_text(left + 8, _TOP + 12, "without the canary", fill=_WITHOUT, weight=600), _text(left + 8, _TOP + 29, "with it", fill=_WITH, weight=600)]
    return marks


def _trade_off(without: npt.NDArray[np.float64], with_canary: npt.NDArray[np.float64], limit: Curve) -> list[str]:
    left, right = _MIDDLE
    thresholds = np.concatenate([[np.inf], np.sort(np.unique(np.concatenate([without, with_canary])))[::-1]])
    thresholds = thresholds[np.unique(np.linspace(0, len(thresholds) - 1, 400).round().astype(int))]
    found = [(float((without >= t).mean()), float((with_canary >= t).mean())) for t in thresholds]

    def path(points: Curve) -> str:
        return " ".join(f"{left + x * (right - left):.1f},{_BASE - y * (_BASE - _TOP):.1f}" for x, y in points)

    marks = [_text(left, _TOP - 14, "found (TPR)", fill=_SOFT), _text(right, _BASE + 40, "false alarms (FPR)", anchor="end", fill=_SOFT)]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = left + tick * (right - left), _BASE - tick * (_BASE - _TOP)
        marks += [_line(left, y, right, y, _RULE), _text(left - 8, y + 4, f"{tick:g}", anchor="end", fill=_SOFT)]
        marks.append(_text(x, _BASE + 18, f"{tick:g}", anchor="middle", fill=_SOFT))
    marks.append(f'<polyline points="{path([(0, 0), (1, 1)])}" fill="none" stroke="{_RULE}" stroke-width="1.5"/>')
    marks.append(f'<polyline points="{path(limit)}" fill="none" stroke="{_LIMIT}" stroke-width="1.6" stroke-dasharray="6 4"/>')
    marks.append(f'<polyline points="{path(found)}" fill="none" stroke="{_WITH}" stroke-width="2.2"/>')
    marks += [_text(right + 10, _TOP + 12, "attacker", fill=_WITH, weight=600), _text(right + 10, _TOP + 29, "claimed limit", fill=_LIMIT, weight=600)]
    return marks


def _text(x: float, y: float, text: str, *, anchor: str = "start", fill: str = _INK, size: int = 12, weight: int = 400) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" font-size="{size}" font-weight="{weight}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'
