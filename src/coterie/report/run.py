"""A run as values: what the report, the tables and the comparison are made from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from coterie.metrics import Direction
from coterie.report.records import Record, number, record, records, text, whole

MODELS = ("personal", "global", "local")


@dataclass(frozen=True)
class Point:
    """Means over clients of one model on one split after one round."""

    round: int
    phase: str
    split: str
    model: str
    clients: int
    values: dict[str, float]
    std: dict[str, float]
    worst10: dict[str, float]


@dataclass(frozen=True)
class Cost:
    """What one round took."""

    round: int
    phase: str
    seconds: float
    bytes_up: float
    bytes_down: float
    cohort: int
    returned: int
    train_loss: float
    epsilon: dict[str, float] = field(default_factory=dict)  # view -> what is spent so far


@dataclass(frozen=True)
class Event:
    """Something that a reader of the results must know: a client left out, a warning."""

    kind: str
    text: str
    round: int | None = None
    client: str | None = None


@dataclass(frozen=True)
class Wire:
    """Bytes of one slot in one direction in one round, over all clients of the cohort."""

    round: int
    phase: str
    exchange: str | None
    direction: str
    slot: str
    bytes: float
    clients: int
    once: bool


@dataclass(frozen=True)
class ClientResult:
    """One client's numbers for one model on one split after one round."""

    round: int
    model: str
    split: str
    client: str
    name: str
    examples: int
    values: dict[str, float]


@dataclass(frozen=True)
class ClientSizes:
    """One client of the population: how much data, and how its training part falls into classes."""

    name: str
    train: int
    validation: int
    test: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """One metric of one model on test: at the last round, and at the round that is best on validation."""

    last: float
    best: float
    best_round: int | None
    mean: float
    std: float
    worst10: float


@dataclass(frozen=True, eq=False)
class Run:
    """Everything a run folder holds, with `results` computed from the log while there is no summary."""

    path: Path
    info: Record
    summary: Record | None
    points: list[Point]
    costs: list[Cost]
    events: list[Event]
    wire: list[Wire]
    clients: list[ClientResult]
    population: list[ClientSizes]
    results: dict[str, dict[str, Result]]
    directions: dict[str, Direction]
    main: str

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @property
    def method(self) -> str:
        phases = dict.fromkeys(text(phase, "name") for phase in records(self.info, "methods"))
        return text(self.info, "method") or ", ".join(phases) or "unknown"

    @property
    def recipe(self) -> str:
        return text(self.info, "recipe", "unknown")

    @property
    def seed(self) -> int:
        return whole(self.info, "seed")

    @property
    def rounds(self) -> int:
        """Rounds planned, over all phases."""
        return whole(self.info, "rounds", self.rounds_done)

    @property
    def rounds_done(self) -> int:
        return max([line.round for line in self.costs] + [line.round for line in self.points], default=0)

    @property
    def num_clients(self) -> int:
        return len(self.population) or whole(self.summary or {}, "clients")

    def bytes(self, direction: str) -> float:
        """All bytes in one direction, content that is sent only once included."""
        if self.wire or self.summary is None:
            return sum(line.bytes for line in self.wire if line.direction == direction)
        counted = record(self.summary, "bytes")
        return number(counted, direction, 0.0) + (number(counted, "once", 0.0) if direction == "down" else 0.0)

    @property
    def seconds(self) -> float:
        total = number(record(self.summary or {}, "seconds"), "total")
        return sum(cost.seconds for cost in self.costs if cost.seconds == cost.seconds) if math.isnan(total) else total

    def models(self, split: str = "test") -> list[str]:
        """The models that were evaluated on this split, in a fixed order."""
        found = {point.model for point in self.points if point.split == split}
        return [model for model in MODELS if model in found] + sorted(found - set(MODELS))

    def metrics(self) -> list[str]:
        """Names of all numbers, the main one first."""
        found = dict.fromkeys([self.main, *self.directions, *(name for point in self.points for name in point.values)])
        return [name for name in found if any(name in point.values for point in self.points)]

    def curve(self, model: str, metric: str, split: str = "test") -> list[tuple[int, float]]:
        """(round, mean over clients) where it is known."""
        chosen = [point for point in self.points if (point.model, point.split) == (model, split)]
        known = [(point.round, point.values[metric]) for point in chosen if metric in point.values]
        return sorted((round, value) for round, value in known if math.isfinite(value))

    def last_clients(self, model: str, split: str = "test") -> list[ClientResult]:
        """Each client's numbers at the last round at which this model was evaluated."""
        rows = [row for row in self.clients if (row.model, row.split) == (model, split)]
        last = max((row.round for row in rows), default=0)
        return [row for row in rows if row.round == last]
