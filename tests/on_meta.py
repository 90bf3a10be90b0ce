"""A training's step on the device "meta": a number that is read back, or a tensor that lies elsewhere, is found at once.

An accelerator refuses both while it records, and no other device shows them on any machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch

from coterie.data.examples import View
from coterie.engine import answers
from coterie.engine.graph.feed import Feed, steps_of
from coterie.engine.graph.program import Program
from coterie.engine.recording.watch import Watch
from coterie.method import Net, Train
from coterie.models.net import Net as Module
from coterie.randomness import Key
from coterie.tensors import Groups


def step_on_meta(ask: Train, net: Net, key: Key) -> None:
    """Raises `Unrecordable` if the step leaves its device."""
    moved = on_meta(ask)
    streams = {stream: answers.as_examples(rows) for stream, rows in moved.streams.items()}
    program = Program(moved, cast(Module, net).to("meta"))
    (first, *_) = steps_of(ask, {name: answers.as_examples(rows) for name, rows in ask.streams.items()}, key, 1)
    feed = Feed(moved, streams, first, program._place, torch.float64)
    with Watch(torch.device("meta")), torch.no_grad():
        program._step(feed)


def on_meta(ask: Train) -> Train:
    def moved(groups: Groups) -> Groups:
        return {group: {n: v.to("meta") for n, v in values.items()} for group, values in groups.items()}

    streams = {}
    for name, stream in ask.streams.items():
        view = answers.as_examples(stream)
        assert isinstance(view, View)
        streams[name] = replace(view, columns={n: v.to("meta") for n, v in view.columns.items()}, index=view.index.to("meta"))
    frozen = None if ask.frozen is None else {n: v.to("meta") for n, v in ask.frozen.items()}
    groups = {"params": moved(ask.params), "buffers": moved(ask.buffers), "refs": moved(ask.refs)}
    return replace(ask, **groups, streams=streams, frozen=frozen, memory=None)
