"""Local and Centralized: the two references that every federated number is read against.

Local: each client trains alone on its own data; nothing crosses the wire.
Centralized: the server holds all data and trains one model for as many epochs: not federated, an upper reference.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.message import Message
from coterie.method import ClientRun, Cohort, Everyone, Hub, Method, Nobody, Phase, Plan, Predictor, ServerRun, Site, Train
from coterie.methods.fedavg import Supervised, Training, predictor, training_fields
from coterie.states import ServerState
from coterie.tensors import Groups


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """Every client its own model, from the same start."""

    training: Training = Training()

    def client_row(self, site: Site) -> Groups:
        return {"own": site.net.params, "buffers": site.net.buffers}

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        buffers = mine.get("buffers", {})
        got = yield from Train(
            params={"own": mine["own"]},
            buffers={"buffers": buffers} if buffers else {},
            loss=Supervised(("own",)),
            streams={"local": site.data.train},
            memory={name.removeprefix("memory/"): v for name, v in mine.items() if name.startswith("memory/")} or None,
            **training_fields(self.training),  # type: ignore[arg-type]
        )
        row = {**mine, "own": got.params["own"], "buffers": got.buffers.get("buffers", {})}
        if self.training.keep_memory:
            row |= {f"memory/{name}": values for name, values in got.memory.items()}
        return row, Message()

    def send(self, state: ServerState, client: int, hub: Hub) -> Message:
        return Message()

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor:
        return predictor({"own": mine["own"]}, mine.get("buffers", {}))


@dataclass(frozen=True, kw_only=True)
class Centralized(Method):
    """One model on the pooled data, which the server holds as `hub.data["pooled"]`."""

    training: Training = Training()

    def server_state(self, hub: Hub) -> Groups:
        return {"shared": hub.net.params, "buffers": hub.net.buffers}

    def client(self, mine: Groups, down: Message, site: Site) -> tuple[Groups, Message]:
        return mine, Message()

    def absorb(self, state: ServerState, mean: Message | None, each: object, hub: Hub) -> ServerRun:
        if "pooled" not in hub.data:
            raise ValueError(
                "Centralized needs all data at the server, found no 'pooled' set. "
                "Pass the population through coterie.recipes.pooled(population)."
            )
        buffers = state.shared["buffers"]
        memory = {name.removeprefix("memory/"): v for name, v in state.shared.items() if name.startswith("memory/")}
        got = yield from Train(
            params={"shared": state.shared["shared"]},
            buffers={"buffers": buffers} if buffers else {},
            loss=Supervised(("shared",)),
            streams={"local": hub.data["pooled"]},
            memory=memory or None,
            **training_fields(self.training),  # type: ignore[arg-type]
        )
        kept = {f"memory/{name}": v for name, v in got.memory.items()} if self.training.keep_memory else {}
        return state.with_shared(shared=got.params["shared"], buffers=got.buffers.get("buffers", {}), **kept)

    def send(self, state: ServerState, client: int, hub: Hub) -> Message:
        return Message()

    def global_model(self, state: ServerState, hub: Hub) -> Predictor:
        return predictor({"shared": state.shared["shared"]}, state.shared["buffers"])

    def personal(self, mine: Groups, down: Message, site: Site) -> None:
        return None


def local(*, rounds: int, training: Training = Training(), cohort: Cohort = Everyone()) -> Plan:
    """Every client alone: what federation has to beat."""
    return (Phase("train", rounds, Local(training=training), cohort),)


def centralized(*, rounds: int, training: Training = Training()) -> Plan:
    """All data in one place: what privacy costs."""
    return (Phase("train", rounds, Centralized(training=training), Nobody()),)
