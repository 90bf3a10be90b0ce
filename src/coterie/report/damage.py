"""How much of its accuracy every reduction keeps under every attack: tables for the terminal, and a heat map."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from coterie.metrics.statistics import mean_and_deviation

CLEAN = "clean"
_CELL, _ROW, _LEFT, _TOP = 122.0, 40.0, 110.0, 74.0


@dataclass(frozen=True)
class Cell:
    """One run: accuracy over honest clients, None where the run ended because nobody could train any more."""

    beta: float
    seed: int
    reduction: str
    attack: str
    accuracy: float | None
    backdoor_success: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Damage:
    """One reduction under one attack, over seeds; a run that ended counts as accuracy 0."""

    accuracies: tuple[float, ...]
    kept: tuple[float, ...]  # of the same seed's clean accuracy
    success: tuple[float, ...]

    @property
    def words(self) -> str:
        accuracy, spread = mean_and_deviation(list(self.accuracies))
        backdoor = f", {100 * _mean(self.success):.0f} triggered" if self.success else ""
        return f"{100 * accuracy:.1f} ± {100 * spread:.1f} ({100 * _mean(self.kept):.0f} %{backdoor})"


def damage(cells: Sequence[Cell], beta: float) -> dict[tuple[str, str], Damage]:
    """(reduction, attack) -> what is left."""
    clean = {(c.reduction, c.seed): c.accuracy or 0.0 for c in cells if c.beta == beta and c.attack == CLEAN}
    found: dict[tuple[str, str], Damage] = {}
    for where in dict.fromkeys((c.reduction, c.attack) for c in cells if c.beta == beta):
        own = [c for c in cells if c.beta == beta and (c.reduction, c.attack) == where]
        kept = tuple((c.accuracy or 0.0) / clean[c.reduction, c.seed] if clean[c.reduction, c.seed] else math.nan for c in own)
        success = tuple(c.backdoor_success for c in own if c.backdoor_success is not None)
        found[where] = Damage(tuple(c.accuracy or 0.0 for c in own), kept, success)
    return found


def damage_tables(cells: Sequence[Cell], betas: Sequence[float], lies: Sequence[Mapping[str, Any]]) -> list[Table]:
    """One table for each label skew, attacks down and reductions across, and one for the lying score."""
    tables = []
    for beta in betas:
        found = damage(cells, beta)
        table = Table(title=f"Accuracy in % on honest clients, Dirichlet {beta:g} (kept of the reduction's own clean accuracy)", pad_edge=False)
        reductions = list(dict.fromkeys(reduction for reduction, _ in found))
        for column in ("reduction", "attack", "accuracy ± seeds (kept)"):
            table.add_column(column)
        for reduction in reductions:
            for attack in dict.fromkeys(attack for _, attack in found):
                table.add_row(reduction if attack == CLEAN else "", attack, found[reduction, attack].words, end_section=False)
            table.add_section()
        tables.append(table)
    if lies:
        table = Table(title="A lying score under ISFA (s = 1, n = n_max): accuracy in % on honest clients", pad_edge=False)
        names = [name for name in lies[0] if name not in ("beta", "seed", "weight_gain", "weight_gain_bound")]
        for column in ("seed", *names, "gain in weight", "bound"):
            table.add_column(column.replace("_", " "))
        for lie in lies:
            values = ["ended" if lie[name] is None else f"{100 * lie[name]:.1f}" for name in names]
            table.add_row(str(lie["seed"]), *values, f"{lie['weight_gain']:.2f}", f"{lie['weight_gain_bound']:.2f}")
        tables.append(table)
    return tables


def damage_svg(cells: Sequence[Cell], betas: Sequence[float]) -> str:
    """A heat map for each label skew: the share of its own clean accuracy that a reduction keeps; a picture that stands alone."""
    parts, top, width = [], 0.0, 0.0
    for beta in betas:
        found = damage(cells, beta)
        reductions, attacks = (list(dict.fromkeys(where[i] for where in found)) for i in (0, 1))
        parts.append(f'<text x="12" y="{top + 26:.0f}" class="title">Share of its own clean accuracy that is kept, Dirichlet {beta:g}</text>')
        for column, attack in enumerate(attacks):
            x = _LEFT + _CELL * (column + 0.5)
            parts.append(f'<text x="{x:.0f}" y="{top + 60:.0f}" text-anchor="middle">{html.escape(attack)}</text>')
        for row, reduction in enumerate(reductions):
            y = top + _TOP + _ROW * row
            parts.append(f'<text x="{_LEFT - 10:.0f}" y="{y + 25:.0f}" text-anchor="end">{html.escape(reduction)}</text>')
            for column, attack in enumerate(attacks):
                parts.append(_square(_LEFT + _CELL * column, y, found[reduction, attack], clean=attack == CLEAN))
        width = max(width, _LEFT + _CELL * len(attacks) + 12)
        top += _TOP + _ROW * len(reductions) + 24
    style = 'svg{background:#fff;font-family:system-ui,"DejaVu Sans",sans-serif}text{font-size:12px;fill:#20262c}.title{font-size:14px;font-weight:600}'
    legend = '<text x="12" y="{y:.0f}">Mean accuracy in % on honest clients, over seeds; below it the share kept of the same reduction without an attack.</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {top + 14:.0f}" width="{width:.0f}" role="img">'
        f"<style>{style}</style>{''.join(parts)}{legend.format(y=top)}</svg>\n"
    )


def _square(x: float, y: float, found: Damage, *, clean: bool) -> str:
    kept = _mean(found.kept)
    shade = 0.0 if clean or math.isnan(kept) else max(0.0, min(1.0, 1.0 - kept))
    red, green, blue = (round(light + (dark - light) * shade) for light, dark in ((247, 178), (247, 24), (245, 43)))
    ink = "#fff" if shade > 0.55 else "#20262c"
    middle = x + _CELL / 2
    below = "clean" if clean else f"{100 * kept:.0f} %" + (f", trigger {100 * _mean(found.success):.0f} %" if found.success else "")
    return (
        f'<rect x="{x + 1:.0f}" y="{y + 1:.0f}" width="{_CELL - 2:.0f}" height="{_ROW - 2:.0f}" rx="3" fill="rgb({red},{green},{blue})"/>'
        f'<text x="{middle:.0f}" y="{y + 17:.0f}" text-anchor="middle" style="fill:{ink};font-weight:600">{100 * _mean(found.accuracies):.1f}</text>'
        f'<text x="{middle:.0f}" y="{y + 32:.0f}" text-anchor="middle" style="fill:{ink};font-size:11px">{below}</text>'
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
