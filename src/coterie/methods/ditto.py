"""Ditto: FedAvg as it stands, and beside it a personal model that is pulled towards the global one.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, arXiv 2012.04221,
Algorithm 1:

    w^{t+1} = aggregate of the clients' local solutions from w^t           (here FedAvg)
    v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t))                  (2), for s local steps

paper symbol -> our name: w -> "shared"; v_k -> "personal" in the client's row; lambda -> `lam`; s -> `personal_epochs`.
The pull goes to w^t as it was received, not to the client's own solution. v_k starts as the initial model and never
leaves its client; it has batch-norm statistics of its own ("personal_buffers").

We differ: clients count by examples in the global mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.message import Message
from coterie.method import Batch, ClientRun, Cohort, Everyone, Net, Phase, Plan, Predictor, Site, Train
from coterie.methods.fedavg import Buffers, FedAvg, Supervised, Training, predictor, training_fields
from coterie.tensors import Groups, Tensors, squared_distance


@dataclass(frozen=True)
class PersonalPull:
    """lambda/2 ||v - w^t||^2, whose gradient is lambda (v - w^t)."""

    lam: float

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensor:
        return 0.5 * self.lam * squared_distance(params["personal"], refs["received"])  # (2)


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg):
    """A global model by FedAvg, and a personal one near it."""

    lam: float = 1.0
    personal_epochs: int | None = None  # None: as many epochs or steps as the global model

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.lam < float("inf"):
            raise ValueError(f"lam must be a number >= 0, found {self.lam}. Use 0.1 to 2, or 0 for models that never meet.")
        if self.personal_epochs is not None and self.personal_epochs < 1:
            raise ValueError(f"personal_epochs must be at least 1, found {self.personal_epochs}. Use 1 or more.")

    def switched_off(self) -> str:
        return "" if self.lam else "with lam = 0 the personal models are those of Local, and hear nothing of the others"

    def client_row(self, site: Site) -> Groups:
        return {**super().client_row(site), "personal": site.net.params, "personal_buffers": site.net.buffers}

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from super().client(mine, down, site)
        own = yield from self.personal_ask(mine, down, site)
        row |= {"personal": own.params["personal"], "personal_buffers": own.buffers.get("buffers", {})}
        if self.training.keep_memory:
            row |= {f"memory/{name}": values for name, values in own.memory.items()}
        return row, up

    def personal_ask(self, mine: Groups, down: Message, site: Site) -> Train:
        buffers = self.personal_buffers(mine, down)
        fields = training_fields(self.training)
        if self.personal_epochs is not None:
            fields |= {"epochs": self.personal_epochs, "steps": None}
        return Train(
            name="personal",
            params={"personal": mine["personal"]},
            buffers={"buffers": buffers} if buffers else {},
            refs={"received": down["shared"]},
            loss=Supervised(("personal",), running_statistics=self.buffers == "server"),
            terms=(PersonalPull(self.lam),) if self.lam else (),
            streams={"local": site.data.train},
            memory={name.removeprefix("memory/"): v for name, v in mine.items() if name.startswith("memory/personal/")} or None,
            **fields,  # type: ignore[arg-type]
        )

    def personal_buffers(self, mine: Groups, down: Message) -> Tensors:
        return down.group("buffers") if self.buffers == "server" else mine["personal_buffers"]

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor:
        return predictor({"personal": mine["personal"]}, self.personal_buffers(mine, down))


def ditto(
    *, rounds: int, training: Training = Training(), buffers: Buffers = "average", cohort: Cohort = Everyone(),
    lam: float = 1.0, personal_epochs: int | None = None,
) -> Plan:  # fmt: skip
    """FedAvg, and beside it a personal model near the global one."""
    method = Ditto(training=training, buffers=buffers, lam=lam, personal_epochs=personal_epochs)
    return (Phase("train", rounds, method, cohort),)
