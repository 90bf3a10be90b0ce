"""What a person sees while a run goes on: one line per run, and the truth about how long it will take."""

from __future__ import annotations

import math
from collections import deque
from types import TracebackType

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from coterie.report.wording import duration, megabytes, metric_name, plain, show

BAR = 18  # characters, where the terminal is wide enough
REMEMBERED = 10  # rounds that the expected end is computed from: phases and cohorts change, old rounds mislead


class Progress:
    """A live line on a terminal, one plain line per round elsewhere, nothing when `quiet`.

    Bytes are all that crossed so far, both ways. The cursor stays visible, so that even a killed run leaves a
    usable terminal; an exception or Ctrl-C passes through untouched.
    """

    def __init__(
        self, total_rounds: int, label: str, main_metric: str, quiet: bool = False, console: Console | None = None
    ) -> None:
        self._total, self._label, self._metric, self._quiet = total_rounds, label, main_metric, quiet
        self._console = console or Console(highlight=False)
        self._recent: deque[float] = deque(maxlen=REMEMBERED)
        self._spent = 0.0
        self._epsilon: float | None = None
        self._live = self._console.is_terminal and not quiet
        self._bar = BarColumn(bar_width=BAR)
        self._bars = Bars(
            TextColumn("[bold]{task.description}[/]"),
            self._bar,
            TextColumn("{task.fields[words]}"),
            console=self._console,
            refresh_per_second=4,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        if self._live:
            self._task = self._bars.add_task(escape(self._label), total=self._total, words=f"round 0/{self._total}")
            self._bars.start()
            self._console.show_cursor(True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._live:
            self._bars.stop()

    def spent(self, epsilon: float) -> None:
        """What a run with noise has spent so far, told before its round."""
        self._epsilon = epsilon

    def round(self, index: int, phase: str, seconds: float, value: float | None, bytes_total: int) -> None:
        """Round `index` (from 1, over all phases) is done and saved."""
        if self._quiet:
            return
        self._recent.append(seconds)
        self._spent += seconds
        if self._task is not None:
            self._bars.update(self._task, completed=index, words=escape(self._fitted(index, phase, seconds, value, bytes_total)))
        else:
            words = self._words(index, phase, seconds, value, bytes_total)
            self._console.print(f"{escape(self._label)}  {escape(words)}", soft_wrap=True)

    def note(self, text: str) -> None:
        """A line of its own, above the live one."""
        if not self._quiet:
            self._console.print(escape(f"{self._label}: {text}"), soft_wrap=True)

    def _fitted(self, index: int, phase: str, seconds: float, value: float | None, bytes_total: int) -> str:
        """The words for one line of the terminal: the bar gives way first, then the phase; the expected end stands last."""
        room = self._console.width - cell_len(self._label) - len("  ")
        words = self._words(index, phase, seconds, value, bytes_total)
        if cell_len(words) >= room:
            words = self._words(index, "", seconds, value, bytes_total)
        self._bar.bar_width = max(1, min(BAR, room - cell_len(words)))
        return words

    def _words(self, index: int, phase: str, seconds: float, value: float | None, bytes_total: int) -> str:
        parts = [f"round {index}/{self._total}", phase]
        if value is not None and not math.isnan(value):
            parts.append(f"{metric_name(self._metric, inside=True)} {show(value, self._metric)}")
        if self._epsilon is not None:
            parts.append(f"epsilon {plain(self._epsilon)}")
        parts += [f"{duration(seconds)}/round", f"{megabytes(bytes_total)} MB"]
        left = self._total - index
        if left > 0:
            parts.append(f"about {duration(left * sum(self._recent) / len(self._recent))} left")
        else:
            parts.append(f"done in {duration(self._spent)}")
        return "  ".join(part for part in parts if part)
