"""A population small enough to check by hand: random points, a few clients of unequal size, a two-layer net."""

from __future__ import annotations

import itertools

import torch

from coterie.data.examples import ClientParts, Population, View
from coterie.engine.run import Finish, run
from coterie.engine.settings import Settings
from coterie.method import Plan
from coterie.metrics.classification import Classification
from coterie.models.net import Net
from coterie.models.nets import mlp

FEATURES, CLASSES = 6, 3


def population(sizes: tuple[int, ...] = (20, 13, 9, 24), validation: int = 4, test: int = 6, seed: int = 0) -> Population:
    generator = torch.Generator().manual_seed(seed)
    total = sum(sizes) + len(sizes) * (validation + test)
    x = torch.randn(total, FEATURES, generator=generator)
    teacher = torch.randn(FEATURES, CLASSES, generator=generator)
    columns = {"x": x, "y": (x @ teacher).argmax(1)}
    parts, start = [], 0
    for size in sizes:
        ends = [start, start + size, start + size + validation, start + size + validation + test]
        parts.append(ClientParts(*(View(columns, torch.arange(a, b)) for a, b in itertools.pairwise(ends))))
        start = ends[-1]
    return Population("toy", tuple(str(i) for i in range(len(sizes))), parts, num_classes=CLASSES)


def net(hidden: int = 5, seed: int = 1) -> Net:
    torch.manual_seed(seed)
    return mlp(FEATURES, CLASSES, hidden=(hidden,))


def go(plan: Plan, out: object, **settings: object) -> Finish:
    """Run a plan on the toy population, quietly."""
    return run(
        plan, population(), net=net(), metric=Classification(CLASSES), out=str(out),
        settings=Settings(**{"backend": "loop", "quiet": True, **settings}),  # type: ignore[arg-type]
    )  # fmt: skip


def numbers(finish: Finish) -> dict[str, object]:
    """Everything of a summary that does not depend on the machine."""
    return {key: value for key, value in finish.summary.items() if key not in ("seconds", "backend")}
