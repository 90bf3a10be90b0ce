"""FedBN: batch norms stay on the client, everything else is averaged.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021,
arXiv 2102.07623, Algorithm 1: after local training, for every layer l that is no batch norm

    w_l^{t+1} = sum_k p_k w_{k,l}.

Local are the scales and shifts (gamma, beta) and the running statistics (mu, sigma^2) alike: what is in a norm is
found by its type, so a norm in a shortcut counts too. paper symbol -> our name: gamma, beta -> "private";
mu, sigma^2 -> "buffers" in the client's row.

We differ: clients count by examples (p_k = n_k / n), not equally.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.method import Cohort, Everyone, Phase, Plan
from coterie.methods.fedavg import Buffers, FedAvg, PrivateNames, Training, norm_names


@dataclass(frozen=True, kw_only=True)
class FedBN(FedAvg):
    """FedAvg without the batch norms."""

    buffers: Buffers = "local"
    private: PrivateNames = norm_names

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buffers != "local":
            raise ValueError(
                f"FedBN keeps batch-norm statistics on the client, found buffers='{self.buffers}'. "
                "Leave it at 'local', or use FedAvg to share them."
            )


def fedbn(*, rounds: int, training: Training = Training(), cohort: Cohort = Everyone()) -> Plan:
    """FedAvg with each client's own batch norms, statistics included."""
    return (Phase("train", rounds, FedBN(training=training), cohort),)
