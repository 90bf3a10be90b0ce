"""FedALA: what is received is mixed, element by element, with the client's own last model before training begins.

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI 2023, arXiv 2212.01197,
equations (4) and (5), around any method that trains "shared":

    w^ = w_old + (theta^t - w_old) * omega                                    for the last p tensors (4)
    omega <- clip(omega - eta grad_{w^} L * (theta^t - w_old), 0, 1)          elementwise (5)

Lower tensors are the received ones. omega starts at 1 and is learnt on a random part of the client's data, with the
inner method's own loss: the first time until the loss stands still, later for one pass. Then the inner method runs as if
w^ had come down. paper symbol -> our name: omega -> row "omega"; w_old -> row "old", the tensors that were sent last;
p -> `layers`, counted in tensors; s -> `share`; eta -> `eta`.

(5) is one step of gradient descent on omega, since dL/d omega = grad_{w^} L * (theta^t - w_old). A client's first round has
no old model and mixes nothing. What it deploys between rounds is the new model mixed by its last omega.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from coterie.message import Message, Slot
from coterie.method import (
    SGD,
    Batch,
    ClientRun,
    Cohort,
    Everyone,
    Hub,
    Loss,
    LossFn,
    Net,
    PersonalRun,
    Phase,
    Plan,
    Predictor,
    Site,
    Train,
    Wrapper,
    as_run,
    peek,
)
from coterie.methods.fedavg import Buffers, FedAvg, Training
from coterie.tensors import Groups, Tensors, pick, tmap

_STILL = 10  # passes over which the loss must stand still


def mixed(old: Tensors, received: Tensors, omega: Tensors) -> Tensors:
    """(4); exactly the received model at omega = 1, and exactly the old one at 0."""
    return {**received, **{name: torch.lerp(old[name], received[name], weight) for name, weight in omega.items()}}


def unit_interval(params: Groups, refs: Groups) -> Groups:
    return {"omega": tmap(lambda weight: weight.clamp(0.0, 1.0), params["omega"])}  # (5)


@dataclass(frozen=True)
class Through:
    """The inner method's loss, as a function of omega; its other groups stand still."""

    loss: LossFn
    groups: tuple[str, ...]

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        inside = {group: refs[f"ala/{group}"] for group in self.groups}
        inside["shared"] = mixed(refs["ala/old"], refs["ala/shared"], params["omega"])
        return self.loss(inside, buffers, refs, batch, net)


@dataclass(frozen=True)
class Ala(Wrapper):
    """Any method that trains "shared", begun from a learnt mixture of the received and the client's own model."""

    layers: int = 2
    eta: float = 1.0
    share: float = 0.8
    threshold: float = 0.1
    max_passes: int = 100  # of the first time, should the loss never stand still

    def __post_init__(self) -> None:
        for name, count in (("layers", self.layers), ("max_passes", self.max_passes)):
            if count < 1:
                raise ValueError(f"{name} must be at least 1, found {count}. Use 1 or more.")
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"share must lie in (0, 1], found {self.share}. The paper learns omega on 0.8 of the data.")
        for name, value in (("eta", self.eta), ("threshold", self.threshold)):
            if not 0.0 <= value < float("inf"):
                raise ValueError(f"{name} must be a number >= 0, found {value}. Use {1.0 if name == 'eta' else 0.1}.")

    def switched_off(self) -> str:
        off = "" if self.eta else "with eta = 0 omega stays 1, so this is the method without FedALA"
        return off or self.inner.switched_off()

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        inner = self.inner.slots(hub)
        if "shared" not in inner:
            raise ValueError(
                f"FedALA mixes what is shared, but {type(self.inner).__name__} sends {sorted(inner) or 'nothing'}. "
                "Wrap a method with a 'shared' slot, such as FedAvg or Fable."
            )
        return inner

    def client_row(self, site: Site) -> Groups:
        return {**self.inner.client_row(site), "omega": {}, "old": {}}

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        omega = mine["omega"]
        if mine["old"]:
            omega = yield from self.learnt(mine, down, site)
            down = down.with_(shared=mixed(mine["old"], down["shared"], omega))
        row, up = yield from as_run(self.inner.client(mine, down, site))
        last = list(up["shared"])[-self.layers :]
        return {**row, "omega": omega, "old": pick(up["shared"], last)}, up

    def learnt(self, mine: Groups, down: Message, site: Site) -> Generator[Any, Any, Tensors]:
        """omega after one pass, or the first time after as many as it takes."""
        ask = yield from peek(self.inner.client(mine, down, site), moves="shared")
        omega, first = mine["omega"] or tmap(torch.ones_like, mine["old"]), not mine["omega"]
        total = len(site.data.train)
        chosen = site.key.fold("ala").numpy().choice(total, max(1, int(self.share * total)), replace=False)
        part = site.data.train.rows(torch.from_numpy(chosen))
        losses: list[float] = []
        while not losses or (first and not self.stands_still(losses)):
            got = yield from self.one_pass(ask, omega, mine["old"], part)
            omega = got.params["omega"]
            losses.append(got.metrics["objective"])
        return omega

    def one_pass(self, ask: Train, omega: Tensors, old: Tensors, part: Tensors) -> Train:
        if ask.loss is None:
            raise ValueError("FedALA learns through one loss, but this method trains by several turns. Wrap one with a single loss.")
        constants = {f"ala/{group}": values for group, values in ask.params.items()}
        return replace(
            ask, name="ala", params={"omega": omega}, loss=Through(ask.loss, tuple(ask.params)), optim=SGD(lr=self.eta),
            refs={**ask.refs, **constants, "ala/old": old}, streams={**ask.streams, "local": part}, epochs=1, steps=None,
            project=unit_interval, terms=(), adjusts=(), gradient=None, frozen=None, memory=None, clip_norm=None,
        )  # fmt: skip

    def stands_still(self, losses: list[float]) -> bool:
        still = len(losses) > _STILL and statistics.pstdev(losses[-_STILL:]) < self.threshold
        return still or len(losses) >= self.max_passes

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor | PersonalRun | None:
        if mine["omega"]:
            down = down.with_(shared=mixed(mine["old"], down["shared"], mine["omega"]))
        return self.inner.personal(mine, down, site)


def fedala(
    *, rounds: int, training: Training = Training(), buffers: Buffers = "average", cohort: Cohort = Everyone(),
    layers: int = 2, eta: float = 1.0, share: float = 0.8, threshold: float = 0.1, max_passes: int = 100,
) -> Plan:  # fmt: skip
    """FedAvg whose clients begin from a learnt mixture of the received model and their own last one."""
    inner = FedAvg(training=training, buffers=buffers)
    method = Ala(inner, layers=layers, eta=eta, share=share, threshold=threshold, max_passes=max_passes)
    return (Phase("train", rounds, method, cohort),)
