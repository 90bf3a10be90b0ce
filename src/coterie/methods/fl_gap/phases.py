"""FL-GAP from its first phase to its last: pre-training at the server, the federated rounds, personal fine-tuning."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.message import Message, Slot
from coterie.method import (
    ClientRun,
    Cohort,
    Everyone,
    Hub,
    Method,
    Nobody,
    Phase,
    Plan,
    Predictor,
    ServerRun,
    Site,
    Sweep,
    Train,
    Wrapper,
)
from coterie.methods.fedavg import Outputs, Supervised, Training, predictor, training_fields
from coterie.methods.fl_gap.layers import Layers
from coterie.methods.fl_gap.method import FlGap, remembered
from coterie.methods.fl_gap.mixing import Bound, Metric, Probe
from coterie.methods.fl_gap.policy import Policy, Upload
from coterie.states import ClientId, ServerState
from coterie.tensors import Groups, Tensors, merge, pick


@dataclass(frozen=True, kw_only=True)
class Pretrain(Method):
    """The server alone trains the shared model on data of its own; what comes after starts from it."""

    training: Training = Training()
    data: str = "public"  # which of the server's sets

    def server_state(self, hub: Hub) -> Groups:
        if self.data not in hub.data:
            raise ValueError(f"Pre-training needs the server's set '{self.data}', found {sorted(hub.data)}. Give public data.")
        return {"shared": hub.net.params, "buffers": hub.net.buffers}

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        raise ValueError("Pretrain runs at the server only, but a client was asked. Use Phase(..., cohort=Nobody()).")

    def absorb(
        self, state: ServerState, mean: Message | None, each: Mapping[ClientId, Message], hub: Hub
    ) -> ServerRun:
        got = yield from Train(
            params={"shared": state.shared["shared"]},
            buffers={"buffers": state.shared.get("buffers", {})},
            loss=Supervised(),
            streams={"local": hub.data[self.data]},
            memory=remembered(state.shared, "memory/"),
            name="pretrain",
            **training_fields(self.training),  # type: ignore[arg-type]
        )
        kept = {f"memory/{name}": values for name, values in got.memory.items()} if self.training.keep_memory else {}
        return state.with_shared(shared=got.params["shared"], buffers=got.buffers["buffers"], **kept)

    def send(self, state: ServerState, client: ClientId, hub: Hub) -> Message:
        return Message({name: state.shared[name] for name in ("shared", "buffers") if name in state.shared})

    def global_model(self, state: ServerState, hub: Hub) -> Predictor:
        return predictor({"shared": state.shared["shared"]}, state.shared.get("buffers", {}))

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor:
        return predictor({"shared": down["shared"]}, down.group("buffers"))


@dataclass(frozen=True)
class FineTune(Wrapper):
    """Every client fine-tunes the groups that are frozen at the end, and the head (2.19); nothing is sent.

    The client deploys what was best on its validation part: by AUROC where it has two classes, ties by loss; the model
    before fine-tuning is one of the candidates.
    """

    inner: FlGap
    training: Training = Training()

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        return {}

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        layers = Layers.of(site.net)
        reference, held = self.inner.received(mine, down)
        start = {**reference, **held, **mine.get("tuned", {})}
        moving = ~mine["policy"]["unfrozen"] | layers.head()  # L_pers
        best, best_score = mine.get("best", {}), mine.get("best_score")
        if best_score is None:
            best_score = {"score": (yield from self.score(start, site, "before"))}
        got = yield from Train(
            params={"shared": pick(start, site.net.params)},
            buffers={"buffers": pick(start, site.net.buffers)},
            loss=Supervised(),
            frozen=layers.frozen(moving),
            streams={"local": site.data.train},
            memory=remembered(mine, "memory/personal/"),
            name="personal",
            **training_fields(self.training),  # type: ignore[arg-type]
        )
        model = merge(got.params["shared"], got.buffers.get("buffers", {}))
        tuned = pick(model, (*layers.params_in(moving), *layers.buffers_in(moving)))
        score = yield from self.score(model, site, "after")
        if tuple(score.tolist()) > tuple(best_score["score"].tolist()):
            best, best_score = tuned, {"score": score}
        row = {**mine, "reference": reference, "held": held, "tuned": tuned, "best": best, "best_score": best_score}
        if self.training.keep_memory:
            row |= {f"memory/personal/{name}": values for name, values in got.memory.items()}
        return row, Message()

    def score(self, model: Tensors, site: Site, name: str) -> Generator[Sweep, Any, Tensor]:
        """(AUROC, minus loss) on the validation part: what candidates are ordered by."""
        examples = site.data.validation if len(site.data.validation) else site.data.train
        found = yield from Sweep(
            fn=Outputs(),
            params={"shared": pick(model, site.net.params)},
            buffers={"buffers": pick(model, site.net.buffers)},
            streams={"local": examples},
            name=f"validation {name}",
        )
        return validation_score(found["logits"], examples.all_rows()["y"])

    def absorb(
        self, state: ServerState, mean: Message | None, each: Mapping[ClientId, Message], hub: Hub
    ) -> ServerState:
        """Who came back has its reference complete, so nothing is sent to it again."""
        rows: dict[ClientId, Groups] = {}
        for client in hub.returned:
            row = state.rows.get(client, {})
            if "link" in row:
                rows[client] = {**row, "link": {**row["link"], "changed": torch.zeros_like(row["link"]["changed"])}}
        return state.with_rows(rows)

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor:
        reference, held = self.inner.received(mine, down)
        model = {**reference, **held, **mine.get("best", {})}
        return predictor({"shared": pick(model, site.net.params)}, pick(model, site.net.buffers))


def validation_score(logits: Tensor, y: Tensor) -> Tensor:
    """(AUROC, minus cross-entropy); AUROC is 0.5 for all models where it is not defined."""
    from sklearn.metrics import roc_auc_score  # here, since it takes longer to import than all of the package

    binary = logits.shape[1] == 2 and bool((y == 0).any() and (y == 1).any())
    auroc = roc_auc_score(y.cpu().numpy(), (logits[:, 1] - logits[:, 0]).double().cpu().numpy()) if binary else 0.5
    return torch.tensor([float(auroc), -float(F.cross_entropy(logits.double(), y))], dtype=torch.float64)


def fl_gap(
    *, rounds: int, input_shape: tuple[int, ...], training: Training = Training(), cohort: Cohort = Everyone(),
    policy: Policy = Policy(), score: Literal["mu_val", "s"] = "mu_val", score_memory: float = 0.5,
    lambda_prox: float = 1e-3, upload: Upload = Upload(), knn: int = 3, metric: Metric = "euclidean",
    self_weight: float | None = None, clip: Bound = None, probe_value: float = 0.0, probe_std: float = 0.0,
    probe_dim: int = 256, pretrain_rounds: int = 0, pretraining: Training | None = None, personal_rounds: int = 3,
    personal_training: Training | None = None,
) -> Plan:  # fmt: skip
    """Own layer groups for every client, mixed over similar clients; `input_shape` is that of one example.

    With `pretrain_rounds` the server first trains on its public data; in the `personal_rounds` at the end every client
    fine-tunes without sending, by default at a tenth of the learning rate.
    """
    probe = Probe(input_shape=input_shape, value=probe_value, noise_std=probe_std, dim=probe_dim)
    method = FlGap(
        training=training, probe=probe, policy=policy, score=score, score_memory=score_memory, lambda_prox=lambda_prox,
        upload=upload, knn=knn, metric=metric, self_weight=self_weight, clip=clip,
    )  # fmt: skip
    phases = [Phase("train", rounds, method, cohort)]
    if pretrain_rounds:
        phases.insert(0, Phase("pretrain", pretrain_rounds, Pretrain(training=pretraining or training), Nobody()))
    if personal_rounds:
        slower = replace(training, optim=replace(training.optim, lr=training.optim.lr / 10))
        phases.append(Phase("personal", personal_rounds, FineTune(method, personal_training or slower)))
    return tuple(phases)
