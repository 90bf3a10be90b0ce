"""The backend that a run uses now, and when another takes its place. Numbers stay the same, on a CPU to the bit."""

from __future__ import annotations

from dataclasses import replace

from coterie.engine.backend import Backend, World
from coterie.engine.choose import ROUNDS_OF_A_TRIAL, Choice, after_a_round
from coterie.engine.graph import Graph
from coterie.engine.loop import Loop
from coterie.engine.pool import Pool
from coterie.engine.settings import Settings
from coterie.engine.stacked import Stacked


class Switch:
    """Opens what was chosen; after a round it may open something else, and says so."""

    def __init__(self, world: World, settings: Settings, choice: Choice) -> None:
        self._world, self._settings = world, settings
        self.choice = choice
        self.backend: Backend = self._opened(choice)
        self._rounds = 0  # that the present trial has had
        self._seconds: list[float] = []  # per client, of every finished trial

    def close(self) -> None:
        self.backend.close()

    def after(self, *, training: float, seconds: float, clients: int, left: int) -> str | None:
        """What changed after a round of `clients` that took `seconds`, `training` of them before it was evaluated."""
        if clients < 2:
            return None
        if self.choice.trials:
            return self._try_on(training / clients)
        found = after_a_round(self.choice, seconds, left)
        if found.backend == self.choice.backend:
            return None
        try:
            self._open(found)
        except ValueError as error:
            self.choice = replace(self.choice, could_use=1, reason=f"worker processes could not start: {error}")
        return self._said()

    def _try_on(self, seconds: float) -> str | None:
        self._rounds += 1
        if self._rounds < ROUNDS_OF_A_TRIAL:
            return None
        self._rounds = 0
        self._seconds.append(seconds)
        trials = self.choice.trials
        if len(self._seconds) < len(trials):
            backend, width = trials[len(self._seconds)]
            self._open(replace(self.choice, backend=backend, width=width))
            return None
        backend, width = trials[self._seconds.index(min(self._seconds))]
        measured = ", ".join(f"{_name(*trial)} {1e3 * took:.3g} ms" for trial, took in zip(trials, self._seconds, strict=True))
        self._open(Choice(backend, 1, f"the fastest of those tried, by training time per client: {measured}", width=width))
        return self._said()

    def _open(self, choice: Choice) -> None:
        opened = self._opened(choice)
        self.backend.close()
        self.backend, self.choice = opened, choice

    def _opened(self, choice: Choice) -> Backend:
        if choice.backend == "pool":
            return Pool(self._world, choice.workers, self._settings.devices, self._settings.precision)
        if choice.backend == "stacked":
            return Stacked(self._world, choice.width)
        if choice.backend == "graph":
            return Graph(self._world)
        return Loop(self._world, self._settings.order)

    def _said(self) -> str:
        return f"Backend {self.choice.backend}: {self.choice.reason}."


def _name(backend: str, width: int) -> str:
    return f"{backend} ({width} at once)" if backend == "stacked" else backend
