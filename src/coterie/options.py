"""Command-line options from typed signatures: every key is known, typed and explained by its function."""

from __future__ import annotations

import difflib
import inspect
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rich.table import Table
from rich.text import Text

_KEY_LINE = re.compile(r"^--([a-z][a-z0-9-]*) ?(\S.*?)?\s{2,}(\S.*)$")
_WITHOUT = re.compile(r"\s*\(default:? ([^)]+)\)")

_YES, _NO = ("true", "yes", "1", "on"), ("false", "no", "0", "off")
_DEFAULT_WIDTH = 20


class OptionGroup:
    """Base of a frozen dataclass whose fields are keys that several functions share: `privacy: Privacy = Privacy()`."""


@dataclass(frozen=True)
class Option:
    """One `--key`: its type and default, as the signature says, and its line of help."""

    name: str
    type: Any
    default: Any
    help: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def describe(self) -> str:
        return type_name(self.type)

    def explained(self) -> tuple[str, str, str]:
        """Flag, default, and what it means, for help; where no value is the default, the help may say what that means.

        The type is left out where the default shows it.
        """
        without = _WITHOUT.search(self.help)
        default = without[1] if without and self.default is None else show_value(self.default)
        kind = self.describe().removesuffix(" or none") if self.default is None else self.describe()
        kind += f" ({self.flag.replace('--', '--no-', 1)})" if self.default is True else ""
        shown = self.type in (int, float, str) and self.help
        return self.flag, default, "; ".join(filter(None, [_WITHOUT.sub("", self.help), "" if shown else kind]))


def options_of(function: Callable[..., Any], help: Mapping[str, str] = types.MappingProxyType({})) -> dict[str, Option]:
    """The keyword-only parameters of a function; lines `--key example   text` of its docstring are their help.

    An `OptionGroup` among them stands for its fields, with the help of its own docstring, after the function's own keys.
    """
    hints = get_type_hints(function)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    own = {**help, **_split_doc(function)[1]}
    groups = [p for p in parameters if _is_group(hints[p.name])]
    found = {p.name: Option(p.name, hints[p.name], p.default, own.get(p.name, "")) for p in parameters if not _is_group(hints[p.name])}
    for group in groups:
        shared = options_of_fields(hints[group.name], {**help, **_split_doc(hints[group.name])[1]})
        found |= {name: replace(option, default=getattr(group.default, name)) for name, option in shared.items() if name not in found}
    return found


def arguments_of(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """What to call a function with, from the values of its options: those of a group are put together again.

    A value that is missing takes the default that this function gives the group.
    """
    hints, left, found = get_type_hints(function), dict(values), {}
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for parameter in parameters:
        if _is_group(hints[parameter.name]):
            names = [f.name for f in fields(hints[parameter.name])]
            found[parameter.name] = replace(parameter.default, **{name: left.pop(name) for name in names if name in left})
    return {**left, **found}


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, OptionGroup)


def options_of_fields(cls: type, help: Mapping[str, str] = types.MappingProxyType({})) -> dict[str, Option]:
    """The fields of a frozen settings class."""
    hints = get_type_hints(cls)
    return {f.name: Option(f.name, hints[f.name], None if f.default is MISSING else f.default, help.get(f.name, "")) for f in fields(cls)}


def parse(
    arguments: Sequence[str], options: Mapping[str, Option], what: str, places: list[str] | None = None
) -> dict[str, Any]:
    """`--key value` and `--key=value` pairs; a yes/no key needs no value, and `--no-key` turns it off.

    Words that belong to no key are added to `places` (folders, before or after the keys); without it they are refused.
    """
    found: dict[str, Any] = {}
    for name, text in read_words(arguments, options, what, places):
        if name in found:
            raise ValueError(f"Option '{options[name].flag}' is given twice. Give it once.")
        found[name] = convert(text, options[name].type, options[name].flag)
    return found


def parse_grid(arguments: Sequence[str], options: Mapping[str, Option], what: str) -> dict[str, tuple[Any, ...]]:
    """Like `parse`, with several values for a key: between commas, or (for keys that are lists themselves) by repeating it."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, text in read_words(arguments, options, what):
        option = options[name]
        texts = [text] if is_list(option.type) else [part.strip() for part in text.split(",")]
        for value in (convert(part, option.type, option.flag) for part in texts):
            if value in found.get(name, ()):
                raise ValueError(f"Option '{option.flag}' has the value {show_value(value)} twice. Give every value once.")
            found[name] = (*found.get(name, ()), value)
    return found


def read_words(
    arguments: Sequence[str], options: Mapping[str, Option], what: str, places: list[str] | None = None
) -> Iterable[tuple[str, str]]:
    """Names and texts of the options in these words, in their order."""
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            if places is not None:
                places.append(word)
                continue
            raise ValueError(f"Expected an option like --key value, found '{word}'. See coterie {what} --help.")
        key, equals, value = word[2:].partition("=")
        name = key.replace("-", "_")
        negated = name.startswith("no_") and name not in options and name[3:] in options and options[name[3:]].type is bool
        name = name[3:] if negated else name
        if name not in options:
            hint = nearest(key.replace("_", "-"), [o.flag[2:] for o in options.values()], "--")
            raise ValueError(f"Unknown option '--{key}' for coterie {what}. {hint}")
        option = options[name]
        if negated:
            if equals:
                raise ValueError(f"Option '--{key}' takes no value, found '{value}'. Use {option.flag} {value}.")
            value = "no"
        elif not equals:
            next_is_place = places is not None and option.type is bool and rest and rest[0].lower() not in (*_YES, *_NO)
            if rest and not rest[0].startswith("--") and not next_is_place:
                value = rest.pop(0)
            elif option.type is bool:
                value = "yes"
            else:
                raise ValueError(
                    f"Option '--{key}' has no value. Give {option.describe().removesuffix(' or none')}, for example {option.flag} {example(option.type)}."
                )
        yield name, value


def nearest(word: str, known: Sequence[str], prefix: str = "") -> str:
    """A sentence that helps on: the known word that is most like this one, or all of them."""
    if not known:
        return "There are none."
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
        choices = [str(choice) for choice in inner]
        if text not in choices:
            close = difflib.get_close_matches(text, choices, n=1, cutoff=0.5)
            hint = f"Did you mean '{close[0]}'?" if close else "Use one of these."
            raise ValueError(f"{where} must be one of {', '.join(choices)}, found '{text}'. {hint}")
        return inner[choices.index(text)]
    if origin is tuple:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts:
            raise ValueError(f"{where} needs at least one value, found '{text}'. Use for example {where} a,b.")
        return tuple(convert(part, inner[0], where) for part in parts)
    if kind is bool:
        if text.lower() in _YES:
            return True
        if text.lower() in _NO:
            return False
        raise ValueError(f"{where} must be yes or no, found '{text}'. Use {where} alone for yes.")
    if kind in (int, float):
        return _number(text, kind, where)
    if kind is Path:
        return Path(text)
    if kind is str:
        return text
    raise ValueError(f"{where} can't be written on the command line, found '{text}'. Set it from Python.")


def _number(text: str, kind: Any, where: str) -> Any:
    wanted = "a whole number" if kind is int else "a number"
    try:
        value = kind(text)
    except ValueError:
        raise ValueError(f"{where} must be {wanted}, found '{text}'. Use for example {example(kind)}.") from None
    if not math.isfinite(value):
        raise ValueError(f"{where} must be a finite number, found '{text}'. Use for example {example(kind)}.")
    return value


def is_list(kind: Any) -> bool:
    """Whether a value of this type is written with commas itself."""
    return get_origin(kind) is tuple or any(is_list(inner) for inner in get_args(kind) if get_origin(kind) is not Literal)


def type_name(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join("none" if k is type(None) else type_name(k) for k in inner)
    if origin is Literal:
        return "|".join(map(str, inner))
    if origin is tuple:
        return f"{type_name(inner[0])},..."
    names: dict[Any, str] = {int: "whole number", float: "number", str: "text", bool: "yes|no", Path: "path"}
    return names.get(kind, str(kind))


def example(kind: Any) -> str:
    """A value that one could give."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType, tuple, Literal):
        return example(inner[0]) if origin is not Literal else str(inner[0])
    examples: dict[Any, str] = {int: "10", float: "0.1", bool: "yes", Path: "runs/mine"}
    return examples.get(kind, "name")


def show_value(value: Any) -> str:
    """A value as one writes it on the command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return ",".join(show_value(item) for item in value) or "none"
    return "none" if value is None else str(value)


def _split_doc(function: Callable[..., Any]) -> tuple[list[str], dict[str, str]]:
    """A docstring as paragraphs for a terminal of any width, and the help of the keys that it explains."""
    known = {name.replace("_", "-"): name for name in inspect.signature(function).parameters}
    paragraphs: list[list[str]] = [[]]
    help: dict[str, str] = {}
    for line in (inspect.getdoc(function) or "").splitlines():
        key = _KEY_LINE.match(line)
        if key and key[1] in known:
            shown = f", as in --{key[1]} {key[2]}" if key[2] else ""
            help[known[key[1]]] = key[3] + shown
        elif line.strip():
            paragraphs[-1].append(line.strip())
        else:
            paragraphs.append([])
    return [" ".join(lines) for lines in paragraphs if lines], help


def paragraphs_of(function: Callable[..., Any]) -> list[str]:
    """What a function's docstring says, without the lines that explain its keys."""
    return _split_doc(function)[0]


def table_of(options: Iterable[Option], more: Iterable[tuple[str, str, str]] = ()) -> Table:
    """Keys, defaults and meanings, for a terminal of 80 columns."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for flag, default, meaning in [("key", "default", ""), *(option.explained() for option in options), *more]:
        table.add_row(Text(f"  {flag}"), Text(_wrapped(default)), Text(meaning), style="dim" if flag == "key" else "")
    return table


def _wrapped(text: str) -> str:
    """A long list in several lines, cut after commas only."""
    lines = [""]
    for part in text.split(","):
        if lines[-1] and len(lines[-1]) + len(part) > _DEFAULT_WIDTH:
            lines.append("")
        lines[-1] += f"{part},"
    return "\n".join(lines)[:-1]
