"""FL-GAP: every client trains and uploads only some layer groups, and the server mixes each group over similar clients.

"FL-GAP: Graph-based Adaptive Personalization for Federated Deepfake Detection" (anonymous submission). One round:

    client i:  loads theta_ref,i (first everything, later only groups that changed), trains the groups in U_i
               with the proximal term lambda/2 sum_{l in U} ||theta_l - theta_ref,l||^2, and uploads
               {theta_{i,l} : l in U_i} (C.11); then chooses the next U_i by its policy
    server:    theta_i = theta_ref,i with the uploaded groups replaced (clipped, C.17)
               z_i = features of theta_i at a data-free probe (2.9); N_i = the knn nearest by z
               theta_ref,i <- sum_{j in N_i(l)} W_ij theta_{j,l} / sum_{j in N_i(l)} W_ij for every group l (2.15)

After the last round a client fine-tunes the groups that are frozen, and the head, without sending anything (2.19).
A group owns its batch norms: both affine parameters and running statistics travel iff the group is open, and a frozen
group normalises with its running statistics, or it would change without being trained.

paper symbol -> our name: theta_ref -> "reference" in the client's row, base plus "model" in the server's; U_k -> "unfrozen";
m_k -> weight; z -> "signature"; mu_{k,l}, s_{k,l} -> score "mu_val", "s"; tau -> clip; L_pers -> `phases.FineTune`.

We differ where the paper contradicts itself: the freeze policy (see `policy`), the double update in C.17 and the
0/0 of 2.15 (see `mixing`). The global model for evaluation is D.15, sum_k m_k/M theta_ref,k over the clients seen so far.
Every single upload is visible to the server, so FL-GAP can't run under secure sums, and nothing here is private.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.message import Message, Slot
from coterie.method import Batch, ClientRun, Hub, Loss, Method, Net, Predictor, Site, Sweep, Train
from coterie.methods.fedavg import Supervised, Training, num_examples, predictor, training_fields
from coterie.methods.fl_gap.layers import Layers
from coterie.methods.fl_gap.mixing import (
    Bound,
    Metric,
    Probe,
    bound_statistics,
    clip_changes,
    mix,
    mixing_weights,
    neighbours,
)
from coterie.methods.fl_gap.policy import Policy, Upload, group_norms, utility_per_bit
from coterie.states import ClientId, ServerState
from coterie.tensors import Groups, Tensors, add, merge, pick, scale, sub

_SUPERVISED = Supervised()


@dataclass(frozen=True, kw_only=True)
class FlGap(Method):
    """One model per client at the server: open groups are uploaded, each group is mixed over neighbours."""

    training: Training = Training()
    probe: Probe
    policy: Policy = Policy()
    score: Literal["mu_val", "s"] = "mu_val"
    score_memory: float = 0.5  # weight of the past in the moving average of the scores
    lambda_prox: float = 1e-3
    upload: Upload = Upload()
    knn: int = 3
    metric: Metric = "euclidean"
    self_weight: float | None = None  # None: as much as one neighbour, 1 / (knn + 1)
    clip: Bound = None  # tau: a norm, "median" of this round's norms, or None

    buffers: ClassVar[str] = "with their layer group"

    def __post_init__(self) -> None:
        if self.score not in ("mu_val", "s"):
            raise ValueError(f"score must be mu_val or s, found '{self.score}'. Use 'mu_val', the utility per bit.")
        if self.metric not in ("euclidean", "cosine"):
            raise ValueError(f"metric must be euclidean or cosine, found '{self.metric}'. Use 'euclidean'.")
        if not 0.0 <= self.score_memory < 1.0:
            raise ValueError(f"score_memory must lie in [0, 1), found {self.score_memory}. Use 0.5, or 0 for no memory.")
        if self.knn < 1:
            raise ValueError(f"knn must be at least 1, found {self.knn}. Use for example 3.")
        for name in ("lambda_prox", "self_weight"):
            if (getattr(self, name) or 0.0) < 0.0:
                raise ValueError(f"{name} must be at least 0, found {getattr(self, name)}. Use 0 or more.")
        if self.clip is not None and self.clip != "median" and not (isinstance(self.clip, float | int) and self.clip > 0):
            raise ValueError(f"clip must be a norm greater than 0, 'median' or None, found {self.clip!r}. Use 'median'.")

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        flags = {"groups": torch.zeros(len(Layers.of(hub.net)), dtype=torch.bool)}
        return {
            "shared": Slot.like(hub.net.params, reduce="each", subset=True),
            "buffers": Slot.like(hub.net.buffers, reduce="each", guard="public", subset=True),
            "open": Slot.like(flags, kind="change", reduce="each", guard="public"),
        }

    def server_state(self, hub: Hub) -> Groups:
        """The pre-trained model: the base of every client's reference."""
        return {"shared": hub.net.params, "buffers": hub.net.buffers}

    def client_row(self, site: Site) -> Groups:
        return {"policy": self.policy.start(len(Layers.of(site.net)))}

    def send(self, state: ServerState, client: ClientId, hub: Hub) -> Message:
        """Everything to a newcomer; afterwards the groups that differ from what the client has, and which they are."""
        if client not in state.rows:
            return Message({"shared": state.shared["shared"], "buffers": state.shared.get("buffers", {})})
        layers, row = Layers.of(hub.net), state.rows[client]
        changed = row["link"]["changed"]
        return Message(
            {
                "shared": pick(row.get("model", {}), layers.params_in(changed)),
                "buffers": pick(row.get("model", {}), layers.buffers_in(changed)),
                "changed": {"groups": changed},
            }
        )

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        layers, policy = Layers.of(site.net), mine["policy"]
        unfrozen = policy["unfrozen"]
        reference, held = self.received(mine, down)
        start = {**reference, **held}
        got = yield from Train(
            params={"shared": pick(start, site.net.params)},
            buffers={"buffers": pick(start, site.net.buffers)},
            refs={"reference": pick(reference, site.net.params), "open": {"groups": unfrozen}},
            loss=detection_loss,
            terms=(Proximal(self.lambda_prox),) if self.lambda_prox else (),
            frozen=layers.frozen(unfrozen),  # (2.5); reaches the batch norms
            streams={"local": site.data.train},
            memory=remembered(mine, "memory/"),
            **training_fields(self.training),  # type: ignore[arg-type]
        )
        params, buffers = got.params["shared"], got.buffers.get("buffers", {})
        uploaded = self.upload.choose(sub(params, pick(reference, params)), layers.params, unfrozen)
        own = (unfrozen | layers.having(held)) & ~uploaded
        row = {
            **mine,
            "reference": reference,
            "held": pick(merge(params, buffers), (*layers.params_in(own), *layers.buffers_in(own))),
            "policy": (yield from self.next_policy(policy, params, buffers, site)),
        }
        if self.training.keep_memory:
            row |= {f"memory/{name}": values for name, values in got.memory.items()}
        groups = {
            "shared": pick(params, layers.params_in(uploaded)),  # (C.11)
            "buffers": pick(buffers, layers.buffers_in(uploaded)),
            "open": {"groups": uploaded},
        }
        return row, Message(groups, weight=num_examples(site))

    def received(self, mine: Groups, down: Message) -> tuple[Tensors, Tensors]:
        """theta_ref after this download, and own values of groups that the client trained but did not upload since."""
        new = merge(down.group("shared"), down.group("buffers"))
        held = {name: value for name, value in mine.get("held", {}).items() if name not in new}
        return {**mine.get("reference", {}), **new}, held

    def next_policy(
        self, policy: Tensors, params: Tensors, buffers: Tensors, site: Site
    ) -> Generator[Sweep, Any, Tensors]:
        """Losses and scores after training, and the groups of the next round. Nothing of it leaves the client."""
        examples = site.data.validation if len(site.data.validation) else site.data.train
        after = Sweep(
            fn=loss_and_gradient,
            params={"shared": params},
            buffers={"buffers": buffers},
            streams={"local": examples},
            gather="mean",
            name="validation",
        )
        found = yield from after
        fitted = yield from replace(after, fn=mean_loss, streams={"local": site.data.train}, name="training loss")
        gradient = {name: found[f"gradient/{name}"] for name in params}  # of all groups, open or not
        scored = utility_per_bit if self.score == "mu_val" else group_norms
        scores = scored(gradient, Layers.of(site.net).params)
        if math.isfinite(float(policy["best"])):  # not the first round
            scores = self.score_memory * policy["scores"] + (1 - self.score_memory) * scores
        return self.policy.step(policy, float(found["loss"]), float(fitted["loss"]), scores)

    def absorb(
        self, state: ServerState, mean: Message | None, each: Mapping[ClientId, Message], hub: Hub
    ) -> ServerState:
        if not each:
            return state
        layers, clients = Layers.of(hub.net), sorted(each)
        references = {client: self.reference(state, client) for client in clients}
        models = self.provisional(references, each)
        signatures = torch.stack(
            [self.probe.signature(hub.net, pick(m, hub.net.params), pick(m, hub.net.buffers)) for m in models.values()]
        )
        near = neighbours(signatures, self.knn, self.metric)
        trained = torch.stack([each[client]["open"]["groups"] for client in clients])
        mixed = mix_groups(layers, models, near, trained.to(near.device), self.self_weight)
        rows: dict[ClientId, Groups] = {}
        for i, client in enumerate(clients):
            changed = layers.differ(references[client], mixed[client])
            names = (*layers.params_in(changed), *layers.buffers_in(changed))
            ids = [clients[j] for j in near[i].nonzero().flatten().tolist()]
            weight = each[client].weight
            link = {
                "changed": changed,  # what the next download holds
                "trained": trained[i],
                "neighbours": torch.tensor(ids + [-1] * (self.knn - len(ids))),
                "signature": signatures[i],
                "weight": torch.ones((), dtype=torch.float64) if weight is None else weight,
            }
            own = state.rows.get(client, {}).get("model", {})
            rows[client] = {"model": {**own, **pick(mixed[client], names)}, "link": link}
        return state.with_rows(rows)

    def reference(self, state: ServerState, client: ClientId) -> Tensors:
        """theta_ref,i: the base with this client's own groups over it."""
        base = merge(state.shared["shared"], state.shared.get("buffers", {}))
        return {**base, **state.rows.get(client, {}).get("model", {})}

    def provisional(self, references: Mapping[ClientId, Tensors], each: Mapping[ClientId, Message]) -> dict[ClientId, Tensors]:
        """Each client's model: its reference with the uploaded groups in place, clipped."""
        uploads = {client: message.group("shared") for client, message in each.items()}
        statistics = {client: message.group("buffers") for client, message in each.items()}
        if self.clip is not None:
            changes = {client: sub(params, references[client]) for client, params in uploads.items()}
            clipped = clip_changes(changes, self.clip)
            uploads = {client: add(change, references[client]) for client, change in clipped.items()}
            statistics = {client: bound_statistics(references[client], values) for client, values in statistics.items()}
        return {client: {**model, **uploads[client], **statistics[client]} for client, model in references.items()}

    def global_model(self, state: ServerState, hub: Hub) -> Predictor:
        """sum_k m_k/M theta_ref,k over the clients that took part so far (D.15); before that, the pre-trained model."""
        total, weight = merge(state.shared["shared"], state.shared.get("buffers", {})), 0.0
        for client in state.rows:
            row = state.rows[client]
            if "link" in row:
                weight += float(row["link"]["weight"])
                share = float(row["link"]["weight"]) / weight
                total = add(total, scale(sub(self.reference(state, client), total), share))  # running weighted mean
        return predictor({"shared": pick(total, hub.net.params)}, pick(total, hub.net.buffers))

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor:
        reference, held = self.received(mine, down)
        model = {**reference, **held}
        return predictor({"shared": pick(model, site.net.params)}, pick(model, site.net.buffers))


def remembered(row: Groups, prefix: str) -> Groups | None:
    """The optimiser state that a row holds under this prefix, or None to start fresh."""
    return {name.removeprefix(prefix): values for name, values in row.items() if name.startswith(prefix)} or None


def mix_groups(
    layers: Layers, models: Mapping[ClientId, Tensors], near: Tensor, trained: Tensor, self_weight: float | None
) -> dict[ClientId, Tensors]:
    """NULA for every group that anybody trained; `near` and `trained` have one row per model, in their order."""
    mixed = {client: dict(model) for client, model in models.items()}
    for place, names in enumerate(layers):
        if not bool(trained[:, place].any()):
            continue
        weights = mixing_weights(near, trained[:, place], self_weight)
        for name in names:
            values = mix([model[name] for model in models.values()], weights)  # (2.15)
            for model, value in zip(mixed.values(), values, strict=True):
                model[name] = value
    return mixed


@dataclass(frozen=True)
class Proximal:
    """lambda/2 sum_l ||theta_l - theta_ref,l||^2; a frozen group has not moved and adds nothing."""

    weight: float

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensor:
        squares = [(value - refs["reference"][name]).square().sum() for name, value in params["shared"].items()]
        return 0.5 * self.weight * torch.stack(squares).sum()


def detection_loss(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    """The task's loss; |U| goes into the log beside it."""
    found = _SUPERVISED(params, buffers, refs, batch, net)
    return replace(found, metrics={**found.metrics, "open_groups": refs["open"]["groups"].sum()})


def mean_loss(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    """The task's loss in evaluation mode."""
    return {"loss": evaluated_loss(params["shared"], buffers, batch, net)}


def loss_and_gradient(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    """The task's loss in evaluation mode, and its gradient for every parameter, frozen or not (C.1)."""

    def loss(model: Tensors) -> Tensor:
        return evaluated_loss(model, buffers, batch, net)

    gradient, value = torch.func.grad_and_value(loss)(params["shared"])
    return {"loss": value, **{f"gradient/{name}": values for name, values in gradient.items()}}


def evaluated_loss(model: Tensors, buffers: Groups, batch: Batch, net: Net) -> Tensor:
    outputs, _ = net.apply(model, buffers.get("buffers", {}), batch["local"], train=False)
    return net.loss(outputs, batch["local"])[0]
