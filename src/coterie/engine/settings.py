"""How a run is run: everything that is not the method, the data or the net."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from coterie.engine.loop import Order
from coterie.engine.transcript import recorded_rounds

BackendName = Literal["auto", "loop", "pool", "graph", "stacked"]
Precision = Literal["fp32", "tf32", "bf16", "fp64"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`eval_clients`: "all" (beyond 200 clients a fixed random 200, and all in the last round), "cohort", or a number.

    `record_messages`: what the server sees of so many first rounds, or of a list of rounds ("1,50"), stays in the run folder, for attacks.
    """

    seed: int = 0
    backend: BackendName = "auto"
    workers: int | None = None
    width: int | None = None
    threads: int = 1
    devices: str = "auto"
    precision: Precision = "fp32"
    order: Order = "forward"
    eval_every: int = 1
    eval_clients: str = "all"
    checkpoint_every: int = 1
    row_memory_mb: float | None = 1024.0
    min_cohort: int = 1
    max_attempts: int = 3
    norm_ratio: float = 1e3
    record_messages: str | int = 0
    quiet: bool = False

    def __post_init__(self) -> None:
        for name in ("threads", "eval_every", "checkpoint_every", "min_cohort", "max_attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, found {getattr(self, name)}. Use 1 or more.")
        for name, known in (("backend", get_args(BackendName)), ("precision", get_args(Precision)), ("order", get_args(Order))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, found '{getattr(self, name)}'. Use one of those.")
        for name in ("workers", "width"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, found {getattr(self, name)}. Use for example 2.")
        if self.eval_clients not in ("all", "cohort") and not (self.eval_clients.isdecimal() and int(self.eval_clients) > 0):
            raise ValueError(f"eval_clients must be all, cohort or a number, found '{self.eval_clients}'. Use for example 50.")
        recorded_rounds(self.record_messages)
        if not self.norm_ratio > 0:
            raise ValueError(f"norm_ratio must be greater than 0, found {self.norm_ratio}. Use for example 1000.")
        if self.row_memory_mb is not None and not self.row_memory_mb > 0:
            raise ValueError(f"row_memory_mb must be greater than 0, found {self.row_memory_mb}. Use for example 256.")
