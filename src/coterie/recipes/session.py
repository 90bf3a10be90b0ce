"""What every recipe shares: the run folder, progress, resume and the report at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from coterie.attacks.poison import Attack
from coterie.data.examples import Finding, Population, View, whole
from coterie.engine.check import check, check_history
from coterie.engine.folder import write_json
from coterie.engine.record import knobs
from coterie.engine.run import Finish, placed, run
from coterie.engine.settings import Settings
from coterie.method import Plan
from coterie.metrics.metric import Metric
from coterie.models.net import Net
from coterie.options import arguments_of
from coterie.privacy.guards import Guards
from coterie.randomness import Key
from coterie.recipes.folders import RECIPE_FILE, claim, default_folder, give_back, rounds_finished
from coterie.reduce.mean import Mean
from coterie.reduce.seam import Reduce
from coterie.report.progress import Progress
from coterie.report.records import knob_words, read_lines


class Rehearsed(Exception):
    """A rehearsal came as far as the first run, with nothing to refuse."""


@dataclass
class Session:
    """One call of a recipe: where it writes, how it runs, and what it has finished.

    In a rehearsal a recipe loads its data and its plans are checked; at the first run `Rehearsed` is raised.
    """

    recipe: str
    values: Mapping[str, Any]
    settings: Settings
    out: Path
    resume: bool = False
    rehearsal: bool = False
    finished: dict[str, Finish] = field(default_factory=dict)
    made: tuple[Path, ...] = ()
    told: set[Finding] = field(default_factory=set)

    @classmethod
    def open(cls, recipe: str, values: Mapping[str, Any], settings: Settings, out: Path | None, resume: bool = False) -> Session:
        """Claim the folder: a new one must be empty, and says at once what will run in it."""
        out = out or default_folder(recipe)
        made = () if resume else claim(out, "run")
        session = cls(recipe, values, settings, out, resume, made=made)
        if not resume:
            session.write_recipe()
        return session

    def perform(self, recipe: Callable[..., None]) -> None:
        """Call the recipe and name its runs. A call that fails before anything ran leaves nothing behind."""
        try:
            recipe(self, **arguments_of(recipe, self.values))
        except Exception:
            self.abandon()
            raise
        self.close()

    def check(self, plan: Plan, population: Population, *, net: Net, metric: Metric, name: str = "", guards: Guards = Guards(),
              reduce: Reduce = Mean(), attack: Attack | None = None, settings: Settings | None = None) -> None:  # fmt: skip
        """Refuse now what `run` would refuse later: a recipe of several runs checks all plans before the first one trains."""
        check(plan, population, net=net, metric=metric, guards=guards, reduce=reduce, attack=attack,
              settings=settings or self.settings)  # fmt: skip
        if self.resume:
            check_history(plan, read_lines(self.out / name / "metrics.jsonl")[0])

    def run(
        self, plan: Plan, population: Population, *, net: Net, metric: Metric, method: str, name: str = "",
        guards: Guards = Guards(), reduce: Reduce = Mean(), attack: Attack | None = None, settings: Settings | None = None,
        listed: bool = True,
    ) -> Finish:  # fmt: skip
        """Run one plan, in the session's folder or in the part of it called `name`; an unlisted one is no result."""
        settings = settings or self.settings
        path = self.out / name if name else self.out
        self.check(plan, population, net=net, metric=metric, name=name, guards=guards, reduce=reduce, attack=attack,
                   settings=settings)  # fmt: skip
        if self.rehearsal:
            raise Rehearsed
        self.write_recipe()
        leaks = [asdict(finding) for finding in population.findings]
        about = {"recipe": self.recipe, "method": method, "values": dict(self.values), "leak_check": leaks}
        rounds = sum(phase.rounds for phase in plan)
        with Progress(rounds, name or method, metric.main, quiet=settings.quiet) as progress:
            for finding in population.findings:
                if finding.level != "note" and finding not in self.told:
                    progress.note(f"Leak check: {finding.text}.")
                    self.told.add(finding)
            for phase in plan:
                progress.note(f"{phase.name}: {knob_words(knobs(phase.method))}")
                if off := phase.method.switched_off():
                    progress.note(f"Mind: {off}.")
            if self.resume and rounds_finished(path) == rounds:
                progress.note(f"finished already, {rounds} rounds")
            finish = run(
                plan, population, net=net, metric=metric, out=path, guards=guards, reduce=reduce, attack=attack,
                settings=settings, watcher=progress, about=about, resume=self.resume or not name,
            )  # fmt: skip
        if listed:
            self.finished[name or method] = finish
        return finish

    def run_all(
        self, plans: Mapping[str, Plan], population: Population, *, net: Net, metric: Metric,
        instead: Mapping[str, Population] | None = None, guards: Guards = Guards(), reduce: Reduce = Mean(), attack: Attack | None = None,
    ) -> dict[str, Finish]:  # fmt: skip
        """Check every plan, then run one after another, each under its name; `instead` holds other data for some of them."""
        data = {name: (instead or {}).get(name, population) for name in plans}
        for name, plan in plans.items():
            self.check(plan, data[name], net=net, metric=metric, name=name, guards=guards, reduce=reduce, attack=attack)
        return {
            name: self.run(plan, data[name], net=net, metric=metric, method=name, name=name, guards=guards, reduce=reduce, attack=attack)
            for name, plan in plans.items()
        }

    def tell(self, line: str) -> None:
        """A line for whoever watches."""
        if line and not self.settings.quiet and not self.rehearsal:
            Console(highlight=False).print(line, soft_wrap=True, markup=False)

    def write_recipe(self) -> None:
        """What runs here, for --resume. Values of a resumed run replace the old ones only once they are checked."""
        content = {"recipe": self.recipe, "values": dict(self.values), "settings": asdict(self.settings)}
        write_json(self.out / RECIPE_FILE, content)

    def abandon(self) -> None:
        """Give the folder back when nothing ran in it, so that the mended call may use it."""
        if not self.resume and not self.begun:
            (self.out / RECIPE_FILE).unlink(missing_ok=True)
            give_back(self.made)

    @property
    def begun(self) -> bool:
        """Whether anything but the recipe's own file is there."""
        return self.out.is_dir() and any(path.name != RECIPE_FILE for path in self.out.iterdir())

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


def beside(finish: Finish, population: Population, net: Net) -> tuple[Population, Net]:
    """Data and net on the device and in the precision of what a run left behind, to look at it after the run."""
    left = next(iter(finish.state.shared["shared"].values()))
    return placed(population, left.device, left.dtype), net.to(left.device, left.dtype)


def pooled(population: Population) -> Population:
    """The same population, with all training data also in one place (for Centralized)."""
    first = population.parts[0].train
    if any(parts.train.columns is not first.columns for parts in population.parts):
        rows = [parts.train.all_rows() for parts in population.parts]
        view = whole({name: torch.cat([part[name] for part in rows]) for name in rows[0]})
    else:
        view = View(first.columns, torch.cat([parts.train.index for parts in population.parts]), first.decode)
    return replace(population, public={**population.public, "pooled": view})
