"""Reading JSON whose shape we expect but do not trust: a run folder may be old, cut short or edited by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Record: TypeAlias = Mapping[str, Json]


def read_record(path: Path) -> Record:
    """One JSON object; a sentence if it is anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"'{path}' is not JSON ({error}). Restore the file, or run the recipe again.") from error
    if not isinstance(value, dict):
        raise ValueError(f"'{path}' should hold a JSON object, but holds a {type(value).__name__}. Restore the file.")
    return value


def read_lines(path: Path) -> tuple[list[Record], int]:
    """The objects of a .jsonl file and how many lines could not be read.

    A run that is going on, or was killed, may leave half a last line; the rest is still worth reading.
    """
    records: list[Record] = []
    broken = 0
    if not path.exists():
        return records, broken
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            broken += 1
            continue
        if isinstance(value, dict):
            records.append(value)
        else:
            broken += 1
    return records, broken


def number(record: Record, key: str, default: float = math.nan) -> float:
    found = as_number(record.get(key))
    return default if found is None else found


def as_number(value: Json) -> float | None:
    """A number of any size; None for everything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # JSON knows whole numbers of any length
        return math.inf if value > 0 else -math.inf


def whole(record: Record, key: str, default: int = 0) -> int:
    value = number(record, key)
    return int(value) if math.isfinite(value) else default


def text(record: Record, key: str, default: str = "") -> str:
    value = record.get(key)
    if value is None:
        return default
    return value if isinstance(value, str) else json.dumps(value)


def record(parent: Record, key: str) -> Record:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def records(parent: Record, key: str) -> list[Record]:
    value = parent.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def strings(parent: Record, key: str) -> list[str]:
    value = parent.get(key)
    return [str(item) for item in value] if isinstance(value, list) else []


def numbers(parent: Record, key: str) -> dict[str, float]:
    """The numeric entries of a nested object, in their order."""
    found = {name: as_number(value) for name, value in record(parent, key).items()}
    return {name: value for name, value in found.items() if value is not None}


def knob_words(value: Json) -> str:
    """A knob as one would write it: SGD(lr=0.1, momentum=0.9)."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, dict):
        inside = ", ".join(f"{name}={knob_words(item)}" for name, item in value.items() if name != "is")
        return f"{value.get('is', '')}({inside})"
    if isinstance(value, list):
        return f"[{', '.join(knob_words(item) for item in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def leaves(knobs: Json, name: str) -> dict[str, str]:
    """Every single setting inside a knob by its own name: lr and momentum, not training."""
    if isinstance(knobs, dict):
        return {leaf: words for inner, value in knobs.items() for leaf, words in leaves(value, inner).items()}
    return {name: knob_words(knobs)}
