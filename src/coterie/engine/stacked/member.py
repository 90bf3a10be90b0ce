"""One client's part of a question that is asked of many."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from coterie.data.examples import View
from coterie.engine.answers import as_examples
from coterie.method import Sweep, Train
from coterie.randomness import Key


@dataclass(frozen=True, eq=False)
class Member:
    """Its ask, and the key of its random numbers."""

    ask: Train | Sweep
    key: Key

    @cached_property
    def streams(self) -> dict[str, View]:
        found = {name: as_examples(stream) for name, stream in self.ask.streams.items()}
        assert all(isinstance(stream, View) for stream in found.values()), "the signature lets only views pass"
        return found  # type: ignore[return-value]
