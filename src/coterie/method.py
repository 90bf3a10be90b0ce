"""What a method is, and what it may ask for.

A method is written the way its paper prints it. Wherever the paper says "train" the client run asks the
engine (`got = yield from Train(...)`), where it passes over data without training it asks `Sweep`, and where
it talks to the server in mid-round it asks `Exchange`. The engine owns the only training loop.
"""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

from torch import Tensor, nn

from coterie.message import Message, Slot
from coterie.randomness import Draw, Key
from coterie.states import ClientId, ServerState
from coterie.tensors import Groups, Tensors

Batch: TypeAlias = dict[str, Tensors]
"""One step's data: stream name -> columns ("x", "y", ..., and "mask", 1 for a real example); "noise" -> draws."""


class Examples(Protocol):
    """Rows of a data set, by index: nothing is copied until a batch is gathered."""

    def __len__(self) -> int: ...
    def rows(self, positions: Tensor) -> Tensors: ...
    def all_rows(self) -> Tensors: ...


class Parts(Protocol):
    """A client's own train, validation and test part; they never overlap."""

    @property
    def train(self) -> Examples: ...
    @property
    def validation(self) -> Examples: ...
    @property
    def test(self) -> Examples: ...


class Net(Protocol):
    """A module as a pure function of named parameters and buffers."""

    @property
    def params(self) -> Tensors: ...  # initial values, all names
    @property
    def buffers(self) -> Tensors: ...  # what changes without a gradient (batch-norm statistics)
    @property
    def head_names(self) -> tuple[str, ...]: ...
    @property
    def encoder_names(self) -> tuple[str, ...]: ...
    @property
    def norm_names(self) -> tuple[str, ...]: ...  # affine parameters of batch norms
    @property
    def num_features(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]: ...  # layer groups, input to output
    @property
    def buffer_groups(self) -> Mapping[str, tuple[str, ...]]: ...  # the buffers of the same groups

    def apply(self, params: Tensors, buffers: Tensors, columns: Tensors, *, train: bool) -> tuple[Tensor, Tensors]: ...
    def encode(self, params: Tensors, buffers: Tensors, columns: Tensors, *, train: bool) -> tuple[Tensor, Tensors]: ...
    def head(self, params: Tensors, features: Tensor) -> Tensor: ...
    def loss(self, outputs: Tensor, columns: Tensors) -> tuple[Tensor, Tensors]: ...
    def freezing(self, frozen: Tensors) -> Net: ...
    def with_running_statistics(self) -> Net: ...
    def bind(self, params: Tensors, buffers: Tensors) -> nn.Module: ...


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

Schedule = Literal["constant", "cosine_round", "cosine_step"]


@dataclass(frozen=True, kw_only=True)
class SGD:
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        _check_rate(self.lr)
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum must lie in [0, 1), found {self.momentum}. Use 0.9, or 0 for none.")


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam with decoupled weight decay (AdamW); weight_decay 0 is plain Adam."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        _check_rate(self.lr)


Optimizer: TypeAlias = SGD | Adam


def _check_rate(lr: float) -> None:
    if not lr >= 0.0:
        raise ValueError(f"The learning rate must be a number >= 0, found {lr}. Use for example 0.05.")


def check_function(fn: object, role: str) -> None:
    """Refuse what has no value of its own: asks are grouped, stacked and captured by equal functions."""
    if fn is None or (is_dataclass(fn) and not isinstance(fn, type) and callable(fn)):
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
        for fn in (self.loss, *self.terms, *self.adjusts, self.gradient, self.project):
            check_function(fn, "function")

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
ClientRun: TypeAlias = Generator[Ask, Any, tuple[Groups, Message]]
ServerRun: TypeAlias = Generator[Train | Sweep, Any, ServerState]
PersonalRun: TypeAlias = Generator[Sweep, Any, Predictor]


@dataclass(frozen=True)
class Round:
    """Where the run stands. `index` counts over all phases, `phase_index` within this one, both from 0."""

    index: int
    total: int
    phase: str
    phase_index: int
    phase_rounds: int
    cohort: tuple[ClientId, ...]
    num_clients: int


@dataclass(frozen=True, eq=False)
class Site:
    """A client's side: its data never leaves it."""

    client: ClientId
    round: Round
    data: Parts
    net: Net
    key: Key
    public: Mapping[str, Tensors] = field(default_factory=dict)  # what the server published


@dataclass(frozen=True, eq=False)
class Hub:
    """The server's side. `data` are public or server-held sets; `returned` says whose Messages arrived."""

    round: Round
    net: Net
    key: Key
    data: Mapping[str, Examples] = field(default_factory=dict)
    returned: tuple[ClientId, ...] = ()


class Method(ABC):
    """A federated method: a frozen dataclass of hyperparameters and these hooks, all without side effects."""

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        """What a client may send. Anything else is refused at the border."""
        return {}

    def server_state(self, hub: Hub) -> Groups:
        """The server's groups before the first round."""
        return {}

    def client_row(self, site: Site) -> Groups:
        """A client's private memory before its first round; it never leaves the client."""
        return {}

    def server_row(self, hub: Hub) -> Groups:
        """What the server remembers about a client before its first round."""
        return {}

    def send(self, state: ServerState, client: ClientId, hub: Hub) -> Message:
        """What this client receives at the start of the round."""
        return Message(dict(state.shared))

    @abstractmethod
    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun | tuple[Groups, Message]:
        """What the client does with what it received: its new row, and what it sends."""

    def answer(
        self, state: ServerState, name: str, messages: Mapping[ClientId, Message], hub: Hub
    ) -> tuple[ServerState, Mapping[ClientId, Message]]:
        """The server's answers to an Exchange."""
        raise ValueError(f"{type(self).__name__} asks the exchange '{name}' but has no answer. Write {type(self).__name__}.answer.")

    def absorb(
        self, state: ServerState, mean: Message | None, each: Mapping[ClientId, Message], hub: Hub
    ) -> ServerState | ServerRun:
        """What the server does with what came back. `mean` is None when nobody came back."""
        return state

    def global_model(self, state: ServerState, hub: Hub) -> Predictor | None:
        """The server's own model, where the method has one."""
        return None

    @abstractmethod
    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor | PersonalRun | None:
        """What the client would deploy now; it may sweep but never trains."""


@dataclass(frozen=True)
class Wrapper(Method):
    """A method around another: what it does not say, the inner one does. It keeps its own rows and slots by name."""

    inner: Method

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        return self.inner.slots(hub)

    def server_state(self, hub: Hub) -> Groups:
        return self.inner.server_state(hub)

    def client_row(self, site: Site) -> Groups:
        return self.inner.client_row(site)

    def server_row(self, hub: Hub) -> Groups:
        return self.inner.server_row(hub)

    def send(self, state: ServerState, client: ClientId, hub: Hub) -> Message:
        return self.inner.send(state, client, hub)

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun | tuple[Groups, Message]:
        return self.inner.client(mine, down, site)

    def answer(
        self, state: ServerState, name: str, messages: Mapping[ClientId, Message], hub: Hub
    ) -> tuple[ServerState, Mapping[ClientId, Message]]:
        return self.inner.answer(state, name, messages, hub)

    def absorb(
        self, state: ServerState, mean: Message | None, each: Mapping[ClientId, Message], hub: Hub
    ) -> ServerState | ServerRun:
        return self.inner.absorb(state, mean, each, hub)

    def global_model(self, state: ServerState, hub: Hub) -> Predictor | None:
        return self.inner.global_model(state, hub)

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor | PersonalRun | None:
        return self.inner.personal(mine, down, site)


def as_run(result: Any) -> Generator[Any, Any, Any]:
    """A hook that asks nothing may be a plain function: give its value the form of a run."""
    if isinstance(result, types.GeneratorType):
        return (yield from result)
    return result


class editing:
    """Drive an inner client run and change the asks that move a group: how one method wraps another.

    Only `Train` asks whose params hold `moves` are changed (and only those called `named`, where given).
    `started`, `trained` and `lr_sum` tell of the changed asks: first start, last result, sum of rates per group.
    """

    def __init__(self, run: Any, change: Callable[[Train], Train], *, moves: str, named: str | None = None) -> None:
        self._run = as_run(run)
        self._change = change
        self._moves = moves
        self._named = named
        self._matched = False
        self.started: Groups = {}
        self.trained: Groups = {}
        self.lr_sum: dict[str, float] = {}

    def __iter__(self) -> ClientRun:
        run, answer, error = self._run, None, None
        while True:
            try:
                ask = run.throw(error) if error is not None else run.send(answer)
            except StopIteration as stop:
                if not self._matched:
                    raise ValueError(
                        f"An edit of asks that move '{self._moves}' matched none in this client's run. "
                        "Wrap a method that trains that group, or edit another group."
                    ) from None
                return stop.value  # type: ignore[no-any-return]
            error = None
            edited = self._matches(ask)
            if edited:
                ask = self._change(ask)
                self._matched = True
                for group, tensors in ask.params.items():
                    self.started.setdefault(group, tensors)
            try:
                answer = yield ask
            except GeneratorExit:
                run.close()
                raise
            except Exception as raised:  # noqa: BLE001 - handed on to the inner run, so that its line is in the traceback
                error = raised
                continue
            if edited:
                self.trained.update(answer.params)
                for group, total in answer.lr_sum.items():
                    self.lr_sum[group] = self.lr_sum.get(group, 0.0) + total

    def _matches(self, ask: Ask) -> bool:
        return isinstance(ask, Train) and self._moves in ask.params and self._named in (None, ask.name)


def peek(run: Any, *, moves: str) -> Train:
    """The first ask of a run that moves this group; the run is closed and must be started again."""
    run = as_run(run)
    try:
        ask = next(run)
    except StopIteration:
        raise ValueError(f"This client run asks nothing, so there is no ask that moves '{moves}' to look at.") from None
    finally:
        run.close()
    if not (isinstance(ask, Train) and moves in ask.params):
        raise ValueError(f"The first ask of this client run does not move '{moves}'. Wrap a method that trains it first.")
    return ask


def _with_refs(old: Groups, new: Mapping[str, Tensors]) -> Groups:
    twice = sorted(old.keys() & new.keys())
    if twice:
        raise ValueError(f"Two methods put refs of the same name {twice} into one ask. Give one of them another name.")
    return {**old, **new}


@dataclass(frozen=True)
class Everyone:
    """All clients, every round."""

    def draw(self, num_clients: int, key: Key) -> tuple[ClientId, ...]:
        return tuple(range(num_clients))


@dataclass(frozen=True)
class Fixed:
    """`size` different clients, drawn anew each round."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"A cohort needs at least 1 client, found {self.size}. Use a number between 1 and the population.")

    def draw(self, num_clients: int, key: Key) -> tuple[ClientId, ...]:
        if self.size > num_clients:
            raise ValueError(f"The cohort ({self.size}) is larger than the population ({num_clients}). Use at most {num_clients}.")
        return tuple(sorted(int(c) for c in key.numpy().choice(num_clients, self.size, replace=False)))


@dataclass(frozen=True)
class Poisson:
    """Each client with probability `rate`, independently: what an accountant amplifies by. May be empty."""

    rate: float

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0:
            raise ValueError(f"The sampling rate must lie in (0, 1], found {self.rate}. Use for example 0.1.")

    def draw(self, num_clients: int, key: Key) -> tuple[ClientId, ...]:
        return tuple(int(c) for c in (key.numpy().random(num_clients) < self.rate).nonzero()[0])


@dataclass(frozen=True)
class Named:
    """These clients, every round."""

    clients: Sequence[ClientId]

    def draw(self, num_clients: int, key: Key) -> tuple[ClientId, ...]:
        missing = [c for c in self.clients if not 0 <= c < num_clients]
        if missing:
            raise ValueError(f"Clients {missing} do not exist; there are {num_clients}. Use ids from 0 to {num_clients - 1}.")
        return tuple(sorted(self.clients))


@dataclass(frozen=True)
class Nobody:
    """A phase of the server alone."""

    def draw(self, num_clients: int, key: Key) -> tuple[ClientId, ...]:
        return ()


Cohort: TypeAlias = Everyone | Fixed | Poisson | Named | Nobody


@dataclass(frozen=True)
class Phase:
    """Some rounds of one method. Groups and rows of the same name carry over from the phase before."""

    name: str
    rounds: int
    method: Method
    cohort: Cohort = Everyone()

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, found {self.rounds} in phase '{self.name}'. Use 1 or more.")


Plan: TypeAlias = tuple[Phase, ...]
