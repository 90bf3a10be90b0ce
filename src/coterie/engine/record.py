"""What a run says about itself: run.json and the rows of clients.csv."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from coterie.data.examples import Population
from coterie.engine.backend import World
from coterie.engine.choose import Choice
from coterie.engine.settings import Settings
from coterie.method import Method
from coterie.privacy.guards import Guards
from coterie.states import ClientId


def describe(
    world: World, settings: Settings, guards: Guards, choice: Choice, device: torch.device, total: int, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything needed to run this again, and to know what it was."""
    leaks = [asdict(finding) for finding in world.population.findings]
    return {
        **({"leak_check": leaks} if leaks else {}),  # none may also mean that nobody checked, which only the caller knows
        **about,
        "methods": [
            {
                "phase": p.name, "name": method_name(p.method), "rounds": p.rounds, "cohort": repr(p.cohort), "knobs": knobs(p.method),
                **({"switched_off": off} if (off := p.method.switched_off()) else {}),
            }
            for p in world.plan
        ],
        "buffers": next((found for p in world.plan if (found := buffers_of(p.method))), None),
        "rounds": total,
        "seed": settings.seed,
        "settings": asdict(settings),
        **chosen(choice),
        "device": str(device),
        "precision": settings.precision,
        "versions": {"coterie": version("coterie"), "torch": torch.__version__, "python": platform.python_version()},
        "commit": commit(),
        "model": {"parameters": sum(v.numel() for v in world.net.params.values()), "groups": list_groups(world)},
        "metrics": {"main": world.metric.main, "directions": dict(world.metric.directions)},
        "population": population_record(world.population),
        "privacy": None if guards.clip is None and guards.secure is None else asdict(guards),
        "reduce": knobs(world.reduce),
        "attack": None if world.attack is None else {**knobs(world.attack), "attackers": sorted(world.attackers)},
    }


def chosen(choice: Choice) -> dict[str, Any]:
    at_once = {"clients_at_once": choice.width} if choice.backend == "stacked" else {}
    return {"backend": choice.backend, "backend_reason": choice.reason, "workers": choice.workers, **at_once}


def population_record(population: Population) -> dict[str, Any]:
    classes = population.num_classes

    def one(client: ClientId) -> dict[str, Any]:
        parts = population.parts[client]
        sizes = {"train": len(parts.train), "validation": len(parts.validation), "test": len(parts.test)}
        record = {"client": client, "name": population.names[client], **sizes}
        if classes and "y" in parts.train.columns:
            labels = parts.train.column("y").long().cpu()
            record["counts"] = torch.bincount(labels.reshape(-1), minlength=classes).tolist()
        return record

    return {
        "name": population.name,
        "partition": population.partition,
        "num_classes": classes,
        "classes": list(population.classes),
        "clients": [one(client) for client in range(len(population))],
    }


def client_rows(
    scores: Mapping[tuple[str, str], Mapping[ClientId, Mapping[str, float]]], population: Population, round: int
) -> Iterator[dict[str, Any]]:
    for (model, split), by_client in scores.items():
        for client, values in by_client.items():
            if client < 0:
                continue
            parts = population.parts[client]
            size = len(getattr(parts, split))
            head = {"round": round, "model": model, "split": split, "client": client, "name": population.names[client]}
            yield {**head, "examples": size, **values}


def method_name(method: Method) -> str:
    inner = getattr(method, "inner", None)
    return f"{type(method).__name__}({method_name(inner)})" if inner is not None else type(method).__name__


def knobs(value: Any) -> Any:
    """Every hyperparameter as plain JSON, with functions by their names."""
    if is_dataclass(value) and not isinstance(value, type):
        inside = {f.name: knobs(getattr(value, f.name)) for f in fields(value)}
        return {"is": type(value).__name__, **inside}
    if isinstance(value, list | tuple | frozenset):
        return [knobs(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): knobs(item) for name, item in value.items()}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return getattr(value, "__qualname__", repr(value))


def buffers_of(method: Method) -> str | None:
    found = getattr(method, "buffers", None)
    inner = getattr(method, "inner", None)
    return str(found) if found is not None else (buffers_of(inner) if inner is not None else None)


def list_groups(world: World) -> dict[str, int]:
    try:
        groups = world.net.groups
    except ValueError:
        return {}
    return {name: sum(world.net.params[n].numel() for n in names) for name, names in groups.items()}


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def commit() -> str | None:
    """The commit of the source that runs, where it runs from a checkout."""
    here = Path(__file__).resolve()

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], cwd=here.parent, capture_output=True, text=True, timeout=5, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # an installed copy may lie inside somebody else's checkout, whose commit says nothing about it
    return git("rev-parse", "HEAD") if git("ls-files", "--error-unmatch", here.name) else None
