"""The hooks of a method, and wrappers around one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from coterie.message import Message, Slot
from coterie.method.asks import Ask, Predictor, Sweep, Train
from coterie.method.contracts import Examples, Net, Parts
from coterie.randomness import Key
from coterie.states import ClientId, ServerState
from coterie.tensors import Groups, Tensors

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

    def switched_off(self) -> str:
        """Says so where a hyperparameter's value takes away what makes this method different; "" elsewhere."""
        return ""

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        """What a client may send; with an exchange, under "<exchange>/<group>". Anything else is refused at the border."""
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

    def switched_off(self) -> str:
        return self.inner.switched_off()

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
