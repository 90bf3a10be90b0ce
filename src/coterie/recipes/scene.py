"""What a recipe would run in a folder that it has run in: plan, net and data again, without training anything.

An attacker on the server knows plan and net. The data are there to score what it finds, never to find it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from coterie import recipes
from coterie.data.examples import Population
from coterie.engine.run import Finish
from coterie.engine.settings import Settings
from coterie.method import Plan
from coterie.models.net import Net
from coterie.options import arguments_of
from coterie.privacy.guards import Guards
from coterie.recipes.folders import RECIPE_FILE, from_json, read_request
from coterie.recipes.session import Session
from coterie.report.records import read_record
from coterie.states import ServerState


@dataclass(frozen=True, eq=False)
class Scene:
    """One run of a recipe, as it stood before its first round."""

    plan: Plan
    population: Population
    net: Net
    settings: Settings
    guards: Guards = Guards()


class _FoundScene(Exception):
    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self.scene = scene


class _Rebuilding(Session):
    """A session in which nothing is checked, written or trained; at the wanted run it ends."""

    wanted: Path

    def check(self, *_: Any, **__: Any) -> None:
        return

    def write_recipe(self) -> None:
        return

    def run(self, plan: Plan, population: Population, *, net: Net, name: str = "", settings: Settings | None = None,
            guards: Guards = Guards(), **_: Any) -> Finish:  # fmt: skip
        path = self.out / name if name else self.out
        if path.resolve() == self.wanted.resolve():
            raise _FoundScene(Scene(plan, population, net, settings or self.settings, guards))
        summary: Mapping[str, Any] = read_record(path / "summary.json") if (path / "summary.json").exists() else {}
        finish = Finish(path, dict(summary), ServerState({}, {}), {})
        self.finished[name] = finish
        return finish


def scene_of(run: Path) -> Scene:
    """The scene of a run folder, from the recipe.json in it or above it."""
    home = next((folder for folder in (run, *run.resolve().parents[:3]) if (folder / RECIPE_FILE).exists()), None)
    if home is None:
        raise ValueError(f"'{run}' has no {RECIPE_FILE}, in it or above it, so nobody can say which net it trained. Give a run of coterie run.")
    stored = read_request(home, "run")
    if stored["recipe"] not in recipes.__all__:
        raise ValueError(f"'{home}' holds the recipe '{stored['recipe']}', which does not exist here. Use the version that ran it.")
    values = {key: from_json(value) for key, value in stored["values"].items()}
    session = _Rebuilding(stored["recipe"], values, Settings(**stored["settings"]), home)
    session.wanted = run
    return _played(session, run)


def _played(session: _Rebuilding, run: Path) -> Scene:
    try:
        recipe = getattr(recipes, session.recipe)
        recipe(session, **arguments_of(recipe, session.values))
    except _FoundScene as found:
        return found.scene
    return _not_there(session, run)


def _not_there(session: _Rebuilding, run: Path) -> NoReturn:
    names = ", ".join(sorted(name for name in session.finished if name)) or "none"
    raise ValueError(f"The recipe '{session.recipe}' trains nothing in '{run}'. Give the folder of one of its runs: {names}.")
