"""Any methods side by side, under identical conditions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from coterie import methods as known_methods
from coterie.method import SGD, Cohort, Plan
from coterie.methods.fedavg import Training
from coterie.metrics.classification import Classification
from coterie.models.nets import resnet8
from coterie.options import convert, nearest, options_of
from coterie.recipes.poisoned import Poisoning
from coterie.recipes.private import Privacy, told
from coterie.recipes.quickstart import digits
from coterie.recipes.session import Session, pooled, seeded

COMMON = ("rounds", "training", "buffers", "cohort", "input_shape")  # what makes a comparison fair
SHAPE = (1, 8, 8)
NEED_PICTURES = ("fedbn", "fedxds")  # batch norms, or a convolution to trace pixels through


def compare_digits(
    session: Session, *, methods: tuple[str, ...] = ("local", "fedavg", "fable"), rounds: int = 30, clients: int = 10,
    beta: float = 0.1, cohort: int | None = None, lr: float = 0.3, momentum: float = 0.0, epochs: int = 2,
    batch_size: int = 32, net: Literal["mlp", "resnet8"] | None = None,
    buffers: Literal["average", "local", "server"] = "average", knobs: tuple[str, ...] = (), privacy: Privacy = Privacy(),
    poisoning: Poisoning = Poisoning(),
) -> None:  # fmt: skip
    """Methods side by side on handwritten digits: same clients, same net and start, same local work.

    --methods fedavg,scaffold,ditto     which ones (coterie list)
    --net                               of all of them; fedbn and fedxds need resnet8 (default: what they need)
    --knobs fedprox.mu=0.1,ditto.lam=1  settings of single methods
    """
    seed = session.settings.seed
    population, small = digits(clients, beta, seed)
    pictures = net == "resnet8" or (net is None and any(name in NEED_PICTURES for name in methods))
    model = seeded(seed, resnet8, SHAPE[0], 10) if pictures else small
    training = Training(optim=SGD(lr=lr, momentum=momentum), epochs=epochs, batch_size=batch_size)
    who = privacy.cohort(cohort, len(population))
    plans = build_plans(methods, rounds, training, buffers, who, knobs, SHAPE)
    instead = {"centralized": pooled(population)}
    guards = privacy.guards(who, population, rounds, session.settings)
    session.tell(told(guards))
    session.run_all(
        plans, population, net=model, metric=Classification(10), instead=instead, guards=guards, **poisoning.options(who, len(population))
    )


def build_plans(
    names: Sequence[str], rounds: int, training: Training, buffers: str, cohort: Cohort, knobs: Sequence[str],
    input_shape: tuple[int, ...],
) -> dict[str, Plan]:  # fmt: skip
    """The plan of every method, all with the same training; each also takes what it alone knows."""
    if not names:
        raise ValueError(f"There is no method to run. Give at least one of: {', '.join(known_methods.__all__)}.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"The method '{twice[0]}' is given {names.count(twice[0])} times. Give every method once.")
    own = read_knobs(knobs, names)
    return {name: build_plan(name, rounds, training, buffers, cohort, own.get(name, {}), input_shape) for name in names}


def build_plan(
    name: str, rounds: int, training: Training, buffers: str, cohort: Cohort, own: Mapping[str, Any], input_shape: tuple[int, ...]
) -> Plan:
    function = find_method(name)
    common = {"rounds": rounds, "training": training, "buffers": buffers, "cohort": cohort, "input_shape": input_shape}
    known = inspect.signature(function).parameters
    given = {**{key: value for key, value in common.items() if key in known}, **own}
    needed = [key for key, parameter in known.items() if parameter.default is parameter.empty and key not in given]
    if needed:
        raise ValueError(f"'{name}' needs '{needed[0]}', which this recipe does not know. Leave it out, or look for its own recipe.")
    plan: Plan = function(**given)
    return plan


def find_method(name: str) -> Any:
    if name not in known_methods.__all__:
        raise ValueError(f"Unknown method '{name}'. {nearest(name, known_methods.__all__)}")
    return getattr(known_methods, name)


def read_knobs(knobs: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`method.key=value` pairs, with the types of the method's own signature."""
    found: dict[str, dict[str, Any]] = {}
    for knob in knobs:
        where, equals, text = knob.partition("=")
        method, dot, key = where.partition(".")
        if not (equals and dot):
            raise ValueError(f"A knob is written method.key=value, found '{knob}'. Write for example fedprox.mu=0.1.")
        if method not in names:
            raise ValueError(f"The knob '{knob}' is for a method that does not run. {nearest(method, list(names))}")
        options = options_of(find_method(method))
        if key in COMMON:
            raise ValueError(f"The knob '{knob}' would give {method} other conditions than the rest. Set it for all methods.")
        if key not in options:
            raise ValueError(f"{method} has no knob '{key}'. {nearest(key, [name for name in options if name not in COMMON])}")
        if key in found.setdefault(method, {}):
            raise ValueError(f"The knob {where} is given twice. Give it once.")
        found[method][key] = convert(text, options[key].type, where)
    return found
