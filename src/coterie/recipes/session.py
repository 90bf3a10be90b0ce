"""What every recipe shares: the run folder, progress, resume and the report at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from coterie.data.examples import Population, View, whole
from coterie.engine.folder import write_json
from coterie.engine.run import Finish, run
from coterie.engine.settings import Settings
from coterie.method import Plan
from coterie.metrics.metric import Metric
from coterie.models.net import Net
from coterie.privacy.guards import Guards
from coterie.randomness import Key
from coterie.report.progress import Progress


_RECIPE = "recipe.json"


@dataclass
class Session:
    """One call of a recipe: where it writes, how it runs, and what it has finished."""

    recipe: str
    values: Mapping[str, Any]
    settings: Settings
    out: Path
    resume: bool = False
    finished: dict[str, Finish] = field(default_factory=dict)

    @classmethod
    def open(cls, recipe: str, values: Mapping[str, Any], settings: Settings, out: Path | None, resume: bool = False) -> Session:
        """Claim the folder: a new one must be empty, and says at once what will run in it."""
        out = out or Path("runs") / f"{recipe}-{datetime.now():%Y%m%d-%H%M%S}"
        if not resume:
            if out.exists() and (not out.is_dir() or any(out.iterdir())):
                raise ValueError(
                    f"The folder '{out}' is not empty. Choose another --out, or go on with: coterie run --resume {out}"
                )
            try:
                out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(f"Can't write to '{out}' ({error.strerror}). Choose another --out.") from None
            write_json(out / _RECIPE, {"recipe": recipe, "values": dict(values), "settings": asdict(settings)})
        return cls(recipe, values, settings, out, resume)

    def run(
        self, plan: Plan, population: Population, *, net: Net, metric: Metric, method: str, name: str = "",
        guards: Guards = Guards(), settings: Settings | None = None, listed: bool = True,
    ) -> Finish:  # fmt: skip
        """Run one plan, in the session's folder or in the part of it called `name`; an unlisted one is no result."""
        settings = settings or self.settings
        path = self.out / name if name else self.out
        about = {"recipe": self.recipe, "method": method, "values": dict(self.values)}
        rounds = sum(phase.rounds for phase in plan)
        with Progress(rounds, name or method, metric.main, quiet=settings.quiet) as progress:
            finish = run(
                plan, population, net=net, metric=metric, out=path, guards=guards, settings=settings,
                watcher=progress, about=about, resume=self.resume or not name,
            )  # fmt: skip
        if listed:
            self.finished[name or method] = finish
        return finish

    def abandon(self) -> None:
        """Give the folder back when nothing ran in it, so that the mended call may use it."""
        if not self.resume and sorted(path.name for path in self.out.iterdir()) == [_RECIPE]:
            (self.out / _RECIPE).unlink()
            self.out.rmdir()

    def close(self) -> None:
        """Name the runs that belong together."""
        names = [name for name, finish in self.finished.items() if finish.path != self.out]
        if names:
            write_json(self.out / "summary.json", {"recipe": self.recipe, "runs": names})


def seeded(seed: int, build: Callable[..., Net], *args: Any, **kwargs: Any) -> Net:
    """A net whose first weights follow from the run's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Key(seed, ("weights",)).torch_seed())
        return build(*args, **kwargs)


def pooled(population: Population) -> Population:
    """The same population, with all training data also in one place (for Centralized)."""
    first = population.parts[0].train
    if any(parts.train.columns is not first.columns for parts in population.parts):
        rows = [parts.train.all_rows() for parts in population.parts]
        view = whole({name: torch.cat([part[name] for part in rows]) for name in rows[0]})
    else:
        view = View(first.columns, torch.cat([parts.train.index for parts in population.parts]), first.decode)
    return replace(population, public={**population.public, "pooled": view})


def read_values(folder: Path) -> dict[str, Any]:
    """What ran in this folder, for --resume."""
    if not folder.is_dir():
        raise ValueError(f"There is no folder '{folder}' to resume. Give the --out of a run that was stopped.")
    path = folder / _RECIPE
    if not path.exists():
        raise ValueError(f"'{folder}' is no run folder: it has no recipe.json. Give the --out of a run that was stopped.")
    content: dict[str, Any] = json.loads(path.read_text())
    return content
