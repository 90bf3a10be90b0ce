"""The loop with recorded steps: trainings of one signature share their tensors and their recordings."""

from __future__ import annotations

from collections import OrderedDict

import torch

from coterie.engine.answers import Question, own_generator, reference
from coterie.engine.backend import World
from coterie.engine.graph.program import Program
from coterie.engine.loop import Loop
from coterie.engine.recording import Unrecordable
from coterie.engine.signature import Signature, signature
from coterie.method import Train, Trained
from coterie.tensors import Tensors

_MOST_PROGRAMS = 16  # kinds of training that are kept ready, each with a net's memory; the one that rested longest goes first


class Graph(Loop):
    """One client after another, as `loop` does it, each training from recorded steps.

    Everything outside a Train is answered by the reference, and so is a Train that can't be recorded; the remarks say why.
    """

    name = "graph"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._programs: OrderedDict[Signature, Program] = OrderedDict()
        self._alone: set[Signature] = set()  # what can't be recorded
        self._remarks: list[str] = []
        self._told: set[str] = set()

    def remarks(self) -> list[str]:
        told, self._remarks = self._remarks, []
        return told

    def close(self) -> None:
        self._programs.clear()

    def reply_to(self, asked: Question) -> Trained | Tensors:
        ask, context = asked.ask, asked.context
        if not isinstance(ask, Train):
            return reference(asked)
        try:
            kind = (id(context.net), signature(ask), ask.memory is None)
        except TypeError as error:
            self._remark(ask.name, str(error))
            return reference(asked)
        if kind in self._alone:
            return reference(asked)
        try:
            program = self._program(kind, asked)
            with own_generator(context.key, torch.device("cpu")), torch.no_grad():
                return program.answer(ask, context.round, context.key)
        except Unrecordable as error:
            self._remark(ask.name, str(error))
            self._alone.add(kind)
            self._programs.pop(kind, None)
            return reference(asked)

    def _program(self, kind: Signature, asked: Question) -> Program:
        assert isinstance(asked.ask, Train)
        if kind not in self._programs:
            self._programs[kind] = Program(asked.ask, asked.context.net)
            while len(self._programs) > _MOST_PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(kind)
        return self._programs[kind]

    def _remark(self, name: str, reason: str) -> None:
        text = f"The training '{name}' is computed step by step: {reason}"
        if text not in self._told:
            self._told.add(text)
            self._remarks.append(text)
