"""Who is told how a run goes."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Who is told how a run goes (a progress display)."""

    def spent(self, epsilon: float) -> None: ...  # of a run with noise, before `round`
    def round(self, index: int, phase: str, seconds: float, value: float | None, bytes_total: int) -> None: ...
    def note(self, text: str) -> None: ...


class Silent:
    def spent(self, epsilon: float) -> None:
        pass

    def round(self, index: int, phase: str, seconds: float, value: float | None, bytes_total: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass
