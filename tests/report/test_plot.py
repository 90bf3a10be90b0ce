"""Ticks, scales and labels, by hand."""

from __future__ import annotations

import pytest

from coterie.report.plot import Axis, Frame, around, spread
from coterie.report.wording import bare_spread, duration, is_share, megabytes, metric_name, plain, show


def plain_axis(low: float, high: float, **options: bool) -> Axis:
    return Axis(low, high, "", str, **options)


def test_ticks_are_round_numbers_inside() -> None:
    assert plain_axis(0.13, 0.97).ticks(5) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert plain_axis(1, 12, integer=True).ticks(6) == [2, 4, 6, 8, 10, 12]
    assert plain_axis(1, 2, integer=True).ticks(6) == [1, 2]
    assert plain_axis(0, 0.003).ticks(3) == pytest.approx([0, 0.001, 0.002, 0.003])
    assert plain_axis(0.5, 2000, log=True).ticks(5) == [1, 10, 100, 1000]
    assert plain_axis(3, 60, log=True).ticks(5) == [5, 10, 20, 50]


def test_places() -> None:
    assert plain_axis(2, 6).place(3) == 0.25
    assert plain_axis(1, 100, log=True).place(10) == pytest.approx(0.5)
    frame = Frame(plain_axis(0, 10), plain_axis(0, 1), width=200, height=100, left=50, right=50, top=10, bottom=10)
    assert (frame.px(5), frame.py(0), frame.py(1)) == (100, 90, 10)


def test_an_axis_stays_within_what_is_possible() -> None:
    axis = around([0.2, 1.0], "", str, floor=0.0, ceiling=1.0)
    assert axis.high == 1.0 and 0.1 < axis.low < 0.2
    flat = around([0.5, 0.5], "", str)
    assert flat.low < 0.5 < flat.high


def test_labels_keep_apart_and_in_order() -> None:
    assert spread([10, 50, 90], 0, 100, gap=15) == [10, 50, 90]
    assert spread([52, 50, 51], 0, 100, gap=15) == [80, 50, 65]
    low = spread([99, 98, 97], 0, 100, gap=15)
    assert low == [100, 85, 70]
    crowded = spread([50.0] * 11, 0, 100, gap=15)  # eleven names on 100 pixels: ten pixels each
    assert sorted(crowded) == pytest.approx([10 * i for i in range(11)])


def test_numbers_in_words() -> None:
    assert (show(0.8731, "accuracy"), show(0.45123, "loss"), show(float("nan"), "accuracy")) == ("87.3 %", "0.4512", "–")
    assert (bare_spread(0.5, 0.0123, "auroc"), bare_spread(1.5, float("nan"), "loss")) == ("50.0 ± 1.2", "1.500")
    assert (plain(1234567.0), plain(-0.25), plain(0.00001), plain(12.3456)) == ("1.23e+06", "−0.2500", "1.00e−05", "12.35")
    assert [megabytes(count) for count in (0, 500, 480_400, 5_764_800, 4_162_000_000)] == [
        "0",
        "< 0.001",
        "0.48",
        "5.76",
        "4,162",
    ]
    assert [duration(s) for s in (0.5, 59.97, 3600)] == ["0.50 s", "1 min 00 s", "1 h 00 min"]
    assert (metric_name("f1_macro"), metric_name("auroc", inside=True)) == ("Macro F1", "AUROC")
    assert metric_name("accuracy", inside=True) == "accuracy" and is_share("tpr_at_fpr1") and not is_share("psnr")
