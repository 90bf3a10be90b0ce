"""Folders that runs and sweeps write to: claimed before anything runs, given back when nothing did, read to go on."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

from coterie.engine.settings import Settings
from coterie.options import show_value
from coterie.report.records import read_record

RECIPE_FILE = "recipe.json"
SWEEP_FILE = "sweep.json"
_KEYS = {"run": {"recipe": str, "values": dict, "settings": dict},
         "sweep": {"recipe": str, "values": dict, "settings": dict, "grid": dict, "seeds": list, "done": list}}  # fmt: skip
MAY_CHANGE = ("rounds", "backend", "workers", "devices", "threads", "quiet")


def default_folder(what: str) -> Path:
    """runs/<what>-<time>, with a number where two start in one second."""
    first = Path("runs") / f"{what}-{datetime.now():%Y%m%d-%H%M%S}"
    number, folder = 1, first
    while folder.exists():
        number += 1
        folder = first.with_name(f"{first.name}-{number}")
    return folder


def claim(out: Path, command: str) -> tuple[Path, ...]:
    """Make a folder that must be new or empty; what was made, the deepest first."""
    missing: tuple[Path, ...] = ()
    try:
        if out.exists() and not out.is_dir():
            raise ValueError(f"--out must be a folder, but '{out}' is a file. Choose another --out.")
        if out.is_dir() and any(out.iterdir()):
            raise ValueError(f"The folder '{out}' is not empty. Choose another --out, or go on with: {go_on(command, out)}")
        missing = tuple(path for path in (out, *out.parents) if not path.exists())
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "Permission denied")
    except OSError as error:
        give_back(missing)
        raise ValueError(f"Can't write to '{out}' ({error.strerror}). Choose another --out.") from None
    return missing


def go_on(command: str, folder: Path) -> str:
    """What a person types to resume."""
    return f"coterie {command} --resume {shlex.quote(str(folder))}"


def give_back(made: tuple[Path, ...]) -> None:
    """Remove folders again, if nobody has put anything into them."""
    for path in made:
        with contextlib.suppress(OSError):
            path.rmdir()


def rounds_finished(path: Path) -> int | None:
    """The rounds of a run that ended; None of one that did not."""
    if not (path / "summary.json").exists():
        return None
    rounds = read_record(path / "summary.json").get("rounds")
    return rounds if isinstance(rounds, int) else None


def read_request(folder: Path, command: str) -> dict[str, Any]:
    """What was asked for in this folder, for `coterie <command> --resume`."""
    file = {"run": RECIPE_FILE, "sweep": SWEEP_FILE}[command]
    if not folder.is_dir():
        raise ValueError(f"There is no folder '{folder}' to resume. Give the --out of a {command} that was stopped.")
    owner = _owner(folder)
    if not (folder / file).exists():
        hint = f"It belongs to a {owner[0]}; go on with: {go_on(*owner)}" if owner else "Give the --out of a call that was stopped."
        raise ValueError(f"'{folder}' is no {command} folder: it has no {file}. {hint}")
    if owner and owner[0] != command:
        raise ValueError(f"'{folder}' is a part of a sweep, whose parts must stay alike. Go on with: {go_on(*owner)}")
    try:
        content: dict[str, Any] = json.loads((folder / file).read_text(encoding="utf-8"))
        whole = all(isinstance(content[key], kind) for key, kind in _KEYS[command].items())
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        whole = False
    if not whole:
        raise ValueError(f"'{folder / file}' is damaged: it does not say what began. Restore it, or start a new {command}.")
    refuse_unknown(folder, content["settings"], [f.name for f in fields(Settings)])
    return content


def _owner(folder: Path) -> tuple[str, Path] | None:
    """The command and the folder that this folder is, or is a part of; a sweep before its runs."""
    own = folder.resolve()
    above = (own, *own.parents[:3])
    found = [(command, path) for command, file in (("sweep", SWEEP_FILE), ("run", RECIPE_FILE)) for path in above if (path / file).exists()]
    return found[0] if found else None


def refuse_unknown(folder: Path, stored: Collection[str], known: Collection[str]) -> None:
    """A folder of another version may name keys that do not exist (any more)."""
    unknown = sorted(set(stored) - set(known))
    if unknown:
        raise ValueError(f"'{folder}' was begun with the key '{unknown[0]}', which does not exist here. Use the version that began it.")


def resumed_values(
    stored: Mapping[str, Any], values: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The stored values and settings; a different one is refused, except where it can't change a number that is there."""
    for new, old in ((values, stored["values"]), (given, stored["settings"])):
        for key, value in new.items():
            before = from_json(old.get(key))
            if key == "rounds" and isinstance(before, int) and value < before:
                raise ValueError(f"--rounds can only grow when a run is resumed: it was {before}, found {value}. Use {before} or more.")
            if key not in MAY_CHANGE and value != before:
                raise ValueError(
                    f"--{key.replace('_', '-')} was {show_value(before)} when this run began, found {show_value(value)}. "
                    "Leave it out to resume, or start a new run."
                )
    restored = {key: from_json(value) for key, value in stored["values"].items()}
    return {**restored, **values}, {**stored["settings"], **given}


def from_json(value: Any) -> Any:
    """JSON has no tuples."""
    return tuple(map(from_json, value)) if isinstance(value, list) else value
