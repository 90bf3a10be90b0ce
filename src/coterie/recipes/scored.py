"""FedAvg weighted by what clients say of themselves: PrivFedTalk's ISFA on any classification, to see what a lie gains."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from coterie.attacks.poison.score import isfa_weight
from coterie.message import Message
from coterie.method import ClientRun, Phase, Plan, Site, Sweep, Wrapper, as_run
from coterie.methods.fedavg import FedAvg, Outputs, Training
from coterie.tensors import Groups


@dataclass(frozen=True)
class Scored(Wrapper):
    """A method whose clients count by a_k = min(n_k, n_max) / n_max exp(gamma (s_k - 1)), s_k: accuracy on the validation part.

    The score is the client's own word: nothing checks it.
    """

    sharpness: float = 2.0
    n_max: int = 64

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from as_run(self.inner.client(mine, down, site))
        score = 0.0
        if len(site.data.validation):
            found = yield from Sweep(
                fn=Outputs(), params={"shared": up["shared"]}, streams={"local": site.data.validation}, gather="rows", name="score"
            )
            score = float((found["logits"].argmax(1) == site.data.validation.all_rows()["y"]).double().mean())
        weight = isfa_weight(score, len(site.data.train), self.sharpness, self.n_max)
        return row, replace(up, weight=torch.tensor(weight, dtype=torch.float64))


def scored(rounds: int, training: Training, sharpness: float, n_max: int) -> Plan:
    return (Phase("train", rounds, Scored(FedAvg(training=training), sharpness, n_max)),)
