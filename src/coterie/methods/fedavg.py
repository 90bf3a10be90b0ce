"""FedAvg, and the base that most methods extend: train what was received, send what is shared, average it.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
arXiv 1602.05629. Each participant starts at the global weights theta^t, runs E local epochs and returns w_k;

    theta^{t+1} = sum_k p_k w_k,   p_k = n_k / sum_{j in S_t} n_j.

paper symbol -> our name: theta -> "shared"; E -> training.epochs; B -> training.batch_size; n_k -> weight.

Parameters in `private` stay on the client (its "private" row): the head in FedPer, batch norms in FedBN.
Batch-norm statistics are a stated choice (`buffers`): "average" sends and averages them like weights,
"local" keeps each client's own, "server" uses the server's and never changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
    Method,
    Net,
    Optimizer,
    PersonalRun,
    Phase,
    Plan,
    Predictor,
    Site,
    Train,
    Trained,
)  # fmt: skip
from coterie.randomness import Draw, Key, draw
from coterie.states import ServerState
from coterie.tensors import Groups, Tensors, add, merge

Buffers = Literal["average", "local", "server"]
PrivateNames = Callable[[Net], tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a client trains in one round; the same fields for every method that is compared."""

    optim: Optimizer = SGD(lr=0.05)
    epochs: int | None = 1
    steps: int | None = None  # instead of epochs
    batch_size: int = 32
    clip_norm: float | None = None
    keep_memory: bool = False  # optimiser state stays on the client from round to round

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(f"Training needs epochs or steps, found epochs={self.epochs}, steps={self.steps}. Give one.")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm must be greater than 0, found {self.clip_norm}. Use for example 10, or None for no clip.")
        for name, value in (("epochs", self.epochs), ("steps", self.steps), ("batch_size", self.batch_size)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, found {value}. Use 1 or more.")


def no_names(net: Net) -> tuple[str, ...]:
    return ()


def head_names(net: Net) -> tuple[str, ...]:
    return net.head_names


def norm_names(net: Net) -> tuple[str, ...]:
    return net.norm_names


@dataclass(frozen=True)
class Supervised:
    """The task's loss of the net whose parameters are spread over these groups (of params, then of refs)."""

    groups: tuple[str, ...] = ("shared",)
    running_statistics: bool = False

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        columns = batch["local"]
        net = net.with_running_statistics() if self.running_statistics else net
        outputs, after = net.apply(gather(self.groups, params, refs), buffers.get("buffers", {}), columns, train=True)
        value, metrics = net.loss(outputs, columns)
        return Loss(value, {"buffers": after} if buffers else {}, metrics)


@dataclass(frozen=True)
class Outputs:
    """The net's outputs for evaluation."""

    groups: tuple[str, ...] = ("shared",)

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
        model = gather(self.groups, params, refs)
        return {"logits": net.apply(model, buffers.get("buffers", {}), batch["local"], train=False)[0]}


def gather(groups: tuple[str, ...], params: Groups, refs: Groups) -> Tensors:
    """One model out of groups that move and groups that do not."""
    return merge(*(params[group] if group in params else refs[group] for group in groups))


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """`theta <- sum p_k w_k` over the parameters that are not `private`."""

    training: Training = Training()
    buffers: Buffers = "average"
    private: PrivateNames = no_names

    def __post_init__(self) -> None:
        if self.buffers not in ("average", "local", "server"):
            raise ValueError(f"buffers must be average, local or server, found '{self.buffers}'. Use 'average' to share them.")

    def first_model(self, net: Net, key: Key) -> Tensors:
        """First values of all that is trained; a method with layers of its own adds them to the net's."""
        return net.params

    def first_shared(self, net: Net, key: Key) -> Tensors:
        private = set(self.private(net))
        return {name: value for name, value in self.first_model(net, key).items() if name not in private}

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        refuse_nothing_private(self, hub.net)
        slots = {"shared": Slot.like(self.first_shared(hub.net, hub.key))}
        if self.buffers == "average" and hub.net.buffers:
            slots["buffers"] = Slot.like(hub.net.buffers, guard="public")
        return slots

    def server_state(self, hub: Hub) -> Groups:
        shared = {"shared": self.first_shared(hub.net, hub.key)}
        return shared if self.buffers == "local" else {**shared, "buffers": hub.net.buffers}

    def client_row(self, site: Site) -> Groups:
        first = self.first_model(site.net, site.key)
        row = {"private": {name: first[name] for name in self.private(site.net)}}
        if self.buffers == "local":
            row["buffers"] = site.net.buffers
        return row

    def send(self, state: ServerState, client: int, hub: Hub) -> Message:
        return Message(pick_groups(state.shared, ("shared", "buffers")))

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        got = yield from self.train(mine, down, site)
        row = {**mine, "private": got.params.get("private", {})}
        if self.buffers == "local":
            row["buffers"] = got.buffers.get("buffers", {})
        if self.training.keep_memory:
            row |= {f"memory/{name}": values for name, values in got.memory.items()}
        groups = {"shared": got.params["shared"]}
        if self.buffers == "average":
            groups["buffers"] = got.buffers.get("buffers", {})
        return row, Message(groups, weight=num_examples(site))

    def train(self, mine: Groups, down: Message, site: Site) -> Generator[Any, Any, Trained]:
        """What a round trains; methods that ask more than once, or something else first, say it here."""
        return (yield from self.ask(mine, down, site))

    def ask(self, mine: Groups, down: Message, site: Site) -> Train:
        """Everything received and everything private, trained together."""
        params = {"shared": down["shared"]}
        if mine.get("private"):
            params["private"] = mine["private"]
        buffers = self.buffers_of(mine, down)
        memory = {name.removeprefix("memory/"): values for name, values in mine.items() if name.startswith("memory/")}
        return Train(
            params=params,
            buffers={"buffers": buffers} if buffers else {},
            loss=Supervised(tuple(params), running_statistics=self.buffers == "server"),
            streams={"local": site.data.train},
            memory=memory or None,
            **training_fields(self.training),  # type: ignore[arg-type]
        )

    def buffers_of(self, mine: Groups, down: Message) -> Tensors:
        return mine.get("buffers", {}) if self.buffers == "local" else down.group("buffers")

    def absorb(self, state: ServerState, mean: Message | None, each: object, hub: Hub) -> ServerState:
        if mean is None:
            return state
        moved = {name: add(state.shared[name], mean[name]) for name in ("shared", "buffers") if name in mean.groups}
        return state.with_shared(**moved)

    def global_model(self, state: ServerState, hub: Hub) -> Predictor | None:
        whole = not self.private(hub.net) and (self.buffers != "local" or not hub.net.buffers)
        if not whole:
            return None
        return predictor({"shared": state.shared["shared"]}, state.shared.get("buffers", {}))

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor | PersonalRun | None:
        params = {"shared": down["shared"]}
        if mine.get("private"):
            params["private"] = mine["private"]
        return predictor(params, self.buffers_of(mine, down))


def refuse_nothing_private(method: FedAvg, net: Net) -> None:
    """A method that keeps nothing back would be FedAvg under another name."""
    if method.private is not no_names and not method.private(net):
        found = getattr(method.private, "__name__", repr(method.private)).removesuffix("_names")
        raise ValueError(
            f"{type(method).__name__} keeps the {found} of a net on the client, but this net has none, so it would be FedAvg. "
            "Use a net with such layers (resnet8 has batch norms and a head), or FedAvg."
        )


def predictor(params: Groups, buffers: Tensors) -> Predictor:
    return Predictor(fn=Outputs(tuple(params)), params=params, buffers={"buffers": buffers} if buffers else {})


def linear_layer(name: str, inputs: int, outputs: int, key: Key, like: torch.Tensor) -> Tensors:
    """First values of a linear layer as torch's start: uniform in +-1/sqrt(inputs)."""
    bound = 1.0 / inputs**0.5

    def uniform(part: str, *shape: int) -> torch.Tensor:
        numbers = draw(key.fold(name, part), 0, Draw("uniform", shape), 1, like.device, torch.float64)
        spread: torch.Tensor = (2.0 * numbers - 1.0) * bound
        return spread.to(like.dtype)

    return {f"{name}.weight": uniform("weight", outputs, inputs), f"{name}.bias": uniform("bias", outputs)}


def pick_groups(groups: Groups, names: tuple[str, ...]) -> Groups:
    return {name: groups[name] for name in names if name in groups}


def training_fields(training: Training) -> dict[str, object]:
    """The fields of a Train that a Training sets."""
    return {
        "optim": training.optim, "epochs": training.epochs, "steps": training.steps,
        "batch_size": training.batch_size, "clip_norm": training.clip_norm,
    }  # fmt: skip


def num_examples(site: Site) -> torch.Tensor:
    """n_k, how much a client counts."""
    return torch.tensor(float(len(site.data.train)), dtype=torch.float64)


def fedavg(
    *, rounds: int, training: Training = Training(), buffers: Buffers = "average", cohort: Cohort = Everyone()
) -> Plan:
    """One model for all: local training, then the mean weighted by the number of examples."""
    return (Phase("train", rounds, FedAvg(training=training, buffers=buffers), cohort),)
