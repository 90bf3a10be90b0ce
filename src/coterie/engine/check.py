"""What can be found wrong before the first round, so that a mistake costs a second and not a night."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from coterie.attacks.poison import Attack
from coterie.data.examples import Population
from coterie.engine.backend import World
from coterie.engine.choose import choose_backend
from coterie.engine.poisoning import poisoned
from coterie.engine.round import averages
from coterie.engine.rows import hub_of, row_of, with_server_rows
from coterie.engine.secure import fixed_point
from coterie.engine.settings import Settings
from coterie.engine.spending import check_budget
from coterie.method import Cohort, Nobody, Phase, Plan, Poisson, Round, as_run
from coterie.metrics.metric import Metric
from coterie.models.net import Net
from coterie.privacy.guards import Guards
from coterie.privacy.secure_sum.keys import library
from coterie.randomness import Key
from coterie.reduce.mean import Mean
from coterie.reduce.seam import Reduce
from coterie.states import ServerState

_ASKED = 3  # clients that are asked what they would train; one alone may be a faulty one, which a run leaves out


def check(
    plan: Plan, population: Population, *, net: Net, metric: Metric, guards: Guards = Guards(), settings: Settings = Settings(),
    reduce: Reduce = Mean(), attack: Attack | None = None,
) -> None:  # fmt: skip
    """Refuse what `run` would refuse, and what every client would refuse in its first round. Writes and trains nothing."""
    world = World(plan, poisoned(population, attack, settings.seed), net, metric, settings.seed, reduce, attack)
    choose_backend(settings, plan, net.params, [len(parts.train) for parts in population.parts])
    check_world(world, guards, settings)
    _check_first_ask(world)


def check_world(world: World, guards: Guards, settings: Settings) -> None:
    """Phases, cohorts, slots and guards fit together."""
    if not world.plan:
        raise ValueError("The plan has no phase, so there is nothing to run. Give at least one Phase.")
    check_reduce(world, guards)
    check_attack(world, guards)
    seen: set[str] = set()
    sending: list[tuple[Cohort, Collection[str]]] = []
    for phase in world.plan:
        if phase.name in seen:
            raise ValueError(f"Two phases are called '{phase.name}'. Give each phase a name of its own.")
        seen.add(phase.name)
        round = _first_round(world, phase)
        if round.cohort and not isinstance(phase.cohort, Poisson) and len(round.cohort) < settings.min_cohort:
            raise ValueError(
                f"min_cohort is {settings.min_cohort}, but a cohort of phase '{phase.name}' has {len(round.cohort)} clients. "
                f"Use --min-cohort {len(round.cohort)} or less."
            )
        if not isinstance(phase.cohort, Nobody):
            _check_least(world, phase, guards, round)
            _check_secure(world, phase, guards, round)
        slots = phase.method.slots(hub_of(world, round))
        guards.check(slots, type(phase.method).__name__)
        sending.append((phase.cohort, slots.keys()))
    check_budget(guards, len(world.population), sending)


def check_reduce(world: World, guards: Guards) -> None:
    """A robust reduction sees every update, has updates to reduce, and enough of them."""
    reduce = world.reduce
    if not reduce.needs_single_updates:
        return
    if guards.secure is not None:
        raise ValueError(
            f"{reduce} needs every client's update, but a secure sum shows the server only the sum. "
            "Use Mean() (--reduce mean) with a clip, or leave out the secure sum."
        )
    if guards.private:
        raise ValueError(
            f"{reduce} needs every client's update, but under noise each one arrives multiplied by its weight and drowned in noise. "
            "Use Mean() (--reduce mean), since the clip bounds every client already, or leave out noise."
        )
    if guards.follows:
        raise ValueError(
            f"{reduce} would also choose among the bits by which an adaptive clip counts clients. "
            "Use a fixed clip (clip_mode='flat'), or Mean() (--reduce mean)."
        )
    reduced = [phase for phase in world.plan if averages(phase.method.slots(hub_of(world, _first_round(world, phase))))]
    if not reduced:
        raise ValueError(
            f"{reduce} would do nothing: no update is averaged by {_methods(world)}. "
            "Use Mean() (--reduce mean), or choose a method whose updates are averaged."
        )
    for phase in reduced:
        size = len(_first_round(world, phase).cohort)
        if not isinstance(phase.cohort, Poisson) and 0 < size < reduce.fewest:
            raise ValueError(
                f"{reduce} needs at least {reduce.fewest} clients in a round, but a cohort of phase '{phase.name}' has {size}. "
                "Use a larger cohort, or count on fewer attackers."
            )


def _methods(world: World) -> str:
    return ", ".join(dict.fromkeys(type(phase.method).__name__ for phase in world.plan))


def check_attack(world: World, guards: Guards) -> None:
    """There is something that these attackers could see and change."""
    if world.attack is None or not world.attack.tampers:
        return
    if world.attack.omniscient and guards.secure is not None:
        raise ValueError(
            f"{type(world.attack).__name__} sees the honest clients' updates, which a secure sum hides from everybody. "
            "Let attackers see their own (sees='own'), or leave out the secure sum."
        )
    if not any(averages(phase.method.slots(hub_of(world, _first_round(world, phase)))) for phase in world.plan):
        raise ValueError(
            f"{type(world.attack).__name__} changes updates that are averaged, but none is by {_methods(world)}. "
            "Use an attack on the data, such as LabelFlip() (--attack labelflip), or another method."
        )


def _check_secure(world: World, phase: Phase, guards: Guards, round: Round) -> None:
    """A secure sum has its library, enough clients for its threshold, and numbers fine enough for its noise."""
    if guards.secure is None:
        return
    library()
    drawn = isinstance(phase.cohort, Poisson)
    clients = len(world.population) if drawn else len(round.cohort)
    guards.secure.check_cohort(clients, at_most=drawn)
    fixed_point(guards, clients)


def _check_least(world: World, phase: Phase, guards: Guards, round: Round) -> None:
    """Enough clients for the noise that is claimed: with fewer every round would be nothing but noise."""
    population = len(world.population)
    if guards.least > population:
        raise ValueError(
            f"The noise is claimed for sums of at least {guards.least} clients, but there are {population}. "
            f"Set the guards' min_cohort to {population} or less."
        )
    if not isinstance(phase.cohort, Poisson) and len(round.cohort) < guards.least:
        raise ValueError(
            f"The noise is claimed for sums of at least {guards.least} clients, but a cohort of phase '{phase.name}' has "
            f"{len(round.cohort)}. Use a larger cohort, or set the guards' min_cohort to {len(round.cohort)} or less."
        )


def check_history(plan: Plan, lines: Iterable[Mapping[str, Any]]) -> None:
    """A plan that goes on must have the same phases in the rounds that ran (the lines of metrics.jsonl)."""
    planned = [phase.name for phase in plan for _ in range(phase.rounds)]
    for line in lines:
        if line.get("event") != "round":
            continue
        ran, round = line["phase"], line["round"]
        now = planned[round - 1] if round <= len(planned) else None
        if now != ran:
            found = f"is '{now}'" if now else "does not exist"
            raise ValueError(
                f"Round {round} was '{ran}' when it ran; in this plan it {found}. Resume with "
                "the rounds that the run began with (a phase can grow until the next one begins), or start a new run."
            )


def check_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """A run goes on as it began (both as run.json tells it), but for its length and for what changes no number."""
    old, new = _identity(before), _identity(now)
    for what in new:
        if what in old and new[what] != old[what]:
            found = f"{old[what]}, now {new[what]}" if len(f"{old[what]}{new[what]}") < 300 else "something else"
            raise ValueError(
                f"The run in this folder began with another {what}: {found}. "
                "Resume it with the values that it began with, or choose another folder."
            )


def _identity(record: Mapping[str, Any]) -> dict[str, Any]:
    """What must not change, by the words to say it in. A knob may: it can be what had to be mended."""
    phases = {f"method in phase '{phase['phase']}'": phase["name"] for phase in record["methods"]}
    keys = {"seed": "seed", "model": "net", "population": "population", "precision": "precision", "privacy": "guard",
            "reduce": "reduction", "attack": "attack"}  # fmt: skip
    return {**phases, **{word: record[key] for key, word in keys.items() if key in record}}


def _first_round(world: World, phase: Phase) -> Round:
    total, clients = sum(p.rounds for p in world.plan), len(world.population)
    return Round(0, total, phase.name, 0, phase.rounds, phase.cohort.draw(clients, Key(0)), clients)


def _check_first_ask(world: World) -> None:
    """What the first clients would ask of the engine: nothing is answered, so nothing is trained."""
    phase = world.plan[0]
    if isinstance(phase.cohort, Nobody):
        return
    round = _first_round(world, phase)
    hub, clients, method = hub_of(world, round), round.cohort[:_ASKED], phase.method
    state = with_server_rows(method, ServerState(method.server_state(hub)), clients, hub)
    refused: Exception | None = None
    for client in clients:
        down = method.send(state, client, hub)
        try:
            row = row_of(world, method, {}, client, round, state, fresh=True)
            run = as_run(method.client(row, down, world.site(client, round, {})))
            next(run, None)
        except Exception as error:
            refused = error
            continue
        run.close()
        return
    if refused is not None:
        raise refused
