"""What the shared tests must know of a method: how to run it on the toy population, and what is expected of it.

Every test file tests/methods/test_<file>.py names it: CASES = {"fedavg": Case(...)}. The shared tests walk over
`coterie.methods.__all__`; a method without a case fails.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import toy
from torch import Tensor, nn

from coterie import methods
from coterie.data.examples import Population
from coterie.engine.run import Finish, Silent, run
from coterie.engine.settings import Settings
from coterie.message import Message
from coterie.method import SGD, Plan
from coterie.methods.fedavg import Training
from coterie.metrics.classification import Classification
from coterie.metrics.metric import Metric
from coterie.models.losses import CrossEntropy
from coterie.models.net import EncoderHead, Net
from coterie.randomness import Key

METHOD_TESTS = Path(__file__).parent / "methods"


@dataclass(frozen=True)
class Rota:
    """A cohort that is fixed for each round by hand; later rounds begin again."""

    rounds: tuple[tuple[int, ...], ...]

    def draw(self, num_clients: int, key: Key) -> tuple[int, ...]:
        index = key.path[1] if key.path else 0  # the engine draws with Key(seed, ("cohort", round))
        return self.rounds[int(index) % len(self.rounds)]


ROTA = Rota(((0, 1), (1, 2, 3), (0, 3)))


def weights_of(net: Net) -> dict[str, Tensor]:
    """The net's first weights, for an oracle."""
    return {name: value.double() for name, value in net.params.items()}


def clients_of(population: Population) -> list[tuple[Tensor, Tensor]]:
    """Every client's training data, for an oracle."""
    rows = [parts.train.all_rows() for parts in population.parts]
    return [(columns["x"].double(), columns["y"]) for columns in rows]


def norm_net() -> Net:
    """The toy net with a batch norm in its encoder."""
    torch.manual_seed(1)
    layer = nn.Sequential(nn.Linear(toy.FEATURES, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU())
    return Net(EncoderHead(nn.Sequential(OrderedDict(layer1=layer)), nn.Linear(5, toy.CLASSES), 5), CrossEntropy())


@dataclass(frozen=True)
class Toy:
    """Everything of a run but the plan."""

    net: Callable[[], Net] = toy.net
    population: Callable[[], Population] = toy.population
    metric: Metric = Classification(toy.CLASSES)

    def run(self, plan: Plan, out: Path, *, watcher: Silent | None = None, resume: bool = False, **settings: object) -> Finish:
        return run(
            plan, self.population(), net=self.net(), metric=self.metric, out=out, watcher=watcher, resume=resume,
            settings=Settings(**{"backend": "loop", "quiet": True, **settings}),  # type: ignore[arg-type]
        )  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """What a formula of spec/wire.md may use: b bytes per float, and counts of floats by their letters there."""

    cohorts: Sequence[tuple[int, ...]]  # who took part, round by round
    crossed: Sequence[tuple[int, str, Message]]  # round, direction and every Message, for formulas that depend on flags in it
    P: int  # all parameters
    P_e: int  # of the encoder
    P_bn: int  # scales and shifts of batch norms
    B: int  # running means and variances
    b: int = 4

    @classmethod
    def of(cls, net: Net, cohorts: Sequence[tuple[int, ...]], crossed: Sequence[tuple[int, str, Message]]) -> Facts:
        sizes = {name: value.numel() for name, value in net.params.items()}
        encoder = sum(size for name, size in sizes.items() if name.startswith("encoder."))
        statistics = [value.numel() for value in net.buffers.values()]
        return cls(cohorts, crossed, sum(sizes.values()), encoder, sum(statistics), sum(statistics))


Entry = tuple[int, str, str, int, int]
"""round, direction, slot, bytes, clients"""


def every_round(
    facts: Facts, *, up: Mapping[str, int], down: Mapping[str, int], rounds: Sequence[int] | None = None
) -> list[Entry]:
    """The same bytes for everyone who takes part, in all rounds or in these (counted from 1)."""
    return [
        (t, direction, slot, size * len(cohort), len(cohort))
        for t, cohort in enumerate(facts.cohorts, 1)
        if rounds is None or t in rounds
        for direction, slots in (("up", up), ("down", down))
        for slot, size in slots.items()
    ]


Change = tuple[object, Mapping[str, object]] | str
"""Another value of a field and a setting in which it matters, or the reason why it can't matter."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """`secret`: row groups of which nothing may be in any Message. `told`: row groups that a Message may tell of."""

    changes: Mapping[str, Change]
    wire: Callable[[Facts], list[Entry]]
    secret: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    knobs: Mapping[str, object] = field(default_factory=dict)
    toy: Toy = Toy(net=norm_net)
    rounds: int = 3

    def arguments(self, name: str, **knobs: object) -> dict[str, Any]:
        """What the plan function is called with; the common ones only where it knows them."""
        common = {"rounds": self.rounds, "training": TRAINING, "cohort": ROTA}
        known = signature(name)
        return {key: value for key, value in {**common, **self.knobs, **knobs}.items() if key in known or key not in common}

    def plan(self, name: str, **knobs: object) -> Plan:
        plan: Plan = getattr(methods, name)(**self.arguments(name, **knobs))
        return plan


TRAINING = Training(optim=SGD(lr=0.1), epochs=1, batch_size=10)
MOMENTUM = SGD(lr=0.1, momentum=0.9)

TRAINING_CHANGES: dict[str, Change] = {
    "training.optim": (SGD(lr=0.05), {}),
    "training.epochs": (2, {}),
    "training.steps": (3, {"training.epochs": None, "training.steps": 2}),
    "training.batch_size": (20, {}),
    "training.clip_norm": (0.05, {}),
    "training.keep_memory": (True, {"training.optim": MOMENTUM}),
}
COMMON_CHANGES: dict[str, Change] = {"rounds": (2, {}), "cohort": (Rota(((0, 2),)), {}), **TRAINING_CHANGES}
BUFFER_CHANGES: dict[str, Change] = {"buffers": ("server", {"buffers": "local"})}


def cohorts_of(plan: Plan, toy: Toy, seed: int = 0) -> list[tuple[int, ...]]:
    """Who takes part, round by round over all phases."""
    clients, phases = len(toy.population()), [phase for phase in plan for _ in range(phase.rounds)]
    return [phase.cohort.draw(clients, Key(seed, ("cohort", index))) for index, phase in enumerate(phases)]


def signature(name: str) -> Sequence[str]:
    return list(inspect.signature(getattr(methods, name)).parameters)


def case_of(name: str) -> Case:
    """The case that the method's own test file states."""
    file = getattr(methods, name).__module__.split(".")[2]
    where = f"tests/methods/test_{file}.py must say CASES = {{'{name}': Case(...)}}, see tests/cases.py"
    if not (METHOD_TESTS / f"test_{file}.py").exists():
        raise AssertionError(f"The method '{name}' has no test file: {where}")
    if str(METHOD_TESTS) not in sys.path:
        sys.path.insert(0, str(METHOD_TESTS))
    found = getattr(importlib.import_module(f"test_{file}"), "CASES", {})
    if name not in found:
        raise AssertionError(f"The method '{name}' is not among the cases of its test file: {where}")
    case: Case = found[name]
    return case
