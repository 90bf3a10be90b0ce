"""Pictures from the Messages that a run has recorded, scored against the pictures that it was trained on (adversary A1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from coterie.attacks.inversion import (
    Attempt,
    Observed,
    dlg,
    dummy_anchors,
    dummy_decoder,
    free_cotangent,
    idlg,
    inverting,
    known_anchors,
)
from coterie.attacks.inversion.matching import cosine
from coterie.attacks.transcript import Transcript
from coterie.data.examples import View
from coterie.engine.answers import positions_of
from coterie.engine.optim import rate
from coterie.message import Message
from coterie.method import SGD, Phase, Round
from coterie.methods.fedavg import FedAvg
from coterie.metrics.images import TAPS, psnr, ssim
from coterie.metrics.statistics import mean_and_deviation
from coterie.models.net import Net
from coterie.randomness import Key
from coterie.recipes.scene import Scene
from coterie.tensors import Tensors

Level = Literal["dlg", "idlg", "inverting", "dummy-decoder", "dummy-anchors", "free-cotangent", "known-anchors"]
LEVELS: tuple[Level, ...] = get_args(Level)
OF_THE_WHOLE_NET = ("dlg", "idlg", "inverting")
_ITERATIONS = {"inverting": 4800}  # of the others: 300


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How hard an attacker tries; `anchors` are dummy ones. Iterations None: 300 of L-BFGS, 4800 of Adam, as the papers."""

    restarts: int = 1
    iterations: int | None = None
    anchors: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("restarts", "iterations", "anchors"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, found {value}. Use 1 or more.")


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """One client's pictures as found and as they were, in [0, 1], with what can be said about each."""

    client: int
    found: Tensor
    original: Tensor
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]  # nothing for pictures smaller than SSIM's window
    attempt: Attempt

    def to_json(self) -> dict[str, Any]:
        told = {name: getattr(self.attempt, name) for name in ("loss", "start", "iterations", "restarts", "seconds")}
        return {"client": self.client, "psnr": list(self.psnr), "ssim": list(self.ssim), **told}


@dataclass(frozen=True, eq=False)
class Inversion:
    """One attack on one run."""

    level: Level
    setting: str
    budget: Budget
    rebuilt: tuple[Rebuilt, ...]
    baseline: tuple[float, ...] = field(repr=False)  # PSNR of the mean training picture: what no Message is needed for

    @property
    def decibels(self) -> list[float]:
        return [value for one in self.rebuilt for value in one.psnr]

    @property
    def similarity(self) -> list[float]:
        return [value for one in self.rebuilt for value in one.ssim]

    def to_json(self) -> dict[str, Any]:
        similar = self.similarity
        return {
            "attack": self.level, "adversary": "A1, the server, from recorded Messages", "setting": self.setting, **asdict(self.budget),
            "psnr": summary(self.decibels), "ssim": summary(similar) if similar else None,
            "success": sum(value > 0.5 for value in similar) / len(similar) if similar else None,
            "mean_picture_psnr": summary(list(self.baseline)),
            "images": [one.to_json() for one in self.rebuilt],
        }  # fmt: skip


def summary(values: list[float]) -> dict[str, float]:
    mean, std = mean_and_deviation(values)
    return {"mean": mean, "std": std, "worst": min(values), "best": max(values)}


@dataclass(frozen=True, eq=False)
class Target:
    """What is attacked of a run: one round of it, with what the server knows of how its clients trained."""

    scene: Scene
    transcript: Transcript
    phase: Phase
    method: FedAvg
    round: Round

    @classmethod
    def of(cls, scene: Scene, transcript: Transcript, round: int | None = None) -> Target:
        number = transcript.rounds[0] if round is None and transcript.rounds else round or 0
        if transcript.summed(number):
            raise ValueError(
                f"In round {number} the server saw only a secure sum, and no client's Message, so this attack has nothing to start from. "
                "Record a run without a secure sum."
            )
        first = 0
        for phase in scene.plan:
            if number <= first + phase.rounds:
                break
            first += phase.rounds
        method = phase.method
        if not isinstance(method, FedAvg) or not isinstance(method.training.optim, SGD):
            found = type(method).__name__ if not isinstance(method, FedAvg) else f"{type(method).__name__} with Adam"
            raise ValueError(f"Inversion reads the gradient of FedAvg, FedPer, FABLE and their kin under SGD, found {found}. Attack one of those.")
        clients = tuple(range(len(scene.population)))
        total = sum(p.rounds for p in scene.plan)
        where = Round(number - 1, total, phase.name, number - 1 - first, phase.rounds, clients, len(clients))
        return cls(scene, transcript, phase, method, where)

    def attacked(self, count: int | None) -> Iterator[tuple[int, Message, Message]]:
        for number, pair in enumerate(self.transcript.pairs(self.round.index + 1)):
            if count is not None and number >= count:
                return
            yield pair

    @property
    def setting(self) -> str:
        guarded = ", clipped" * self.scaled + " and noised" * self.scene.guards.private
        exact = "its exact gradient" if self.scene.settings.precision == "fp64" else f"its gradient in {self.scene.settings.precision}"
        statistics = "" if not self.scene.net.buffers else ", running statistics" if self.evaluates else ", batch statistics"
        return f"one step of {self.method.training.batch_size} picture(s), {exact}{guarded}{statistics}, round {self.round.index + 1}"

    @property
    def sends_all(self) -> bool:
        """Whether clients send the whole net, and not only an encoder."""
        return not self.method.private(self.scene.net)

    @property
    def scaled(self) -> bool:
        """Whether only the gradient's direction can be relied on: a clip, here or on the client, or a weight changed its length."""
        return self.scene.guards.clip is not None or self.method.training.clip_norm is not None

    @property
    def evaluates(self) -> bool:
        return self.method.buffers == "server"

    def observed(self, client: int, sent: Message, arrived: Message, level: Level) -> Observed:
        """The gradient of one client's step, of the whole net or of its encoder."""
        train = self.scene.population.parts[client].train
        training = self.method.training
        assert isinstance(training.optim, SGD)
        batch = min(training.batch_size, len(train))
        steps = training.steps if training.steps is not None else (training.epochs or 1) * math.ceil(len(train) / training.batch_size)
        if steps != 1:
            raise ValueError(
                f"Client {client} took {steps} local steps, and only their sum arrived; inversion reads the gradient of one step. "
                "Record a run whose clients take one step per round (coterie run fable_inversion, or one batch per client)."
            )
        low, high = pixel_range(train)
        lr = rate(training.optim, self.round, 0, 1) * (1 + training.optim.momentum * training.optim.nesterov)
        return Observed.of_one_step(
            self.part(sent, level), self.part(arrived, level), lr=lr, weight_decay=training.optim.weight_decay, pictures=batch,
            picture=tuple(train.rows(torch.tensor([0]))["x"].shape[1:]), classes=self.scene.net.num_outputs,
            low=float(low.min()), high=float(high.max()),
        )  # fmt: skip

    def part(self, message: Message, level: Level) -> Message:
        """The whole net, or the encoder alone for an attack on split models."""
        names = self.scene.net.encoder_names
        whole = set(message["shared"]) == set(self.scene.net.params)
        if level in OF_THE_WHOLE_NET:
            if not whole:
                raise ValueError(f"'{level}' needs the whole net, but {type(self.method).__name__} sends a part of it. Use free-cotangent.")
            return message
        if set(names) - set(message["shared"]):
            raise ValueError(f"'{level}' needs the whole encoder, but {type(self.method).__name__} sends a part of it. Attack another method.")
        return message.with_(shared={name: message["shared"][name] for name in names})

    def forward(self, sent: Message, level: Level) -> Callable[[Tensors, Tensor], Tensor]:
        """Logits, or features, as the client computes them while it trains."""
        net: Net = self.scene.net.to("cpu", torch.float64)
        buffers = {name: value.double() for name, value in {**net.buffers, **sent.group("buffers")}.items()}
        call = net.apply if level in OF_THE_WHOLE_NET else net.encode
        return lambda weights, x: call(weights, buffers, {"x": x}, train=not self.evaluates)[0]

    def original(self, client: int) -> Tensor:
        """The pictures of the client's step, as its engine drew them. For scoring only."""
        train = self.scene.population.parts[client].train
        key = Key(self.scene.settings.seed, ("round", self.round.index, "client", client))
        attempt = max(crossing.attempt for crossing in self.transcript.crossings if crossing.round == self.round.index + 1)
        key = (key.fold("attempt", attempt) if attempt else key).fold("train", 0).fold("order", "local")
        return train.rows(next(positions_of(len(train), self.method.training.batch_size, key)))["x"].double()

    def unnormalised(self, x: Tensor) -> Tensor:
        low, high = pixel_range(self.scene.population.parts[0].train)
        return ((x.detach() - low) / (high - low)).clamp(0, 1)


def pixel_range(view: View) -> tuple[Tensor, Tensor]:
    """What black and white become, per channel."""
    if view.decode is None:
        return torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    raw = view.columns["x"][:1]
    ends = [view.decode({"x": torch.full_like(raw, value)})["x"][0, :, :1, :1].double() for value in (0, 255)]
    return ends[0], ends[1]


def invert(
    target: Target, level: Level, budget: Budget, *, images: int | None = None, anchors: Callable[[int], Tensor] | None = None,
    told: Callable[[int, int, float], None] | None = None,
) -> Inversion:  # fmt: skip
    """Attack the first `images` clients of the round. `anchors` gives the oracle a client's; `told` gets (client, iteration, distance)."""
    rebuilt: list[Rebuilt] = []
    for client, sent, arrived in target.attacked(images):
        seen = target.observed(client, sent, arrived, level)

        def tell(iteration: int, distance: float, client: int = client) -> None:
            if told is not None:
                told(client, iteration, distance)

        attempt = attack(target, level, budget, seen, sent, tell, None if anchors is None else anchors(client))
        rebuilt.append(scored(target, client, attempt))
    if not rebuilt:
        raise ValueError(f"No client's Message arrived in round {target.round.index + 1}, so there is none to attack. Record another round.")
    return Inversion(level, target.setting, budget, tuple(rebuilt), mean_picture(target, [one.original for one in rebuilt]))


def attack(
    target: Target, level: Level, budget: Budget, seen: Observed, sent: Message, told: Callable[[int, float], None], anchors: Tensor | None
) -> Attempt:
    forward = target.forward(sent, level)
    common: dict[str, Any] = {
        "iterations": budget.iterations or _ITERATIONS.get(level, 300), "restarts": budget.restarts, "seed": budget.seed, "told": told,
    }  # fmt: skip
    if target.scaled and level != "inverting":
        common["distance"] = cosine
    if level == "dummy-anchors":
        return dummy_anchors(forward, seen, anchors=budget.anchors, **common)
    if level == "known-anchors":
        if anchors is None:
            raise ValueError("known-anchors needs the true anchors, which no Message holds. Run coterie run fable_inversion, which knows them.")
        return known_anchors(forward, seen, anchors, **common)
    by_name: dict[str, Callable[..., Attempt]] = {
        "dlg": dlg, "idlg": idlg, "inverting": inverting, "dummy-decoder": dummy_decoder, "free-cotangent": free_cotangent,
    }  # fmt: skip
    if level not in by_name:
        raise ValueError(f"Unknown attack '{level}'. Use one of: {', '.join(LEVELS)}.")
    return by_name[level](forward, seen, **common)


def scored(target: Target, client: int, attempt: Attempt) -> Rebuilt:
    """Each found picture beside the original that it fits best, one to one."""
    found, original = target.unnormalised(attempt.pictures), target.unnormalised(target.original(client))
    found = found.nan_to_num(0.5)
    errors = (found[:, None] - original[None]).square().flatten(2).mean(2)
    rows, columns = linear_sum_assignment(errors.numpy())
    found, original = found[torch.from_numpy(rows)], original[torch.from_numpy(columns)]
    large = min(found.shape[2:]) >= TAPS
    return Rebuilt(
        client, found, original, tuple(psnr(found, original).tolist()), tuple(ssim(found, original).tolist()) if large else (), attempt
    )


def mean_picture(target: Target, originals: list[Tensor]) -> tuple[float, ...]:
    """PSNR of the mean training picture, which is public enough to guess without any Message."""
    means = [target.unnormalised(parts.train.all_rows()["x"].double()).mean(0, keepdim=True) for parts in target.scene.population.parts]
    mean = torch.cat(means).mean(0, keepdim=True)
    return tuple(value for original in originals for value in psnr(mean.expand_as(original), original).tolist())
