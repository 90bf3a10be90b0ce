"""What a method may ask of the engine: train, sweep over data, talk to the server in mid-round."""

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Literal, TypeAlias

from torch import Tensor

from coterie.message import Message
from coterie.method.contracts import Batch, Examples, Net
from coterie.method.optimizers import Optimizer
from coterie.randomness import Draw
from coterie.tensors import Groups, Tensors


@dataclass(frozen=True)
class Loss:
    """What a loss function returns: the value to descend, the buffers after the step, numbers for the log."""

    value: Tensor
    buffers: Groups = field(default_factory=dict)
    metrics: Tensors = field(default_factory=dict)


LossFn: TypeAlias = Callable[[Groups, Groups, Groups, Batch, Net], Loss]
Term: TypeAlias = Callable[[Groups, Groups, Groups, Batch, Net], Tensor]
Adjust: TypeAlias = Callable[[Groups, Groups], Groups]  # (gradients, refs) -> gradients
GradientFn: TypeAlias = Callable[[Groups, Groups], tuple[Groups, Loss]]  # (params, buffers) -> gradients and loss
SweepFn: TypeAlias = Callable[[Groups, Groups, Groups, Batch, Net], Tensors]

def check_function(fn: object, role: str) -> None:
    """Refuse what has no value of its own: asks are grouped, stacked and captured by equal functions."""
    if fn is None or (_is_frozen(fn) and callable(fn)):
        return
    if isinstance(fn, types.FunctionType) and "<" not in fn.__qualname__:
        return
    raise ValueError(
        f"The {role} of a Train or Sweep must be a module-level function or a frozen dataclass with __call__, "
        f"found {fn!r}. Move it to module level, and put what changes by round or client into refs."
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """One of several optimisation steps on the same batch (FedFed: classifier, generator, both)."""

    loss: LossFn
    moves: frozenset[str]

    def __post_init__(self) -> None:
        check_function(self.loss, "loss")


@dataclass(frozen=True, kw_only=True, eq=False)
class Train:
    """Ask the engine to train these parameters.

    One step, in this order: gradient(loss + terms) -> adjusts -> clip_norm -> optimiser -> project -> frozen.
    A run of `epochs` passes over the first stream; other streams are cycled beside it.
    """

    params: Groups
    optim: Optimizer | Mapping[str, Optimizer]
    streams: Mapping[str, Examples | Tensors]
    loss: LossFn | None = None
    turns: tuple[Turn, ...] = ()  # several losses on each batch, instead of `loss`
    buffers: Groups = field(default_factory=dict)
    refs: Groups = field(default_factory=dict)
    terms: tuple[Term, ...] = ()
    adjusts: tuple[Adjust, ...] = ()
    gradient: Callable[[GradientFn, Groups, Groups, Groups], tuple[Groups, Loss]] | None = None
    project: Callable[[Groups, Groups], Groups] | None = None
    frozen: Tensors | None = None  # bool per parameter name; True does not move, and its norm uses running statistics
    memory: Groups | None = None  # optimiser state, in and out; None starts fresh
    batch_size: int = 32
    epochs: int | None = None
    steps: int | None = None
    clip_norm: float | None = None
    noise: Mapping[str, Draw] = field(default_factory=dict)
    name: str = "train"

    def __post_init__(self) -> None:
        if (self.loss is None) == (not self.turns):
            raise ValueError("A Train needs either a loss or turns, not both and not neither. Give loss=... for one loss.")
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(f"A Train needs epochs or steps, found epochs={self.epochs}, steps={self.steps}. Give one.")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm must be greater than 0, found {self.clip_norm}. Use for example 10, or None for no clip.")
        if self.epochs is not None and not self.streams:
            raise ValueError("A Train without streams has no passes to count, found epochs and no stream. Give steps=... instead.")
        for fn in (self.loss, *self.terms, *self.adjusts, self.gradient, self.project):
            check_function(fn, "function")
        self._check_groups()

    def _check_groups(self) -> None:
        """Every group that moves is there, and there is a rule for how it moves."""
        for turn in self.turns:
            unknown = sorted(turn.moves - self.params.keys())
            if unknown or not turn.moves:
                raise ValueError(
                    f"A Turn moves {unknown or 'nothing'}, but this Train has the groups {sorted(self.params)}. Name some of those."
                )
        if isinstance(self.optim, Mapping) and self.params.keys() - self.optim.keys():
            missing = sorted(self.params.keys() - self.optim.keys())
            raise ValueError(f"This Train has no optimiser for {missing}, only for {sorted(self.optim)}. Give one for each group.")

    def __iter__(self) -> Generator[Train, Any, Trained]:
        got: Trained = yield self
        return got

    def adding(self, *terms: Term, **refs: Tensors) -> Train:
        """The same ask with further terms in the loss."""
        return replace(self, terms=self.terms + terms, refs=_with_refs(self.refs, refs))

    def adjusting(self, *adjusts: Adjust, **refs: Tensors) -> Train:
        """The same ask with further corrections of the gradient."""
        return replace(self, adjusts=self.adjusts + adjusts, refs=_with_refs(self.refs, refs))


@dataclass(frozen=True, eq=False)
class Trained:
    """The engine's answer to a Train. `lr_sum` is, per group, the sum of the rates of the steps really taken."""

    params: Groups
    buffers: Groups
    memory: Groups
    num_steps: int
    lr_sum: Mapping[str, float]
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """Ask for one pass over data in which nothing moves.

    gather "rows": fn's rows, in the order of the data; "sum": added up over batches;
    "mean": fn's batch means, weighted by the number of real examples.
    """

    fn: SweepFn
    params: Groups
    streams: Mapping[str, Examples | Tensors]
    buffers: Groups = field(default_factory=dict)
    refs: Groups = field(default_factory=dict)
    gather: Literal["rows", "sum", "mean"] = "rows"
    batch_size: int = 256
    noise: Mapping[str, Draw] = field(default_factory=dict)
    name: str = "sweep"

    def __post_init__(self) -> None:
        check_function(self.fn, "fn")
        if not self.streams:
            raise ValueError("A Sweep passes over data, but found no stream. Give streams={'local': ...}.")

    def __iter__(self) -> Generator[Sweep, Any, Tensors]:
        got: Tensors = yield self
        return got


@dataclass(frozen=True, eq=False)
class Exchange:
    """A question to the server in mid-round; the whole cohort waits for it, and the answer is a Message."""

    name: str
    message: Message

    def __iter__(self) -> Generator[Exchange, Any, Message]:
        got: Message = yield self
        return got


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictor:
    """What evaluation sweeps with: `fn` gives one row per example of what the score needs (logits, losses)."""

    fn: SweepFn
    params: Groups
    buffers: Groups = field(default_factory=dict)
    refs: Groups = field(default_factory=dict)
    noise: Mapping[str, Draw] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_function(self.fn, "fn")


Ask: TypeAlias = Train | Sweep | Exchange


def _is_frozen(fn: object) -> bool:
    """Whether it is an instance of a frozen dataclass: only then equal values mean equal functions, for good."""
    if not is_dataclass(fn) or isinstance(fn, type):
        return False
    return bool(getattr(type(fn), "__dataclass_params__").frozen)  # noqa: B009 - not in the type's stub


def _with_refs(old: Groups, new: Mapping[str, Tensors]) -> Groups:
    twice = sorted(old.keys() & new.keys())
    if twice:
        raise ValueError(f"Two methods put refs of the same name {twice} into one ask. Give one of them another name.")
    return {**old, **new}
