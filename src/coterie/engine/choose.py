"""Which backend and device a run uses, and why."""

from __future__ import annotations

import os
import types
from dataclasses import dataclass, fields, is_dataclass

from coterie.engine.devices import choose_devices
from coterie.engine.settings import Settings
from coterie.method import AllBut, Everyone, Fixed, Named, Nobody, Plan
from coterie.tensors import Tensors, num_elements

_WORTH_A_POOL = 2e10  # parameters x examples over the run; from here on workers pay even for the cheapest layers
_START_SECONDS = 10.0  # what starting workers may cost, with room to spare
_WIDTH = 10  # clients at once where nobody says how many
_WIDTHS = (10, 20, 50)  # that are tried
_LARGE = 2_000_000  # parameters of a net whose single step fills an accelerator
ROUNDS_OF_A_TRIAL = 2  # the first records and warms up, the second is measured
_EFFICIENCY = 0.85  # of a worker beside others: they share caches and memory


@dataclass(frozen=True)
class Choice:
    backend: str
    workers: int
    reason: str
    could_use: int = 1  # workers, once a round has shown that they pay
    width: int = 1  # clients at once
    trials: tuple[tuple[str, int], ...] = ()  # (backend, width): each takes some rounds, and the fastest goes on


def choose_backend(settings: Settings, plan: Plan, params: Tensors, examples: list[int]) -> Choice:
    devices = choose_devices(settings.devices)
    cores = os.cpu_count() or 1
    workers = min(settings.workers or (cores if devices[0].type == "cpu" else 1), len(examples))  # more would have nobody to work for
    widest = max((_cohort_size(phase.cohort, len(examples)) for phase in plan), default=0)
    if len(devices) > 1:
        if settings.backend not in ("auto", "pool"):
            raise ValueError(f"Several devices need the backend pool, found {settings.backend}. Use --backend pool, or one device.")
        if settings.workers not in (None, len(devices)):
            raise ValueError(
                f"Every device has one worker, found {settings.workers} workers for {len(devices)} devices. "
                "Leave --workers out, or name a device once for each of its workers."
            )
        return Choice("pool", len(devices), f"a worker for each of the devices {settings.devices}")
    if settings.backend in ("loop", "graph"):
        return Choice(settings.backend, 1, "asked for")
    if settings.backend == "stacked":
        width = min(settings.width or _WIDTH, len(examples))
        return Choice("stacked", 1, f"asked for, {width} clients at once", width=width)
    if settings.backend == "pool":
        return Choice("pool", workers, "asked for")
    if devices[0].type != "cpu":
        return _on_an_accelerator(settings, widest, num_elements(params), sum(phase.rounds for phase in plan))
    for phase in plan:
        found = defined_in_main(phase.method)
        if found is not None:
            return Choice("loop", 1, f"worker processes can't import {found}, which is defined in __main__")
    if workers < 2 or widest < 2:
        return Choice("loop", 1, "one core, or one client at a time")
    mean = sum(examples) / max(len(examples), 1)
    work = num_elements(params) * mean * sum(phase.rounds * _cohort_size(phase.cohort, len(examples)) for phase in plan)
    if work < _WORTH_A_POOL:
        reason = f"{work:.1e} parameters x examples, and no round was long enough to pay for {workers} workers"
        return Choice("loop", 1, reason, could_use=workers if settings.threads == 1 else 1)
    return Choice("pool", workers, f"{workers} one-thread workers for {work:.1e} parameters x examples")


def _on_an_accelerator(settings: Settings, cohort: int, parameters: int, rounds: int) -> Choice:
    """Recorded steps of one client, or of many at once: the first rounds show it, where there are enough of them."""
    widths = [settings.width] if settings.width else [width for width in _WIDTHS if width <= cohort] or [cohort]
    trials = (("graph", 1), *(("stacked", width) for width in widths if width > 1))
    if cohort > 1 and rounds >= ROUNDS_OF_A_TRIAL * (len(trials) + 1):
        return Choice("graph", 1, f"the first of {len(trials)} that take {ROUNDS_OF_A_TRIAL} rounds each", trials=trials)
    if cohort < 2 or parameters >= _LARGE:
        return Choice("graph", 1, f"recorded steps, one client after another, for {parameters:,} parameters")
    width = min(max(widths), cohort)
    return Choice("stacked", 1, f"{width} clients at once, for {parameters:,} parameters", width=width)


def after_a_round(choice: Choice, seconds: float, left: int) -> Choice:
    """The choice once a round of several clients took `seconds`, with `left` more like it to come.

    Parameters x examples says little of a net whose weights are used at many places; a measured round does.
    """
    saved = seconds * left * (1.0 - 1.0 / (_EFFICIENCY * choice.could_use))
    if saved < _START_SECONDS:
        return choice
    told = f"{choice.could_use} one-thread workers, after a round of {seconds:.1f} s in one process with {left} more to come"
    return Choice("pool", choice.could_use, told)


def defined_in_main(value: object) -> str | None:
    """The name of the first class or function of a method (or of what it holds) that only the running script has."""
    kind = value if isinstance(value, type | types.FunctionType) else type(value)
    if kind.__module__ == "__main__":
        return kind.__qualname__
    inside = [getattr(value, f.name) for f in fields(value)] if is_dataclass(value) and not isinstance(value, type) else []
    return next((found for item in inside if (found := defined_in_main(item)) is not None), None)


def _cohort_size(cohort: object, num_clients: int) -> int:
    if isinstance(cohort, Everyone):
        return num_clients
    if isinstance(cohort, Fixed):
        return cohort.size
    if isinstance(cohort, Named):
        return len(cohort.clients)
    if isinstance(cohort, AllBut):
        return _cohort_size(cohort.cohort, num_clients - len(cohort.clients))
    if isinstance(cohort, Nobody):
        return 0
    return max(1, round(getattr(cohort, "rate", 1.0) * num_clients))
