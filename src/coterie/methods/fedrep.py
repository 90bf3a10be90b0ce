"""FedRep: each round first the client's own head on the received encoder, then the encoder under that head.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021,
arXiv 2102.07078, Algorithm 1:

    h_k   <- GRD(f_k(h, phi^t), h_k, alpha)      for tau_h local updates, phi^t fixed     (ClientUpdate, head)
    phi_k <- GRD(f_k(h_k, phi), phi^t, alpha)    for the updates of the representation, h_k fixed
    phi^{t+1} = sum_k p_k phi_k                                                            (server)

paper symbol -> our name: phi -> "shared"; h_k -> "private"; tau_h -> `head_epochs`; the representation's updates are
those of `training`. While one part moves, the other is a constant of the ask. Batch-norm statistics are those of the
batches that pass in either half, and go on from the first into the second.

We differ: clients count by examples, and the unit of tau_h is an epoch, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from coterie.message import Message
from coterie.method import Cohort, Everyone, Phase, Plan, Site, Trained
from coterie.methods.fedavg import Buffers, FedAvg, PrivateNames, Training, head_names
from coterie.tensors import Groups


@dataclass(frozen=True, kw_only=True)
class FedRep(FedAvg):
    """A shared encoder and private heads, trained one after the other."""

    private: PrivateNames = head_names
    head_epochs: int = 1  # the authors' code: 4 of 5 local epochs

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_epochs < 1:
            raise ValueError(f"head_epochs must be at least 1, found {self.head_epochs}. Use 1 or more.")

    def train(self, mine: Groups, down: Message, site: Site) -> Generator[Any, Any, Trained]:
        both = self.ask(mine, down, site)
        encoder, own = both.params["shared"], both.params["private"]
        head = yield from replace(
            both, name="head", params={"private": own}, refs={"shared": encoder}, epochs=self.head_epochs, steps=None
        )
        body = yield from replace(
            both, name="body", params={"shared": encoder}, refs={"private": head.params["private"]}, buffers=head.buffers
        )
        return replace(body, params={**head.params, **body.params}, memory={**head.memory, **body.memory})


def fedrep(
    *, rounds: int, training: Training = Training(), buffers: Buffers = "average", cohort: Cohort = Everyone(),
    head_epochs: int = 1,
) -> Plan:  # fmt: skip
    """A shared encoder under each client's own head; the head is trained first, then the encoder."""
    return (Phase("train", rounds, FedRep(training=training, buffers=buffers, head_epochs=head_epochs), cohort),)
