"""The command line: `coterie run quickstart`, and what one does before and after."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from coterie.cli.show import KEY_HELP, console, first_line, function_help, print_doc, print_rows, wants_help
from coterie.options import nearest, options_of, parse

COMMANDS = {
    "run": "run a recipe, or go on with one that was stopped",
    "sweep": "a recipe over a grid of values and seeds; the best is chosen",
    "list": "methods, recipes, data sets, reductions and attacks",
    "data": "inspect, check, partition, build leaf: a data set and its clients",
    "compare": "a table of finished runs with significance",
    "report": "write report.html again",
    "attack": "inversion: what the recorded Messages of a run give away",
    "privacy": "plan, account, audit: noise for a promise, what a run has spent, what can be shown against it",
}


def main(arguments: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows no ± must not end a run that took hours
            stream.reconfigure(errors="replace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        return usage()
    command, *rest = words
    if command in ("-V", "--version"):
        from coterie import __version__

        console.print(f"coterie {__version__}")
        return 0
    handlers: dict[str, Callable[[list[str]], int]] = {
        "run": run_command, "sweep": sweep_command, "list": list_command, "data": data_command, "compare": compare_command,
        "report": report_command, "privacy": privacy_command, "attack": attack_command,
    }  # fmt: skip
    try:
        if command not in handlers:
            raise ValueError(f"Unknown command '{command}'. {nearest(command, list(COMMANDS))}")
        with stopped_by_sigterm():
            return handlers[command](rest)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `coterie list | head`: whoever read has enough, and Python would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        if os.environ.get("COTERIE_DEBUG"):
            raise
        print(f"coterie: {error}", file=sys.stderr)
        return 2


@contextlib.contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: resumable, with the way to go on."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # only the main thread may
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def usage() -> int:
    console.print("[bold]coterie[/]: personalised and private federated learning\n")
    print_rows({f"coterie {name}": text for name, text in COMMANDS.items()})
    console.print("\nStart with: [bold]coterie run quickstart[/]\nEvery command explains itself with --help.")
    return 0


def list_command(words: list[str]) -> int:
    from coterie import methods, recipes
    from coterie.attacks.poison.named import ATTACKS
    from coterie.data.sources import SOURCES
    from coterie.reduce.named import REDUCTIONS

    if wants_help(words):
        print_doc("coterie list", list_command, "Methods, recipes, data sets, reductions and attacks, one line each.")
        return 0
    parse(words, {}, "list")
    sections: list[tuple[str, dict[str, str]]] = [
        ("Methods", {name: first_line(getattr(methods, name)) for name in methods.__all__}),
        ("Recipes", {name: first_line(getattr(recipes, name)) for name in recipes.__all__}),
        ("Data sets", {name: str(text) for name, text in SOURCES.items()}),
        ("Reductions", REDUCTIONS),
        ("Attacks", ATTACKS),
    ]
    for number, (title, rows) in enumerate(sections):
        console.print(f"{'' if number == 0 else chr(10)}[bold]{title}[/]")
        print_rows(rows)
    return 0


def run_command(words: list[str]) -> int:
    from coterie.cli.run import run_recipe
    from coterie.engine.allocator import keep_freed_memory

    keep_freed_memory()
    return run_recipe(words)


def sweep_command(words: list[str]) -> int:
    from coterie.cli.sweep import sweep_recipe
    from coterie.engine.allocator import keep_freed_memory

    keep_freed_memory()
    return sweep_recipe(words)


def data_command(words: list[str]) -> int:
    from coterie.cli.data import build_data, check_data, inspect_data, partition_data

    commands: dict[str, Callable[..., int]] = {
        "inspect": inspect_data, "check": check_data, "partition": partition_data, "build leaf": build_data,
    }  # fmt: skip
    if not words or words[0] in ("-h", "--help"):
        print_rows({f"coterie data {name}": first_line(function) for name, function in commands.items()})
        return 0
    name, *rest = words
    if name == "build" and rest and not rest[0].startswith("-"):
        name, *rest = f"build {rest[0]}", *rest[1:]
    if name not in commands:
        raise ValueError(f"Unknown command 'data {name}'. {nearest(name, list(commands))}")
    if wants_help(rest):
        return function_help(f"data {name} [DATA]", commands[name])
    places: list[str] = []
    given = parse(rest, options_of(commands[name], KEY_HELP), f"data {name}", places)
    named = ([given["data"]] if "data" in given else []) + places
    if len(named) > 1:
        raise ValueError(f"coterie data {name} takes one data set, found {len(named)}: {', '.join(named)}. Give one of them.")
    return commands[name](**{**given, **({"data": named[0]} if named else {})})


def privacy_command(words: list[str]) -> int:
    from coterie.cli.privacy import account_command, account_privacy, plan_command, plan_privacy
    from coterie.cli.privacy_audit import audit_command, privacy_audit

    commands: dict[str, tuple[Callable[[list[str]], int], Callable[..., int]]] = {
        "plan": (plan_command, plan_privacy), "account": (account_command, account_privacy), "audit": (audit_command, privacy_audit),
    }  # fmt: skip
    if not words or words[0] in ("-h", "--help"):
        print_rows({f"coterie privacy {name}": first_line(explained) for name, (_, explained) in commands.items()})
        return 0
    name, *rest = words
    if name not in commands:
        raise ValueError(f"Unknown command 'privacy {name}'. {nearest(name, list(commands))}")
    return commands[name][0](rest)


def attack_command(words: list[str]) -> int:
    from coterie.cli import attack

    return attack.attack_command(words)


def compare_command(words: list[str]) -> int:
    from coterie.cli.reports import compare_runs

    return folders_command("compare", compare_runs, words)


def report_command(words: list[str]) -> int:
    from coterie.cli.reports import report_runs

    return folders_command("report", report_runs, words)


def folders_command(name: str, function: Callable[..., int], words: list[str]) -> int:
    """Commands that take run folders, before or after their options."""
    if wants_help(words):
        return function_help(f"{name} RUN...", function)
    folders: list[str] = []
    given = parse(words, options_of(function), name, folders)
    if not folders:
        raise ValueError(f"coterie {name} needs at least one run folder, found none. Give the --out of a run.")
    return function([Path(folder) for folder in folders], **given)
