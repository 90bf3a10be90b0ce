"""SCAFFOLD: control variates that take the drift out of local steps, around any method.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
arXiv 1910.06378, Algorithm 1 with option II.

    local step   y <- y - eta_l (g(y) + c - c_i)                      (line 10)
    c_i^+ = c_i - c + (x - y) / (K eta_l)                             (line 12, option II)
    server       x <- x + mean(y - x),  c <- c + |S|/N mean(c_i^+ - c_i)    (lines 16, 17; eta_g = 1)

paper symbol -> our name: x, y -> "shared"; c, c_i -> "control"; K eta_l -> lr_sum of the steps really taken.
Every client counts the same (the paper's 1/|S|), so no weight is sent. The correction is derived for plain SGD:
momentum on the shared group is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coterie.message import Message, Slot
from coterie.method import SGD, ClientRun, Cohort, Everyone, Hub, Phase, Plan, ServerRun, Site, Train, Wrapper, as_run, editing
from coterie.methods.fedavg import Buffers, FedAvg, Training
from coterie.states import ServerState
from coterie.tensors import Groups, add, scale, sub, tmap, zeros_like


def correct(grads: Groups, refs: Groups) -> Groups:
    shared = tmap(lambda g, c, c_i: g + c - c_i, grads["shared"], refs["c"], refs["c_i"])
    return {**grads, "shared": shared}  # Alg. 1, line 10


@dataclass(frozen=True)
class Scaffold(Wrapper):
    """Any method that trains "shared", with control variates on it."""

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        inner = self.inner.slots(hub)
        if "shared" not in inner:
            raise ValueError(
                f"SCAFFOLD corrects what is shared and averaged, but {type(self.inner).__name__} sends {sorted(inner) or 'nothing'}. "
                "Wrap a method with a 'shared' slot, such as FedAvg or Fable."
            )
        control = Slot(inner["shared"].spec, kind="change", reduce="sum")
        return {**inner, "control": control}

    def server_state(self, hub: Hub) -> Groups:
        state = self.inner.server_state(hub)
        return {**state, "control": zeros_like(state["shared"])}

    def client_row(self, site: Site) -> Groups:
        return {**self.inner.client_row(site), "control": {}}  # c_i = 0, for what the first download holds

    def send(self, state: ServerState, client: int, hub: Hub) -> Message:
        return self.inner.send(state, client, hub).plus(control=state.shared["control"])

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        c = down["control"]
        c_i = mine["control"] or zeros_like(c)

        def corrected(ask: Train) -> Train:
            refuse_momentum(ask)
            return ask.adjusting(correct, c=c, c_i=c_i)

        run = editing(self.inner.client(mine, down, site), corrected, moves="shared")
        row, up = yield from run
        moved = sub(run.started["shared"], run.trained["shared"])
        new = add(sub(c_i, c), scale(moved, 1.0 / run.lr_sum["shared"]))  # Alg. 1, line 12, option II
        return {**row, "control": new}, replace(up.plus(control=sub(new, c_i)), weight=None)

    def absorb(self, state: ServerState, mean: Message | None, each: Mapping[int, Message], hub: Hub) -> ServerRun:
        after: ServerState = yield from as_run(self.inner.absorb(state, mean, each, hub))
        if mean is None:
            return after
        step = scale(mean["control"], 1.0 / hub.round.num_clients)
        return after.with_shared(control=add(state.shared["control"], step))  # Alg. 1, line 17


def refuse_momentum(ask: Train) -> None:
    optim = ask.optim if not isinstance(ask.optim, Mapping) else ask.optim["shared"]
    if not isinstance(optim, SGD) or optim.momentum:
        raise ValueError(
            f"SCAFFOLD's correction holds for plain SGD on what is shared, found {optim}. "
            "Use SGD(lr=...) without momentum, or set another optimiser for the private group."
        )
    if not optim.lr:
        raise ValueError("SCAFFOLD's control variates divide by the learning rate, found 0. Use for example SGD(lr=0.05).")


def scaffold(
    *, rounds: int, training: Training = Training(), buffers: Buffers = "average", cohort: Cohort = Everyone()
) -> Plan:
    """FedAvg whose local steps are corrected for drift (twice the bytes)."""
    return (Phase("train", rounds, Scaffold(FedAvg(training=training, buffers=buffers)), cohort),)
