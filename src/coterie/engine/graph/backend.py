"""The loop with recorded steps: trainings of one signature share their tensors and their recordings."""

from __future__ import annotations

import torch

from coterie.engine.answers import Question, own_generator, place_of, reference
from coterie.engine.backend import Remarks, World
from coterie.engine.graph.program import Program
from coterie.engine.loop import Loop
from coterie.engine.recording import Kept, Unrecordable
from coterie.engine.signature import Signature, signature
from coterie.method import Train, Trained
from coterie.tensors import Tensors


class Graph(Loop):
    """One client after another, as `loop` does it, each training from recorded steps.

    Everything outside a Train is answered by the reference, and so is a Train that can't be recorded; the remarks say why.
    """

    name = "graph"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._programs: Kept[Program] = Kept()
        self._alone: set[Signature] = set()  # what can't be recorded
        self._remarks = Remarks()

    def remarks(self) -> list[str]:
        return self._remarks.take()

    def close(self) -> None:
        self._programs.clear()

    def reply_to(self, asked: Question) -> Trained | Tensors:
        ask, context = asked.ask, asked.context
        if not isinstance(ask, Train):
            return reference(asked)
        try:
            kind = (id(context.net), signature(ask))
        except TypeError as error:
            self._remark(ask.name, str(error))
            return reference(asked)
        if kind in self._alone:
            return reference(asked)
        try:
            program = self._programs.get(kind, lambda: Program(ask, context.net))
            with own_generator(context.key, place_of(ask.params, context.net)[0]), torch.no_grad():
                return program.answer(ask, context.round, context.key)
        except Unrecordable as error:
            self._remark(ask.name, str(error))
            self._alone.add(kind)
            self._programs.drop(kind)
            return reference(asked)

    def _remark(self, name: str, reason: str) -> None:
        self._remarks.say(f"The training '{name}' is computed step by step: {reason}")
