"""Accuracy against epsilon: a picture that opens anywhere, with chance drawn and told where a method does no better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.metrics.statistics import mean_and_deviation, paired
from coterie.report.plot import Axis, Frame, picture, room_for, series_class, spread, words

WIDTH, HEIGHT = 640.0, 380.0

# the page's colours for a light ground, written out: a picture that stands alone has no page to take them from
STYLE = """<style>
svg { background: #fff; font-family: system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
text { font-size: 12px; fill: #20262c; } text.muted, text.axis { fill: #66707a; } text.small { font-size: 11px; } text.name { font-weight: 600; }
.rule { stroke: #e6e3dc; } .base { stroke: #98a2ab; } .chance { stroke: #20262c; stroke-dasharray: 5 4; } .curve { fill: none; stroke-width: 2; }
.s0 { stroke: #0b6fb0; } .s1 { stroke: #cf5a00; } .s2 { stroke: #00845f; } .s3 { stroke: #a63f8f; } .s4 { stroke: #94700a; } .s5 { stroke: #3d93c9; }
.s6 { stroke: #7a4f2b; } .s7 { stroke: #5b6570; } circle { fill: #fff; stroke-width: 2; } .whisker { stroke-width: 1.5; }
text.s0 { fill: #0b6fb0; } text.s1 { fill: #cf5a00; } text.s2 { fill: #00845f; } text.s3 { fill: #a63f8f; } text.s4 { fill: #94700a; }
text.s5 { fill: #3d93c9; } text.s6 { fill: #7a4f2b; } text.s7 { fill: #5b6570; } text.s0, text.s1, text.s2, text.s3, text.s4, text.s5, text.s6, text.s7 { stroke: none; }
</style>"""


@dataclass(frozen=True)
class Point:
    """One method at one epsilon, over all seeds; no epsilon stands for no noise."""

    method: str
    epsilon: float | None
    accuracies: tuple[float, ...]
    noise: float = 0.0

    @property
    def mean(self) -> float:
        return mean_and_deviation(self.accuracies)[0]

    @property
    def interval(self) -> tuple[float, float]:
        """95 % for the mean over seeds (Student's t); unknown for a single seed."""
        if len(self.accuracies) < 2:
            return math.nan, math.nan
        found = paired(self.accuracies, [0.0] * len(self.accuracies))
        return found.low, found.high

    def above(self, chance: float) -> bool | None:
        """Whether the whole interval lies above chance; None where there is no interval."""
        low = self.interval[0]
        return None if math.isnan(low) else low > chance

    def verdict(self, chance: float) -> str:
        found = self.above(chance)
        return "one seed: not judged" if found is None else "above chance" if found else "at chance"

    def to_json(self, chance: float) -> dict[str, Any]:
        low, high = self.interval
        return {
            "method": self.method, "epsilon": self.epsilon, "noise": self.noise, "accuracies": list(self.accuracies), "mean": self.mean,
            "low": None if math.isnan(low) else low, "high": None if math.isnan(high) else high, "verdict": self.verdict(chance),
        }  # fmt: skip


def epsilon_word(epsilon: float | None) -> str:
    return "inf" if epsilon is None else f"{epsilon:g}"


def epsilon_curve(points: Sequence[Point], chance: float, title: str) -> str:
    """A whole SVG file. Epsilons stand side by side in their order, "inf" (no noise) last."""
    epsilons = sorted({point.epsilon for point in points}, key=lambda e: math.inf if e is None else e)
    methods = list(dict.fromkeys(point.method for point in points))
    ends = [value for point in points for value in (point.mean, *point.interval) if math.isfinite(value)]
    y = Axis(0.0, min(1.0, max([chance * 1.5, *ends]) * 1.08), "test accuracy, mean and 95 % interval over seeds", lambda v: f"{100 * v:.0f} %")
    x = Axis(-0.4, len(epsilons) - 0.6, "epsilon", str)
    frame = Frame(x, y, WIDTH, HEIGHT, left=48, right=room_for(methods) + 12, top=52)
    body = [words(4, 16, title, kind="name"), frame.grid(x_ticks=False).replace('y="14.0"', 'y="36.0"')]
    for place, epsilon in enumerate(epsilons):
        body.append(words(frame.px(place), HEIGHT - frame.bottom + 18, epsilon_word(epsilon), anchor="middle", kind="muted"))
    level = frame.py(chance)
    body.append(f'<line class="chance" x1="{frame.left:.1f}" x2="{WIDTH - frame.right:.1f}" y1="{level:.1f}" y2="{level:.1f}"/>')
    body.append(words(WIDTH - frame.right - 2, level + 13, f"chance {100 * chance:.0f} %", anchor="end", kind="small"))
    heights = spread([frame.py(_last(points, method).mean) for method in methods], frame.top, HEIGHT - frame.bottom)
    for number, (method, height) in enumerate(zip(methods, heights, strict=True)):
        own = sorted((p for p in points if p.method == method), key=lambda p: epsilons.index(p.epsilon))
        shift = 0.06 * (number - (len(methods) - 1) / 2)
        body.append(_curve(own, [epsilons.index(p.epsilon) + shift for p in own], frame, number))
        body.append(words(WIDTH - frame.right + 9, height + 4, method, kind=f"name {series_class(number)}"))
    for place, epsilon in enumerate(epsilons):
        unlucky = [p for p in points if p.epsilon == epsilon and p.above(chance) is False]
        top = min((frame.py(min(max(p.interval), y.high)) for p in unlucky), default=0.0)
        for line, point in enumerate(reversed(unlucky)):
            kind = f"small {series_class(methods.index(point.method))}"
            body.append(words(frame.px(place), top - 6 - 12 * line, "at chance", anchor="middle", kind=kind))
    drawn = picture(WIDTH, HEIGHT, STYLE + "".join(body), title)
    return drawn.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:g}" height="{HEIGHT:g}" ', 1)


def _last(points: Sequence[Point], method: str) -> Point:
    own = [point for point in points if point.method == method]
    return max(own, key=lambda point: math.inf if point.epsilon is None else point.epsilon)


def _curve(points: Sequence[Point], places: Sequence[float], frame: Frame, number: int) -> str:
    colour = series_class(number)
    at = [(frame.px(place), frame.py(point.mean)) for place, point in zip(places, points, strict=True)]
    parts = [f'<path class="curve {colour}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in at)}"/>'] if len(at) > 1 else []
    for (x, y), point in zip(at, points, strict=True):
        low, high = point.interval
        if math.isfinite(low):
            ends = [frame.py(min(max(value, frame.y.low), frame.y.high)) for value in (low, high)]
            parts.append(f'<line class="whisker {colour}" x1="{x:.1f}" x2="{x:.1f}" y1="{ends[0]:.1f}" y2="{ends[1]:.1f}"/>')
        parts.append(f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
    return "".join(parts)
