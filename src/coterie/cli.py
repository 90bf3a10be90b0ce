"""The command line: `coterie run quickstart`, and what one does before and after."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from coterie.options import Option, nearest, options_of, options_of_fields, parse

console = Console(highlight=False)

COMMANDS = {
    "run": "run a recipe, or go on with one that was stopped",
    "list": "methods, recipes and data sets, one line each",
    "data": "inspect, check: look at a data set and its partition",
    "compare": "a table of finished runs with significance",
    "report": "write report.html again",
}

MAY_CHANGE = ("rounds", "backend", "workers", "devices", "threads", "quiet")


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        return usage()
    command, *rest = words
    if command in ("-V", "--version"):
        from coterie import __version__

        console.print(f"coterie {__version__}")
        return 0
    handlers: dict[str, Callable[[list[str]], int]] = {
        "run": run_command, "list": list_command, "data": data_command, "compare": compare_command, "report": report_command,
    }  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        if command not in handlers:
            raise ValueError(f"Unknown command '{command}'. {nearest(command, list(COMMANDS))}")
        return handlers[command](rest)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    except (ValueError, RuntimeError, OSError) as error:
        if os.environ.get("COTERIE_DEBUG"):
            raise
        print(f"coterie: {error}", file=sys.stderr)
        return 2


def usage() -> int:
    console.print("[bold]coterie[/]: personalised and private federated learning\n")
    table = Table.grid(padding=(0, 3))
    for name, text in COMMANDS.items():
        table.add_row(f"  coterie {name}", text)
    console.print(table)
    console.print("\nStart with: [bold]coterie run quickstart[/]     Every command explains itself with --help.")
    return 0


def run_command(words: list[str]) -> int:
    from coterie import recipes
    from coterie.engine.settings import Settings
    from coterie.recipes.session import Session, read_values

    settings_options = options_of_fields(Settings)
    name = words.pop(0) if words and not words[0].startswith("-") else None
    if name is None and (not words or "--help" in words or "-h" in words):
        return run_help(None, settings_options)
    if name is not None and name not in recipes.__all__:
        raise ValueError(f"Unknown recipe '{name}'. {nearest(name, recipes.__all__)}")
    if "--help" in words or "-h" in words:
        return run_help(name, settings_options)
    resumed = _take_resume(words)
    stored = read_values(resumed) if resumed is not None else None
    if stored is not None:
        if name not in (None, stored["recipe"]):
            raise ValueError(f"'{resumed}' holds the recipe '{stored['recipe']}', not '{name}'. Leave the name out to resume it.")
        name = stored["recipe"]
    assert name is not None
    recipe = getattr(recipes, name)
    own = options_of(recipe)
    out_option = {"out": Option("out", Path | None, None)}
    given = parse(words, {**settings_options, **own, **out_option}, f"run {name}")
    out = given.pop("out", None)
    values = {key: given.pop(key) for key in list(given) if key in own}
    if stored is not None:
        values, given = resumed_values(stored, values, given)
        out = resumed
    settings = Settings(**given)
    values = {key: values.get(key, option.default) for key, option in own.items()}
    session = Session.open(name, values, settings, out, resume=stored is not None)
    try:
        recipe(session, **values)
    except KeyboardInterrupt:
        console.print(f"\nStopped. Nothing is lost; go on with:  coterie run --resume {session.out}")
        raise
    except ValueError:
        session.abandon()
        raise
    session.close()
    finish_run(session)
    return 0


def _take_resume(words: list[str]) -> Path | None:
    for place, word in enumerate(words):
        if word == "--resume":
            if place + 1 == len(words):
                raise ValueError("Option '--resume' has no folder. Give the --out of the run that was stopped.")
            folder = Path(words[place + 1])
            del words[place : place + 2]
            return folder
        if word.startswith("--resume="):
            del words[place]
            return Path(word.removeprefix("--resume="))
    return None


def resumed_values(stored: dict[str, Any], values: dict[str, Any], given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The stored values; a different one is refused, except where it can't change a number that is already written."""
    for new, old in ((values, stored["values"]), (given, stored["settings"])):
        for key, value in new.items():
            before = tuple(old[key]) if isinstance(old.get(key), list) else old.get(key)
            if key == "rounds" and isinstance(before, int) and value < before:
                raise ValueError(f"--rounds can only grow when a run is resumed: it was {before}, found {value}. Use {before} or more.")
            if key not in MAY_CHANGE and value != before:
                raise ValueError(
                    f"--{key.replace('_', '-')} was {before} when this run began, found {value}. "
                    "Leave it out to resume, or start a new run."
                )
    restored = {key: tuple(value) if isinstance(value, list) else value for key, value in stored["values"].items()}
    return {**restored, **values}, {**stored["settings"], **given}


def finish_run(session: Any) -> None:
    """Tables, and where to look."""
    from coterie.report.page import write_report
    from coterie.report.table import final_table

    table = final_table(session.out)
    if table is not None:
        console.print(table)
    report = write_report(session.out)
    console.print(f"Report: {report}")


def run_help(name: str | None, settings: dict[str, Option]) -> int:
    from coterie import recipes

    if name is None:
        console.print("coterie run RECIPE [--KEY VALUE ...] [--out DIR]\ncoterie run --resume DIR\n\nRecipes:")
        table = Table.grid(padding=(0, 3))
        for recipe in recipes.__all__:
            table.add_row(f"  {recipe}", first_line(getattr(recipes, recipe)))
        console.print(table)
        console.print("\nThe keys of a recipe: coterie run RECIPE --help")
        return 0
    recipe_function = getattr(recipes, name)
    console.print(f"[bold]coterie run {name}[/]\n\n{inspect.getdoc(recipe_function)}\n")
    for title, options in (("Keys of this recipe", options_of(recipe_function)), ("Keys of every run", settings)):
        console.print(f"[bold]{title}[/]")
        table = Table.grid(padding=(0, 3))
        for option in options.values():
            table.add_row(f"  {option.flag}", option.describe(), f"default {option.default}", SETTING_HELP.get(option.name, ""))
        if "seed" in options:
            table.add_row("  --out", "path", "default runs/<recipe>-<time>", "the run folder; must be empty or new")
            table.add_row("  --resume", "path", "", "go on with a stopped run; its values come from there")
        console.print(table)
        console.print()
    return 0


SETTING_HELP = {
    "seed": "all random numbers of the run follow from it",
    "backend": "loop: one client after another; pool: many processes; auto chooses and says why",
    "workers": "processes of the pool",
    "threads": "threads of the loop; 1 gives the same bits as the pool",
    "precision": "fp32 is true fp32 (TF32 off)",
    "eval_every": "evaluate every so many rounds (and after the last)",
    "eval_clients": "all (up to 200, then a fixed 200), cohort, or a number",
    "checkpoint_every": "rounds between checkpoints",
    "row_memory_mb": "client rows beyond this many MB wait on disk",
    "min_cohort": "a round with fewer returning clients is repeated",
    "norm_ratio": "an update this many times longer than the model is refused",
    "order": "order of computation; changes no number",
    "quiet": "no progress display",
}


def list_command(words: list[str]) -> int:
    from coterie import methods, recipes
    from coterie.data.sources import SOURCES

    parse(words, {}, "list")
    sections: list[tuple[str, dict[str, str]]] = [
        ("Methods", {name: first_line(getattr(methods, name)) for name in methods.__all__}),
        ("Recipes", {name: first_line(getattr(recipes, name)) for name in recipes.__all__}),
        ("Data sets", {name: str(text) for name, text in SOURCES.items()}),
    ]
    for title, rows in sections:
        console.print(f"[bold]{title}[/]")
        table = Table.grid(padding=(0, 3))
        for name, text in rows.items():
            table.add_row(f"  {name}", text)
        console.print(table)
        console.print()
    return 0


def data_command(words: list[str]) -> int:
    from coterie.recipes.data_commands import check_data, inspect_data

    commands: dict[str, Callable[..., int]] = {"inspect": inspect_data, "check": check_data}
    if not words or words[0] in ("-h", "--help"):
        for name, function in commands.items():
            console.print(f"  coterie data {name}   {first_line(function)}")
        return 0
    name, *rest = words
    if name not in commands:
        raise ValueError(f"Unknown command 'data {name}'. {nearest(name, list(commands))}")
    options = options_of(commands[name])
    if "--help" in rest or "-h" in rest:
        return function_help(f"data {name}", commands[name])
    if rest and not rest[0].startswith("--"):
        rest = ["--data", *rest]
    return commands[name](**parse(rest, options, f"data {name}"))


def compare_command(words: list[str]) -> int:
    from coterie.recipes.report_commands import compare_runs

    return folders_command("compare", compare_runs, words)


def report_command(words: list[str]) -> int:
    from coterie.recipes.report_commands import report_runs

    return folders_command("report", report_runs, words)


def folders_command(name: str, function: Callable[..., int], words: list[str]) -> int:
    """Commands that take run folders first and options after them."""
    if "--help" in words or "-h" in words or not words:
        return function_help(f"{name} RUN...", function)
    options = options_of(function)
    folders: list[Path] = []
    while words and not words[0].startswith("--"):
        folders.append(Path(words.pop(0)))
    given = parse(words, options, name)
    if not folders:
        raise ValueError(f"coterie {name} needs at least one run folder, found none. Give the --out of a run.")
    return function(folders, **given)


def function_help(title: str, function: Callable[..., Any]) -> int:
    console.print(f"[bold]coterie {title}[/]\n\n{inspect.getdoc(function)}\n")
    table = Table.grid(padding=(0, 3))
    for option in options_of(function).values():
        table.add_row(f"  {option.flag}", option.describe(), f"default {option.default}")
    console.print(table)
    return 0


def first_line(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").split("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
