"""Which asks can be answered together: equal functions, names, shapes and dtypes; data, rates and lengths may differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from coterie.data.examples import View
from coterie.engine.answers import as_examples
from coterie.engine.step import optimizer
from coterie.method import Optimizer, Sweep, Train
from coterie.tensors import Groups, Tensors

Signature: TypeAlias = tuple[Any, ...]


def signature(ask: Train | Sweep) -> Signature:
    """Asks with equal signatures differ in numbers only. Raises TypeError, with the reason, for an ask that has none."""
    common = (
        type(ask), ask.name, ask.batch_size, _of_groups(ask.params), _of_groups(ask.buffers), _of_groups(ask.refs),
        _of_streams(ask), tuple(sorted(ask.noise.items())),
    )  # fmt: skip
    if isinstance(ask, Sweep):
        found: Signature = (*common, ask.fn, ask.gather)
    else:
        turns = (ask.loss, *((turn.loss, turn.moves) for turn in ask.turns))
        rules = tuple((group, _without_rate(optimizer(ask, group))) for group in ask.params)
        functions = (turns, ask.terms, ask.adjusts, ask.gradient, ask.project)
        found = (*common, functions, rules, ask.clip_norm, None if ask.frozen is None else _of_tensors(ask.frozen))
    hash(found)
    return found


def _of_groups(groups: Groups) -> Signature:
    return tuple((name, _of_tensors(tensors)) for name, tensors in groups.items())


def _of_tensors(tensors: Mapping[str, object] | Tensors) -> Signature:
    return tuple((name, tuple(value.shape), value.dtype, value.device) for name, value in tensors.items())  # type: ignore[attr-defined]


def _of_streams(ask: Train | Sweep) -> Signature:
    found: list[Any] = []
    for name, stream in ask.streams.items():
        examples = as_examples(stream)
        if not isinstance(examples, View):
            raise TypeError(f"the stream '{name}' is a {type(examples).__name__}, not a View on columns")
        columns = tuple((n, tuple(c.shape[1:]), c.dtype, c.device) for n, c in examples.columns.items())
        found.append((name, columns, examples.decode))
    return tuple(found)


def _without_rate(optim: Optimizer) -> Optimizer:
    """The rate is a number of each client and step, so it is no part of what is compared."""
    return replace(optim, lr=0.0, schedule="constant")
