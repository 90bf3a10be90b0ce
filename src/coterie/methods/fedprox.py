"""FedProx: every local step is pulled back towards the model that was received, around any method.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, arXiv 1812.06127, equation (2):

    min_w h_k(w; w^t) = F_k(w) + mu/2 ||w - w^t||^2,   so grad h_k = grad F_k + mu (w - w^t).

paper symbol -> our name: w -> "shared"; w^t -> refs["received"], as it came down; mu -> `mu`. Only what is shared is
pulled: around FedPer the head stays free, around Ditto the personal model does.

We differ: the paper lets weak clients stop early (gamma-inexact solutions); here all do the same epochs, as in the
paper's experiments without stragglers. With mu = 0 no term is added at all, so it is the inner method bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.message import Message
from coterie.method import (
    Batch,
    ClientRun,
    Cohort,
    Everyone,
    Method,
    Net,
    Phase,
    Plan,
    Site,
    Train,
    Wrapper,
    as_run,
    editing,
)
from coterie.methods.fedavg import Buffers, FedAvg, Training
from coterie.tensors import Groups, pick, squared_distance


@dataclass(frozen=True)
class Pull:
    """mu/2 ||w - w^t||^2 on what is shared."""

    mu: float

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensor:
        return 0.5 * self.mu * squared_distance(params["shared"], refs["received"])  # (2)


@dataclass(frozen=True, init=False)
class Proximal(Wrapper):
    """Any method that trains "shared", held near what it received."""

    mu: float

    def __init__(self, mu: float, inner: Method) -> None:
        """mu comes first, as in Proximal(0.01, FedAvg()); a generated __init__ would begin with the inherited field."""
        if not 0.0 <= mu < float("inf"):
            raise ValueError(f"mu must be a number >= 0, found {mu}. Use 0.001 to 1, or 0 for the method without the term.")
        object.__setattr__(self, "mu", mu)
        object.__setattr__(self, "inner", inner)

    def switched_off(self) -> str:
        off = "" if self.mu else "with mu = 0 nothing is pulled, so this is the method without FedProx"
        return off or self.inner.switched_off()

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        run: ClientRun = as_run(self.inner.client(mine, down, site))
        if self.mu > 0.0:
            run = iter(editing(run, lambda ask: self.pulled(ask, down), moves="shared"))
        return (yield from run)

    def pulled(self, ask: Train, down: Message) -> Train:
        return ask.adding(Pull(self.mu), received=pick(down["shared"], ask.params["shared"]))


def fedprox(
    *, rounds: int, training: Training = Training(), buffers: Buffers = "average", cohort: Cohort = Everyone(),
    mu: float = 0.01,
) -> Plan:  # fmt: skip
    """FedAvg whose local steps are pulled towards the received model."""
    return (Phase("train", rounds, Proximal(mu, FedAvg(training=training, buffers=buffers)), cohort),)
