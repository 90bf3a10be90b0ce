"""The live display: plain lines without a terminal, one line with one, nothing when quiet."""

from __future__ import annotations

import io
import math
import re

import pytest
from rich.console import Console

from coterie.report.progress import Progress

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


def test_plain_lines_say_where_the_run_is() -> None:
    """Rounds of 2 s and 4 s: 3 s each on average, so 9 s for the three that are left."""
    out = io.StringIO()
    with Progress(5, "fable", "accuracy", console=Console(file=out, width=30)) as progress:
        progress.round(1, "train", 2.0, 0.5, 250_000)
        progress.round(2, "train", 4.0, 0.8731, 1_500_000)
        progress.note("client 4 [left] out")
        progress.round(5, "train", 4.0, None, 3_000_000)
    assert out.getvalue().splitlines() == [
        "fable  round 1/5  train  accuracy 50.0 %  2.00 s/round  0.25 MB  about 8.00 s left",
        "fable  round 2/5  train  accuracy 87.3 %  4.00 s/round  1.50 MB  about 9.00 s left",
        "fable: client 4 [left] out",
        "fable  round 5/5  train  4.00 s/round  3.00 MB  done in 10.0 s",
    ]


def test_the_end_is_expected_from_the_latest_rounds() -> None:
    """Ten rounds of 1 s after twenty of 100 s: the 10 that are left take 10 s."""
    out = io.StringIO()
    with Progress(40, "x", "loss", console=Console(file=out, width=200)) as progress:
        for index in range(30):
            progress.round(index + 1, "warmup" if index < 20 else "train", 100.0 if index < 20 else 1.0, math.nan, 0)
    last = out.getvalue().splitlines()[-1]
    assert "about 10.0 s left" in last and "loss" not in last


def test_quiet_says_nothing() -> None:
    out = io.StringIO()
    with Progress(2, "fable", "accuracy", quiet=True, console=Console(file=out, force_terminal=True)) as progress:
        progress.round(1, "train", 1.0, 0.5, 0)
        progress.note("anything")
    assert out.getvalue() == ""


def test_a_stopped_run_leaves_a_usable_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    with pytest.raises(KeyboardInterrupt), Progress(3, "fable", "accuracy", console=console) as progress:
        progress.round(1, "train", 1.0, 0.5, 0)
        raise KeyboardInterrupt
    text = out.getvalue()
    assert "round 1/3" in text
    assert text.rfind(SHOW_CURSOR) > text.rfind(HIDE_CURSOR)
    assert text.index(SHOW_CURSOR) < text.index("round 1/3")  # visible all the time: kill -9 cannot restore it


@pytest.mark.parametrize(("width", "phase", "bar"), [(120, True, 18), (90, True, 5), (80, False, 2)])
def test_the_expected_end_is_never_cut_off(width: int, phase: bool, bar: int) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, _environ={"TERM": "xterm"})
    with Progress(60, "fedavg", "accuracy", console=console) as progress:
        progress.round(58, "train", 1.0, 0.941, 23_100_000)
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()).splitlines()[-1].split("\r")[-1]
    assert last.rstrip().endswith("accuracy 94.1 %  1.00 s/round  23.1 MB  about 2.00 s left") and len(last.rstrip()) <= width
    assert ("train" in last) is phase and last.count("━") + last.count("╸") + last.count("╺") == bar
