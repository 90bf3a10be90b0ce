"""Command-line options from typed signatures: every key is known, typed and explained by its function."""

from __future__ import annotations

import difflib
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Option:
    """One `--key`: its type and default, as the signature says."""

    name: str
    type: Any
    default: Any

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def describe(self) -> str:
        return type_name(self.type)


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """The keyword-only parameters of a recipe."""
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    return {p.name: Option(p.name, hints[p.name], p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}


def options_of_fields(cls: type) -> dict[str, Option]:
    """The fields of a frozen settings class."""
    hints = get_type_hints(cls)
    return {f.name: Option(f.name, hints[f.name], None if f.default is MISSING else f.default) for f in fields(cls)}


def parse(arguments: Sequence[str], options: Mapping[str, Option], what: str) -> dict[str, Any]:
    """`--key value` and `--key=value` pairs; a yes/no key needs no value, and `--no-key` turns it off."""
    found: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"Expected an option like --key value, found '{word}'. See coterie {what} --help.")
        key, equals, value = word[2:].partition("=")
        name = key.replace("-", "_")
        negated = name.startswith("no_") and name not in options and name[3:] in options
        name = name[3:] if negated else name
        if name not in options:
            raise ValueError(f"Unknown option '--{key}' for {what}. {nearest(key.replace('_', '-'), [o.flag[2:] for o in options.values()], '--')}")
        option = options[name]
        if is_flag(option.type) and not equals and (not rest or rest[0].startswith("--")):
            found[name] = not negated
            continue
        if not equals:
            if not rest:
                raise ValueError(f"Option '--{key}' has no value. Give {option.describe()}, for example --{key} {example(option)}.")
            value = rest.pop(0)
        found[name] = convert(value, option.type, f"--{key}")
    return found


def nearest(word: str, known: Sequence[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"Did you mean '{prefix}{close[0]}'?"
    return f"Use one of: {', '.join(prefix + k for k in sorted(known))}."


def convert(text: str, kind: Any, where: str) -> Any:
    """The value that `text` writes, or one sentence about what was expected."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if text.lower() == "none" and type(None) in inner:
            return None
        return convert(text, next(k for k in inner if k is not type(None)), where)
    if origin is Literal:
        if text not in [str(choice) for choice in inner]:
            raise ValueError(f"{where} must be one of {', '.join(map(str, inner))}, found '{text}'. {nearest(text, [str(c) for c in inner])}")
        return next(choice for choice in inner if str(choice) == text)
    if origin is tuple:
        return tuple(convert(part.strip(), inner[0], where) for part in text.split(",") if part.strip())
    if kind is bool:
        if text.lower() in ("true", "yes", "1", "on"):
            return True
        if text.lower() in ("false", "no", "0", "off"):
            return False
        raise ValueError(f"{where} must be true or false, found '{text}'. Use {where} true.")
    if kind is Path:
        return Path(text)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise ValueError(f"{where} must be {wanted}, found '{text}'. Use for example {where} {'10' if kind is int else '0.1'}.") from None
    return text


def is_flag(kind: Any) -> bool:
    return kind is bool


def type_name(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join("none" if k is type(None) else type_name(k) for k in inner)
    if origin is Literal:
        return "|".join(map(str, inner))
    if origin is tuple:
        return f"{type_name(inner[0])},..."
    names: dict[Any, str] = {int: "whole number", float: "number", str: "text", bool: "true|false", Path: "path"}
    return names.get(kind, str(kind))


def example(option: Option) -> str:
    return "10" if option.default is None else str(option.default)
