"""What a round is told, and what it tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.engine.ambush import Tampered
from coterie.engine.client import Failure
from coterie.engine.wire import Ledger
from coterie.privacy.guards import Guards
from coterie.states import ClientId, ServerState
from coterie.tensors import Groups


@dataclass(eq=False)
class RoundResult:
    """What a round changed, and what it has to tell."""

    state: ServerState
    rows: dict[ClientId, Groups]
    ledger: Ledger
    returned: tuple[ClientId, ...]
    left_out: list[tuple[ClientId, Failure]] = field(default_factory=list)
    local: dict[ClientId, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    metrics: list[Mapping[str, float]] = field(default_factory=list)
    delivered: dict[str, set[ClientId]] = field(default_factory=dict)
    tampered: list[Tampered] = field(default_factory=list)
    kept_bytes: int = 0  # Messages kept whole, for "each" slots and by robust reductions
    sent: tuple[ClientId, ...] = ()  # whose guarded Message left them, whatever became of it
    void: str | None = None  # why nothing but noise was absorbed
    clip: float | None = None  # of the next round, where it is adaptive
    secure: Mapping[str, Any] | None = None  # what is told of a secure sum


class TooFew(RuntimeError):
    """Fewer clients came back than the run needs; nothing was changed."""

    def __init__(self, text: str, result: RoundResult) -> None:
        super().__init__(text)
        self.result = result


@dataclass(frozen=True, eq=False)
class Rules:
    """What holds for every round of a run; the guards' clip is this round's."""

    guards: Guards
    min_cohort: int
    norm_ratio: float
    first_clip: float | None = None  # where an adaptive clip began
