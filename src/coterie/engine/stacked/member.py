"""One client's part of a question that is asked of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from coterie.data.examples import View
from coterie.engine.answers import as_examples
from coterie.method import Sweep, Train
from coterie.randomness import Key

_Answer = TypeVar("_Answer")


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


def longest_first(
    members: Sequence[Member], length: Callable[[Member], int], answer: Callable[[Sequence[Member]], list[_Answer]]
) -> list[_Answer]:
    """The answers in the members' own order, from an `answer` in which those who are done drop off at the end."""
    order = sorted(range(len(members)), key=lambda i: -length(members[i]))
    found = dict(zip(order, answer([members[i] for i in order]), strict=True))
    return [found[i] for i in range(len(members))]
