"""FABLE from its first round to clients that join at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from coterie.message import Message, Slot
from coterie.method import AllBut, ClientRun, Cohort, Everyone, Hub, Named, Optimizer, Phase, Plan, Site, Wrapper
from coterie.methods.fable.anchors import Fill, Selection
from coterie.methods.fable.coordinates import FableLoss
from coterie.methods.fable.method import Fable, Refresh
from coterie.methods.fedavg import Buffers, Training
from coterie.states import ClientId, ServerState
from coterie.tensors import Groups


@dataclass(frozen=True)
class Join(Wrapper):
    """A new client draws its anchors and fits decoder and scaling to the finished encoder; nothing is sent.

    The encoder's weights stand still. Batch statistics that are the client's own begin to follow its data, so
    anchors are then encoded at the start of every epoch; other statistics stand still too.
    """

    inner: Fable

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        return {}

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        fable = replace(self.inner, refresh="epoch") if mine.get("buffers") and self.inner.refresh == "round" else self.inner
        ask = fable.ask(mine, down, site)
        memory = {name: values for name, values in (ask.memory or {}).items() if name.startswith("private/")}
        ask = replace(
            ask, params={"private": mine["private"]}, refs={**ask.refs, "shared": down["shared"]}, memory=memory or None,
            loss=FableLoss(running_statistics=fable.buffers != "local", every_step=fable.refresh == "step"), name="join",
        )  # fmt: skip
        got = yield from fable.with_anchors(ask, mine)
        row = {**mine, "private": got.params["private"]}
        if fable.buffers == "local":
            row["buffers"] = got.buffers.get("buffers", {})
        if fable.training.keep_memory:
            row |= {f"memory/{name}": values for name, values in got.memory.items()}
        return row, Message()

    def absorb(self, state: ServerState, mean: Message | None, each: object, hub: Hub) -> ServerState:
        return state


def fable(
    *, rounds: int, training: Training = Training(), buffers: Buffers = "local", cohort: Cohort = Everyone(),
    anchors: int = 64, linear: bool = True, selection: Selection = "random", refresh: Refresh = "round",
    fill: Fill = "fewer", exclude_anchors: bool = False, private_optim: Optimizer | None = None,
    joining: tuple[ClientId, ...] = (), joining_rounds: int = 1, joining_encoder: Literal["frozen", "trained"] = "frozen",
) -> Plan:  # fmt: skip
    """A shared encoder read through private anchors; decoder and anchors never leave the client.

    Clients in `joining` come after all rounds, for `joining_rounds` more: alone, with the encoder "frozen", or with everybody
    else, who go on as before ("trained").
    """
    method = Fable(
        training=training, buffers=buffers, anchors=anchors, linear=linear, selection=selection, refresh=refresh, fill=fill,
        exclude_anchors=exclude_anchors, private_optim=private_optim,
    )  # fmt: skip
    if joining_encoder not in ("frozen", "trained"):
        raise ValueError(f"joining_encoder must be frozen or trained, found '{joining_encoder}'. Use 'frozen'.")
    if not joining:
        return (Phase("train", rounds, method, cohort),)
    last = Phase("join", joining_rounds, Join(method), Named(joining))
    if joining_encoder == "trained":
        last = Phase("join", joining_rounds, method, cohort)
    return (Phase("train", rounds, method, AllBut(joining, cohort)), last)
