"""FedXDS: clients share the pixels a network decided by, clipped and noised, and everybody trains on them too.

Hoefler, Mueller and Samek, "FedXDS: Leveraging Model Attribution Methods to Counteract Data Heterogeneity in
Federated Learning", ICCV 2025. Three phases: a warm-up of FedAvg; one round in which every client sends

    v = x * m(x),   x~ = v min(1, C / ||v||_2) + N(0, sigma^2 I)   (Eq. 1, once per image, noise on every entry)

with a mask m(x) from the relevance R(x) of the true class; then FedAvg again with the pooled set S of all x~ and the
loss CE(net(x), y) + CE(net(x~), y~), one shared batch per local batch, in two forward passes.

paper symbol -> our name: s -> `s` (percentage of pixels removed); C -> `clip`; sigma -> `sigma`; R(x) -> `relevance`;
S -> public content "pool"; fraction of shared images -> `fraction`; label randomisation eps_y -> `label_eps`.

We differ: clip and noise run on the client (the code adds them at the server), so nothing un-noised leaves it; the
relevance is that of the global model after the warm-up, which comes down once more in the sharing round, and training
goes on from there (the code attributes with local models and starts afresh); exactly ceil((1 - s/100) HW) pixels are
kept; clients count by examples, not by batches. `statistics="local"` is ours: the pool stays out of the running
batch-norm statistics, with which whole images are then classified; the authors' "both" mixes two very different
distributions into them. What the noise guarantees, and that this is little at sigma = 0.15, is said in
`coterie.privacy.metric_privacy`, not here.

The noise protects people, so it comes from the operating system, entry by entry: the removed pixels of x~ are noise and
nothing else, and from those of an ordinary generator all its other numbers could be computed. A sharing round that is
repeated after an interruption therefore draws anew (and what had left the clients before has left them). With an
`audit_seed` it gives the same set again, and protects nobody.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from coterie.attribution import Layers, MaskKind, check_lrp, gradient, keep_mask, lrp, num_kept, pixel_weights
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
    Phase,
    Plan,
    Predictor,
    Site,
    Train,
    Wrapper,
    as_run,
    editing,
)
from coterie.methods.fedavg import Buffers, FedAvg, Training
from coterie.models.nets import GlobalPool, Sum
from coterie.models.norm import BatchNorm
from coterie.randomness import Draw, Key, draw
from coterie.states import ServerState
from coterie.tensors import Groups, Tensors, merge

Relevance = Literal["lrp", "gradient", "random"]
Statistics = Literal["both", "local"]

POOL = "pool"
_ROWS = 512  # images that get their noise at once: float64 temporaries of a whole client would be large
LAYERS = Layers(norms=(BatchNorm,), sums=(Sum,), pools=(GlobalPool,))


@dataclass(frozen=True, kw_only=True)
class Share(Wrapper):
    """One round in which nobody trains: each client sends masked, clipped, noised examples, and S is published.

    Sent: x~ and labels. Never sent: x, R(x), the mask, or v before the noise. `inner` says which model the relevance
    belongs to.
    """

    inner: FedAvg = FedAvg()
    relevance: Relevance = "lrp"  # "random" looks at no image: the control
    signed: bool = False  # of "gradient": sums over channels instead of sums of magnitudes
    s: float = 80.0
    mask: MaskKind = "soft"
    clip: float = 10.0
    sigma: float = 0.15
    noise_on: Literal["all", "kept"] = "all"  # "kept" is Eq. (3): it shows the mask, so it protects nothing
    label_eps: float | None = None  # k-ary randomised response; None sends labels as they are
    fraction: float = 1.0
    image: tuple[int, int, int] | None = None  # channels, height, width: other sizes are refused; None lets every size in
    audit_seed: int | None = None

    def __post_init__(self) -> None:
        num_kept(1, self.s)
        for name, value, allowed in (
            ("relevance", self.relevance, ("lrp", "gradient", "random")),
            ("mask", self.mask, ("soft", "binary")),
            ("noise_on", self.noise_on, ("all", "kept")),
        ):
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, found '{value}'. Use '{allowed[0]}'.")
        if not self.clip > 0.0 or not self.sigma >= 0.0:
            raise ValueError(f"clip must be above 0 and sigma at least 0, found {self.clip} and {self.sigma}. Use 10 and 0.15.")
        if not 0.0 < self.fraction <= 1.0:
            raise ValueError(f"fraction must lie in (0, 1], found {self.fraction}. Use 1 to share every image.")
        if self.label_eps is not None and not self.label_eps >= 0.0:
            raise ValueError(f"label_eps must be at least 0, found {self.label_eps}. Use for example 4, or leave it out.")

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        if self.relevance == "lrp":
            check_lrp(hub.net.bind(hub.net.params, hub.net.buffers))
        spec = {"x": ((-1, *(self.image or (-1, -1, -1))), dtype_of(hub.net)), "y": ((-1,), torch.int64)}
        return {"shared_examples": Slot(spec, kind="change", reduce="each", guard="examples")}

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        deployed = yield from as_run(self.inner.personal(mine, down, site))
        columns = self.chosen(site)
        x, y = columns["x"], columns["y"]
        if x.dim() != 4 or self.image not in (None, tuple(x.shape[1:])):
            wanted = self.image or "(channels, height, width)"
            raise ValueError(f"Share was built for images of shape {wanted}, found {tuple(x.shape[1:])}. Give image as it is.")
        maps = self.maps(deployed, site, x, y)
        shared = self.noised(self.clipped(x, maps), maps, site)
        if self.label_eps is not None:
            y = randomised(y, self.label_eps, site.net.num_outputs, self._draw("uniform", y.shape, site))
        return mine, Message({"shared_examples": {"x": shared.to(dtype_of(site.net)), "y": y}})

    def chosen(self, site: Site) -> Tensors:
        """The images that this client shares."""
        count = max(1, round(self.fraction * len(site.data.train)))
        order = torch.from_numpy(site.key.fold("chosen").numpy().permutation(len(site.data.train)))
        return site.data.train.rows(order[:count].sort().values)

    def maps(self, deployed: Predictor, site: Site, x: Tensor, y: Tensor) -> Tensor:
        """R(x) [N, H, W] of the model that the client would use now, with what just came down."""
        if self.relevance == "random":
            scores: np.ndarray = site.key.fold("random mask").numpy().random((len(x), *x.shape[2:]))
            return torch.as_tensor(scores, dtype=x.dtype, device=x.device)
        module = module_of(deployed, site.net)
        if self.relevance == "lrp":
            return lrp(module, x, y, LAYERS)
        return gradient(module, x, y, signed=self.signed)

    def clipped(self, x: Tensor, maps: Tensor) -> Tensor:
        """v = x * m(x), each image scaled to an L2 norm of at most C. The clip comes last, whatever the mask did."""
        v = x * pixel_weights(maps, self.s, self.mask)[:, None]
        lengths: Tensor = torch.linalg.vector_norm(v.flatten(1).double(), dim=1)
        factor = (self.clip / lengths.clamp(min=1e-30)).clamp(max=1.0)
        return v * factor.to(v.dtype).view(-1, 1, 1, 1)

    def noised(self, v: Tensor, maps: Tensor, site: Site) -> Tensor:
        """x~ = v + N(0, sigma^2 I) in float64, some rows at a time."""
        pieces = []
        for step, (rows, own_maps) in enumerate(zip(torch.split(v, _ROWS), torch.split(maps, _ROWS), strict=True)):
            noise = self.sigma * self._draw("normal", rows.shape, site, step).to(v.device)
            if self.noise_on == "kept":
                noise = noise * keep_mask(own_maps, self.s)[:, None]
            pieces.append(rows.double() + noise)
        return torch.cat(pieces)

    def absorb(self, state: ServerState, mean: Message | None, each: Mapping[int, Message], hub: Hub) -> ServerState:
        """S, in the order of the clients, from now on public content."""
        sets = [each[client]["shared_examples"] for client in sorted(each)]
        if not sets:
            raise ValueError("The sharing round returned no examples, so there is no pool to train with. Use a larger cohort.")
        return state.publishing(POOL, {name: torch.cat([part[name] for part in sets]) for name in ("x", "y")})

    def _draw(self, kind: Literal["normal", "uniform"], shape: torch.Size, site: Site, step: int = 0) -> Tensor:
        if self.audit_seed is not None:
            key = Key(self.audit_seed, ("share", kind, site.client))
            return draw(key, step, Draw(kind, tuple(shape)), 0, torch.device("cpu"), torch.float64)
        uniform = fresh_uniform(shape)
        return torch.special.ndtri(uniform) if kind == "normal" else uniform


def fresh_uniform(shape: torch.Size) -> Tensor:
    """Numbers strictly between 0 and 1 with 52 bits each from the operating system."""
    bits = np.frombuffer(secrets.token_bytes(8 * shape.numel()), dtype=np.uint64) >> np.uint64(12)
    return ((torch.from_numpy(bits.astype(np.float64)) + 0.5) * 2.0**-52).reshape(shape)


def randomised(labels: Tensor, eps: float, num_classes: int, uniform: Tensor) -> Tensor:
    """k-ary randomised response: the label with probability e^eps / (e^eps + k - 1), else one of the others, evenly."""
    keep = 1.0 / (1.0 + (num_classes - 1) * float(np.exp(-eps)))
    uniform = uniform.to(labels.device)
    other = ((uniform - keep) / max(1.0 - keep, 1e-300) * (num_classes - 1)).long().clamp(0, num_classes - 2)
    return torch.where(uniform < keep, labels, other + (other >= labels).long())


def module_of(deployed: Predictor, net: Net) -> nn.Module:
    """The net itself with the deployed values, for hooks."""
    params = merge(*deployed.params.values())
    if params.keys() != net.params.keys():
        raise ValueError(
            f"Relevance needs a model that is the whole net, found {len(params)} parameters of {len(net.params)}. "
            "Share after FedAvg or a method that keeps some of the net private, or use relevance='random'."
        )
    return net.bind(params, deployed.buffers.get("buffers", {}))


def dtype_of(net: Net) -> torch.dtype:
    return next(iter(net.params.values())).dtype


@dataclass(frozen=True)
class PoolLoss:
    """The inner loss on the local batch plus the same on a batch of the pool, in two forward passes.

    Each batch is normalised by itself. The running statistics that evaluation uses follow both batches, as in the
    authors' code, or the local ones only.
    """

    inner: LossFn
    statistics: Statistics = "both"

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        local = self.inner(params, buffers, refs, batch, net)
        between = {**buffers, **local.buffers}
        pool = self.inner(params, between, refs, {**batch, "local": batch[POOL]}, net)
        metrics = {**local.metrics, **{f"{POOL}_{name}": value for name, value in pool.metrics.items()}}
        after = {**local.buffers, **pool.buffers} if self.statistics == "both" else local.buffers
        return Loss(local.value + pool.value, after, metrics)


@dataclass(frozen=True)
class WithPool(Wrapper):
    """Any method whose clients also train on the pool: a second stream and a second term of the same loss."""

    statistics: Statistics = "both"

    def __post_init__(self) -> None:
        if self.statistics not in ("both", "local"):
            raise ValueError(f"statistics must be both or local, found '{self.statistics}'. Use 'both' for the authors' form.")

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        if POOL not in site.public:
            raise ValueError(
                f"WithPool needs public content '{POOL}', found {sorted(site.public) or 'none'}. Put a Share phase before it."
            )
        pool = site.public[POOL]

        def with_pool(ask: Train) -> Train:
            if ask.loss is None:
                raise ValueError("WithPool adds to a loss, found an ask with turns. Wrap a method that trains with one loss.")
            return replace(ask, streams={**ask.streams, POOL: pool}, loss=PoolLoss(ask.loss, self.statistics))

        return (yield from editing(self.inner.client(mine, down, site), with_pool, moves="shared"))


PAPER = Training(optim=SGD(lr=0.01, momentum=0.9, weight_decay=1e-4), epochs=5, batch_size=64)


def fedxds(
    *, rounds: int, training: Training = PAPER, buffers: Buffers = "average", cohort: Cohort = Everyone(),
    warmup_rounds: int = 10, warmup_epochs: int | None = None, relevance: Relevance = "lrp", signed: bool = False,
    s: float = 80.0, mask: MaskKind = "soft", clip: float = 10.0, sigma: float = 0.15, label_eps: float | None = None,
    fraction: float = 1.0, image: tuple[int, int, int] | None = None, statistics: Statistics = "both",
    audit_seed: int | None = None,
) -> Plan:  # fmt: skip
    """Pixels that the network decided by are shared once, clipped and noised, and everybody trains on them too.

    Warm-up and sharing are with everybody. `warmup_epochs` None is as in training (the authors' code: 10).
    """
    inner = FedAvg(training=training, buffers=buffers)
    first = training if warmup_epochs is None else replace(training, epochs=warmup_epochs, steps=None)
    share = Share(
        inner=inner, relevance=relevance, signed=signed, s=s, mask=mask, clip=clip, sigma=sigma, label_eps=label_eps,
        fraction=fraction, image=image, audit_seed=audit_seed,
    )  # fmt: skip
    return (
        *((Phase("warmup", warmup_rounds, replace(inner, training=first), Everyone()),) if warmup_rounds else ()),
        Phase("share", 1, share, Everyone()),
        Phase("train", rounds, WithPool(inner, statistics), cohort),
    )
