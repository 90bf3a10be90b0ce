"""The ground every picture stands on: scales, ticks, labels that do not collide, a frame of SVG.

Pictures carry no colours of their own: classes (`s0` to `s7` for series, `ink`, `muted`, `rule`) take them from the
page, so that one picture serves a light and a dark screen.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

NUM_COLOURS = 8
LETTER = 7.0  # width of an average letter at the pictures' 12 px; a little more than most fonts need
LINE_HEIGHT = 15.0
DASHES = ("", "7 3", "2 3", "9 3 2 3")  # when the colours are used up


@dataclass(frozen=True)
class Axis:
    """A range of values, where they stand, and how its ticks read."""

    low: float
    high: float
    label: str
    show: Callable[[float], str]
    log: bool = False
    integer: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        if self.log:
            return (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """At most about `most` round numbers inside the range."""
        if self.log:
            powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            found = [10.0**power for power in powers]
            if len(found) < 3:
                found = [
                    10.0**power * step
                    for power in range(min(powers, default=0) - 1, max(powers, default=0) + 1)
                    for step in (1, 2, 5)
                ]
                found = [tick for tick in found if self.low * (1 - 1e-9) <= tick <= self.high * (1 + 1e-9)]
            return found
        step = _step((self.high - self.low) / max(1, most))
        if self.integer:
            step = max(1.0, round(step))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


def around(
    values: Iterable[float],
    label: str,
    show: Callable[[float], str],
    *,
    floor: float | None = None,
    ceiling: float | None = None,
) -> Axis:
    """An axis a little wider than the values, never wider than the values can be."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    pad = 0.06 * (high - low) or max(abs(high) * 0.1, 1e-3)
    low, high = low - pad, high + pad
    if floor is not None and low < floor:
        low = floor
    if ceiling is not None and high > ceiling:
        high = ceiling
    return Axis(low, max(high, low + 1e-9), label, show)


@dataclass(frozen=True)
class Frame:
    """The plot area inside a picture, and the way from values to pixels."""

    x: Axis
    y: Axis
    width: float
    height: float
    left: float
    right: float
    top: float = 30.0
    bottom: float = 40.0

    def px(self, value: float) -> float:
        return self.left + self.x.place(value) * (self.width - self.left - self.right)

    def py(self, value: float) -> float:
        return self.height - self.bottom - self.y.place(value) * (self.height - self.top - self.bottom)

    def grid(self, *, x_ticks: bool = True) -> str:
        """Horizontal rules, tick labels and the names of both axes; the y name lies above, to be read straight."""
        parts = []
        for tick in self.y.ticks(5):
            y = self.py(tick)
            parts.append(
                f'<line class="rule" x1="{self.left:.1f}" x2="{self.width - self.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            parts.append(words(self.left - 8, y + 4, self.y.show(tick), anchor="end", kind="muted"))
        parts.append(words(4, 14, self.y.label, kind="axis"))
        base = self.height - self.bottom
        if x_ticks:
            for tick in self.x.ticks(max(2, int((self.width - self.left - self.right) / 70))):
                x = self.px(tick)
                parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{base:.1f}" y2="{base + 4:.1f}"/>')
                parts.append(words(x, base + 18, self.x.show(tick), anchor="middle", kind="muted"))
        parts.append(words(self.width - self.right, self.height - 6, self.x.label, anchor="end", kind="axis"))
        parts.append(
            f'<line class="base" x1="{self.left:.1f}" x2="{self.width - self.right:.1f}" y1="{base:.1f}" y2="{base:.1f}"/>'
        )
        return "".join(parts)


def picture(width: float, height: float, body: str, title: str, data: str = "") -> str:
    """A whole SVG; `data` is what the page's pointer read-out needs."""
    attribute = f' data-lines="{html.escape(data)}"' if data else ""
    return (
        f'<svg class="plot" viewBox="0 0 {width:g} {height:g}" style="max-width:{width:g}px" role="img" '
        f'aria-label="{html.escape(title)}"{attribute}>{body}</svg>'
    )


def words(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "ink") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def room_for(labels: Iterable[str], least: float = 16.0) -> float:
    """Pixels that the longest of these labels needs."""
    return max([least, *(12 + LETTER * len(label) for label in labels)])


def spread(wanted: Sequence[float], low: float, high: float, gap: float = LINE_HEIGHT) -> list[float]:
    """Heights as near as possible to the wanted ones, at least `gap` apart where there is room, in the same order."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    gap = min(gap, (high - low) / max(1, len(wanted) - 1)) if len(wanted) > 1 else gap
    placed = [wanted[index] for index in order]
    for i in range(1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + gap)
    overflow = placed[-1] - high if placed else 0.0
    if overflow > 0:
        placed[-1] = high
        for i in range(len(placed) - 2, -1, -1):
            placed[i] = min(placed[i], placed[i + 1] - gap)
    result = [0.0] * len(wanted)
    for position, index in enumerate(order):
        result[index] = max(low, placed[position]) if position == 0 else placed[position]
    return result


def series_class(colour: int) -> str:
    return f"s{colour % NUM_COLOURS}"


def dash_of(colour: int) -> str:
    """A pattern of its own for every further round of the palette."""
    return DASHES[(colour // NUM_COLOURS) % len(DASHES)]


def _step(rough: float) -> float:
    """The round number (1, 2, 5 times a power of ten) that is not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))
