"""How numbers read, in every table and picture: shares in percent, bytes in MB (10^6), seconds in words."""

from __future__ import annotations

import math
from collections.abc import Callable

SHARES = ("accuracy", "f1", "auroc", "auprc", "tpr", "precision", "recall", "prevalence", "balanced_accuracy", "ssim")
NOTHING = "–"
NAMES = {
    "accuracy": "Accuracy",
    "loss": "Loss",
    "f1_macro": "Macro F1",
    "f1_micro": "Micro F1",
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "tpr_at_fpr1": "TPR at FPR ≤ 1 %",
    "psnr": "PSNR",
    "ssim": "SSIM",
}


def is_share(metric: str) -> bool:
    """Whether a metric lies in 0 to 1 and is read in percent."""
    return metric != "ssim" and any(metric == name or metric.startswith(f"{name}_") for name in SHARES)


def metric_name(metric: str, *, inside: bool = False) -> str:
    """A metric as a heading, or `inside` a sentence, where an abbreviation stays as it is."""
    name = NAMES.get(metric, metric.replace("_", " ").capitalize())
    return name[0].lower() + name[1:] if inside and name[1:2].islower() else name


def unit(metric: str) -> str:
    """What `bare` numbers of this metric are in, for a title: " in %" or nothing."""
    return " in %" if is_share(metric) else ""


def bare(value: float | None, metric: str) -> str:
    """A value of this metric without its unit: 87.3 or 0.4512."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{100 * value:.1f}".replace("-", "−") if is_share(metric) else plain(value)


def bare_spread(mean: float, std: float, metric: str) -> str:
    """87.3 ± 4.1 or 0.4512 ± 0.03; the mean alone where there is no spread."""
    if not math.isfinite(mean) or not math.isfinite(std):
        return bare(mean, metric)
    return f"{bare(mean, metric)} ± {bare(std, metric)}"


def show(value: float | None, metric: str) -> str:
    """A value of this metric with its unit: 87.3 % or 0.4512."""
    return _with_unit(bare(value, metric), metric)


def show_spread(mean: float, std: float, metric: str) -> str:
    """87.3 ± 4.1 % or 0.4512 ± 0.03."""
    return _with_unit(bare_spread(mean, std, metric), metric)


def reader(metric: str) -> Callable[[float], str]:
    """`show` for this metric."""
    return lambda value: show(value, metric)


def _with_unit(text: str, metric: str) -> str:
    return f"{text} %" if is_share(metric) and text != NOTHING else text


def show_tick(value: float, metric: str) -> str:
    """A value on an axis, as short as it can be."""
    return f"{round(100 * value, 6):g} %" if is_share(metric) else f"{value:.6g}"


def plain(value: float) -> str:
    """Four figures, without a needless exponent."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return NOTHING if math.isnan(value) else "∞"
    size = abs(value)
    if size >= 1e6 or size < 1e-4:
        return f"{value:.2e}".replace("-", "−")
    decimals = max(0, min(4, 3 - math.floor(math.log10(size))))
    return f"{value:,.{decimals}f}".replace("-", "−")


def megabytes(count: float) -> str:
    """10^6 bytes, as the papers count."""
    mb = count / 1e6
    if mb == 0 or math.isnan(mb):
        return "0" if mb == 0 else NOTHING
    if mb < 0.001:
        return "< 0.001"
    decimals = 3 if mb < 0.1 else 2 if mb < 10 else 1 if mb < 1000 else 0
    return f"{mb:,.{decimals}f}"


def duration(seconds: float) -> str:
    """0.42 s, 12.3 s, 4 min 05 s, 2 h 07 min."""
    if math.isnan(seconds):
        return NOTHING
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def p_value(p: float) -> str:
    if math.isnan(p):
        return NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def count(number: int, noun: str) -> str:
    """1 round, 2 rounds, 10,000 clients."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
