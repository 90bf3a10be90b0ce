"""Who holds what: clients by classes as one SVG, with the size of every client above.

Few clients and classes are drawn as bubbles whose area is the number of examples, many as cells whose
darkness is. Beyond 100 clients an even selection of them is shown, and beyond 64 classes neighbours share a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

_WIDTH = 920
_RIGHT, _TOP, _BARS, _GAP = 24, 58, 64, 14
_MAX_COLUMNS, _MAX_ROWS = 100, 64
_BUBBLE_COLUMNS, _BUBBLE_ROWS = 40, 25
_MAX_LABEL = 18  # characters of a class name

_INK, _SOFT, _LINE, _BAND = "#1f2933", "#66727f", "#d9dee4", "#f5f7f9"
_FILL, _BAR = "#2f6db5", "#9db8d6"
_RAMP = ("#dce8f5", "#bcd4ec", "#94bade", "#689dcd", "#417fba", "#24619f", "#124680", "#062e5e")


@dataclass(frozen=True)
class _Panel:
    """Where the matrix lies, in pixels."""

    left: float
    top: float
    cell: float  # width of one client
    row: float  # height of one class
    columns: int
    rows: int

    @property
    def width(self) -> float:
        return self.cell * self.columns

    @property
    def bottom(self) -> float:
        return self.top + self.row * self.rows


def partition_svg(counts: npt.ArrayLike, names: Sequence[str], classes: Sequence[str], title: str = "Who holds what") -> str:
    """A self-contained SVG from counts [clients, classes]; `names` and `classes` label its axes."""
    matrix = np.asarray(counts, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape != (len(names), len(classes)) or not matrix.size:
        raise ValueError(
            f"counts must be [clients, classes] = [{len(names)}, {len(classes)}], found {list(matrix.shape)}. "
            "Give one row per name and one column per class."
        )
    clients = len(names)
    chosen = np.unique(np.linspace(0, clients - 1, min(clients, _MAX_COLUMNS)).round().astype(int))
    sizes = matrix.sum(axis=1)[chosen]
    matrix, labels = _merged_rows(matrix[chosen], classes)
    shown = [names[i] for i in chosen]
    bubbles = len(shown) <= _BUBBLE_COLUMNS and len(labels) <= _BUBBLE_ROWS

    left = 34 + 6.6 * max(len(text) for text in (*labels, f"{sizes.max():,.0f}"))
    cell = (_WIDTH - left - _RIGHT) / len(shown)
    row = min(max(cell, 15.0), 30.0) if bubbles else max(8.0, min(18.0, 420 / len(labels)))
    panel = _Panel(left, _TOP + _BARS + _GAP, cell, row, len(shown), len(labels))
    marks = _bubbles(panel, matrix, shown, labels) if bubbles else _cells(panel, matrix)
    names_height = _name_height(panel, shown)
    height = panel.bottom + names_height + 66
    heading = f"{clients:,} client{'s' * (clients > 1)}"
    heading = heading if clients == len(shown) else f"{len(shown)} of {heading}, evenly chosen"
    body = [
        f'<rect width="{_WIDTH}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text x="20" y="28" font-size="16" font-weight="600" fill="{_INK}">{escape(title)}</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="28" text-anchor="end" fill="{_SOFT}">{heading} · {len(classes):,} classes</text>',
        *_size_bars(panel, sizes, shown),
        *_frame(panel, labels, striped=bubbles),
        *marks,
        *_client_axis(panel, shown, chosen, names_height),
        *(_bubble_legend(panel, matrix, height) if bubbles else _ramp_legend(matrix, height)),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" height="{height:.0f}" '
        f'role="img" aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12">\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _merged_rows(matrix: npt.NDArray[np.float64], classes: Sequence[str]) -> tuple[npt.NDArray[np.float64], list[str]]:
    """At most `_MAX_ROWS` rows: equally many neighbouring classes are added up and named by their numbers."""
    if len(classes) <= _MAX_ROWS:
        return matrix, [name if len(name) <= _MAX_LABEL else name[: _MAX_LABEL - 1] + "…" for name in classes]
    step = -(-len(classes) // _MAX_ROWS)
    starts = range(0, len(classes), step)
    labels = [f"{start}–{min(start + step, len(classes)) - 1}" for start in starts]
    return np.stack([matrix[:, start : start + step].sum(axis=1) for start in starts], axis=1), labels


def _size_bars(panel: _Panel, sizes: npt.NDArray[np.float64], names: Sequence[str]) -> list[str]:
    floor, top = panel.top - _GAP, max(float(sizes.max()), 1.0)
    out = [
        _text(panel.left - 8, floor - _BARS + 10, f"{top:,.0f}", "end"),
        _text(panel.left - 8, floor, "0", "end"),
        _text(panel.left, floor - _BARS - 8, "examples per client", "start"),
        _rule(panel.left, floor, panel.left + panel.width, floor),
        _rule(panel.left, floor - _BARS, panel.left + panel.width, floor - _BARS),
    ]
    for i, (size, name) in enumerate(zip(sizes, names, strict=True)):
        high = _BARS * size / top
        width = min(0.72 * panel.cell, 46.0)
        x = panel.left + (i + 0.5) * panel.cell - width / 2
        out.append(
            f'<rect x="{x:.1f}" y="{floor - high:.1f}" width="{width:.1f}" height="{high:.1f}" fill="{_BAR}">'
            f"<title>{escape(name)}: {size:,.0f} examples</title></rect>"
        )
    return out


def _frame(panel: _Panel, labels: Sequence[str], striped: bool) -> list[str]:
    """Rows with class names; where rows are thin, only some are named."""
    every = max(1, -(-13 // int(panel.row)))
    out = []
    for i, label in enumerate(labels):
        y = panel.top + i * panel.row
        if striped and i % 2 == 0:
            box = f'x="{panel.left:.1f}" y="{y:.1f}" width="{panel.width:.1f}" height="{panel.row:.1f}"'
            out.append(f'<rect {box} fill="{_BAND}"/>')
        if i % every == 0:
            out.append(_text(panel.left - 8, y + panel.row / 2 + 4, label, "end", _INK))
    out.append(_text(16, panel.top + panel.row * panel.rows / 2, "classes", "middle", turn=-90))
    return out


def _bubbles(panel: _Panel, matrix: npt.NDArray[np.float64], names: Sequence[str], labels: Sequence[str]) -> list[str]:
    largest = _largest_radius(panel)
    top = max(float(matrix.max()), 1.0)
    out = []
    for i, j in np.argwhere(matrix > 0):
        x, y = panel.left + (i + 0.5) * panel.cell, panel.top + (j + 0.5) * panel.row
        radius = max(largest * (matrix[i, j] / top) ** 0.5, 1.1)  # area is the count; one example must still be seen
        out.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.2f}" fill="{_FILL}" fill-opacity="0.85">'
            f"<title>{escape(names[i])}, {escape(labels[j])}: {matrix[i, j]:,.0f}</title></circle>"
        )
    return out


def _largest_radius(panel: _Panel) -> float:
    return 0.47 * min(panel.cell, panel.row)


def _cells(panel: _Panel, matrix: npt.NDArray[np.float64]) -> list[str]:
    """One path per shade: ten thousand cells stay a small file."""
    shades = _shade(matrix, float(matrix.max()))
    wide, high = panel.cell * 0.94, panel.row * 0.94
    out = []
    for shade, colour in enumerate(_RAMP):
        places = np.argwhere((shades == shade) & (matrix > 0))
        corners = ((panel.left + i * panel.cell, panel.top + j * panel.row) for i, j in places)
        steps = "".join(f"M{x:.1f} {y:.1f}h{wide:.1f}v{high:.1f}h-{wide:.1f}z" for x, y in corners)
        if steps:
            out.append(f'<path d="{steps}" fill="{colour}"/>')
    return out


def _shade(values: npt.NDArray[np.float64], top: float) -> npt.NDArray[np.int64]:
    """Darkness grows with the root of the count, or small shares would all look like nothing."""
    shades: npt.NDArray[np.int64] = np.minimum(np.sqrt(values / max(top, 1.0)) * len(_RAMP), len(_RAMP) - 1).astype(np.int64)
    return shades


def _name_height(panel: _Panel, names: Sequence[str]) -> float:
    longest = 6.4 * min(max(map(len, names)), _MAX_LABEL)
    return 18.0 if len(names) > _BUBBLE_COLUMNS or longest < panel.cell else 10 + 0.72 * longest


def _client_axis(panel: _Panel, names: Sequence[str], chosen: npt.NDArray[np.int64], height: float) -> list[str]:
    """Names under the columns, slanted where they are long; numbers where there are too many for names."""
    out = []
    many = len(names) > _BUBBLE_COLUMNS
    for i, name in enumerate(names):
        x, y = panel.left + (i + 0.5) * panel.cell, panel.bottom + 15
        short = name if len(name) <= _MAX_LABEL else name[: _MAX_LABEL - 1] + "…"
        if many and i % 10 == 0:
            out.append(_text(x, y, f"{chosen[i]:,}", "middle", _INK))
        elif not many and height == 18.0:
            out.append(_text(x, y, short, "middle", _INK))
        elif not many:
            out.append(_text(x + 4, y - 3, short, "end", _INK, turn=-45))
    out.append(_text(panel.left + panel.width / 2, panel.bottom + height + 16, "clients", "middle"))
    return out


def _bubble_legend(panel: _Panel, matrix: npt.NDArray[np.float64], height: float) -> list[str]:
    top = float(matrix.max())
    x, y = 20.0, height - 20
    out = [_text(x, y + 4, "examples of a class:", "start")]
    x += 134
    for value in dict.fromkeys(_round_number(top * share) for share in (0.05, 0.25, 1.0)):
        radius = max(_largest_radius(panel) * (value / max(top, 1.0)) ** 0.5, 1.1)
        out.append(f'<circle cx="{x + radius:.1f}" cy="{y:.1f}" r="{radius:.2f}" fill="{_FILL}" fill-opacity="0.85"/>')
        out.append(_text(x + 2 * radius + 6, y + 4, f"{value:,.0f}", "start", _INK))
        x += 2 * radius + 30 + 7 * len(f"{value:,.0f}")
    return out


def _ramp_legend(matrix: npt.NDArray[np.float64], height: float) -> list[str]:
    top, x, y = float(matrix.max()), 154.0, height - 20
    out = [_text(20, y + 4, "examples of a class:", "start"), _text(x, y + 4, "1", "start", _INK)]
    x += 14
    for colour in _RAMP:
        out.append(f'<rect x="{x:.0f}" y="{y - 7:.0f}" width="26" height="14" fill="{colour}"/>')
        x += 26
    return [*out, _text(x + 6, y + 4, f"{top:,.0f}  (darkness grows with the square root; none = empty)", "start", _INK)]


def _round_number(value: float) -> float:
    """1, 2 or 5 times a power of ten, not above the value (but at least 1)."""
    if value < 1:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    return float(power * max(step for step in (1, 2, 5) if step * power <= value))


def _text(x: float, y: float, text: str, anchor: str, colour: str = _SOFT, turn: int = 0) -> str:
    turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{turned}>{escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{_LINE}"/>'
