"""A step that is taken again and again: computed at first, replayed once that pays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from coterie.engine.recording.recorder import Recording, record
from coterie.engine.recording.watch import Unrecordable

PAYS_AFTER = 8  # steps: recording one costs about as much as five of them
_MOST_KEPT = 16  # kinds of training, each with its tensors and recordings

_Program = TypeVar("_Program")


class Track:
    """`step` reads and writes tensors that stay where they are; `state` names all that it writes, once it has been taken."""

    def __init__(
        self, step: Callable[[], None], state: Callable[[], Sequence[Tensor]], device: torch.device,
        refused: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self._step, self._state, self._device, self._refused = step, state, device, refused
        self._seen = 0
        self._recording: Recording | None = None
        self._recordable = True

    def take(self, count: int) -> None:
        """So many steps. Where they can't be recorded, `refused` is told the reason; without it `Unrecordable` is raised."""
        if not self._seen:  # only now the state is known
            self._step()
            self._seen, count = 1, count - 1
        self._seen += count
        if count and self._recording is None and self._recordable and self._seen >= PAYS_AFTER:
            self._recordable = False  # tried once
            try:
                self._recording = record(self._step, self._state(), self._device)
            except Unrecordable as error:
                if self._refused is None:
                    raise
                self._refused(str(error))
        once = self._step if self._recording is None else self._recording.replay
        for _ in range(count):
            once()


class Kept(Generic[_Program]):
    """Programs by kind; the one that rested longest makes room."""

    def __init__(self) -> None:
        self._programs: OrderedDict[Hashable, _Program] = OrderedDict()

    def get(self, kind: Hashable, make: Callable[[], _Program]) -> _Program:
        if kind not in self._programs:
            self._programs[kind] = make()
            while len(self._programs) > _MOST_KEPT:
                self._programs.popitem(last=False)
        self._programs.move_to_end(kind)
        return self._programs[kind]

    def drop(self, kind: Hashable) -> None:
        self._programs.pop(kind, None)

    def clear(self) -> None:
        self._programs.clear()
