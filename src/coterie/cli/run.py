"""`coterie run`: a recipe in a new folder, or one that goes on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.text import Text

from coterie import recipes
from coterie.cli.show import KEY_HELP, console, finish, first_line, print_doc, print_rows, setting_options, wants_help
from coterie.engine.run import RunError
from coterie.engine.settings import Settings
from coterie.options import Option, nearest, options_of, parse, table_of
from coterie.recipes.folders import go_on, read_request, refuse_unknown, resumed_values
from coterie.recipes.session import Session


def run_recipe(words: list[str]) -> int:
    name, folder, help = read_start(words, "run")
    if help:
        return run_help(name)
    session = new_session(str(name), words) if folder is None else resumed_session(folder, name, words)
    with telling_how_to_go_on(go_on("run", session.out), lambda: session.begun):
        session.perform(getattr(recipes, session.recipe))
    finish(session.out)
    return 0


def read_start(words: list[str], command: str) -> tuple[str | None, Path | None, bool]:
    """The recipe's name, the folder to resume, and whether help is wanted; what was read is taken out of the words."""
    name = words.pop(0) if words and not words[0].startswith("-") else None
    if name is not None and name not in recipes.__all__:
        raise ValueError(f"Unknown recipe '{name}'. {nearest(name, recipes.__all__)}")
    if wants_help(words) or (name is None and not words):
        return name, None, True
    folder = take_resume(words)
    if folder is None and name is None:
        raise ValueError(f"The recipe is missing, found '{words[0]}'. Write coterie {command} RECIPE {words[0]} ...; coterie list names them.")
    return name, folder, False


@contextlib.contextmanager
def telling_how_to_go_on(command: str, begun: Callable[[], bool]) -> Iterator[None]:
    """Whatever stops a run that has begun, its person learns how to resume it."""
    try:
        yield
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        console.print(f"\nStopped. Nothing is lost; go on with: {command}", soft_wrap=True, markup=False)
        raise
    except (RunError, OSError) as error:
        hint = f" Mend the cause and go on with: {command}" if begun() else ""
        words = str(error).removesuffix("; mend the cause and resume the run.").rstrip(".")
        raise ValueError(f"{words}.{hint}") from error
    except ValueError:
        raise
    except Exception:  # our mistake, so with its traceback
        if begun():
            print(f"coterie: this is a bug. What ran is saved; when it is mended go on with: {command}", file=sys.stderr)
        raise


def new_session(name: str, words: list[str]) -> Session:
    own = options_of(getattr(recipes, name), KEY_HELP)
    out_option = {"out": Option("out", Path | None, None)}
    given = parse(words, {**setting_options(), **own, **out_option}, f"run {name}")
    out = given.pop("out", None)
    values = {key: given.pop(key, option.default) for key, option in own.items()}
    return Session.open(name, values, Settings(**given), out)


def resumed_session(folder: Path, name: str | None, words: list[str]) -> Session:
    stored = read_request(folder, "run")
    if name not in (None, stored["recipe"]):
        raise ValueError(f"'{folder}' holds the recipe '{stored['recipe']}', not '{name}'. Leave the name out to resume it.")
    own = options_of(known_recipe(folder, stored["recipe"], recipes.__all__), KEY_HELP)
    refuse_unknown(folder, stored["values"], own)
    given = parse(words, {**setting_options(), **own}, "run --resume")
    values = {key: given.pop(key) for key in list(given) if key in own}
    values, settings = resumed_values(stored, values, given)
    values = {key: values.get(key, option.default) for key, option in own.items()}
    return Session.open(stored["recipe"], values, Settings(**settings), folder, resume=True)


def known_recipe(folder: Path, name: str, known: Sequence[str]) -> Callable[..., None]:
    if name not in known:
        raise ValueError(f"'{folder}' holds the recipe '{name}', which does not exist here. {nearest(name, known)}")
    recipe: Callable[..., None] = getattr(recipes, name)
    return recipe


def take_resume(words: list[str]) -> Path | None:
    """The folder of `--resume`, taken out of the words."""
    places = [place for place, word in enumerate(words) if word == "--resume" or word.startswith("--resume=")]
    if not places:
        return None
    if len(places) > 1:
        raise ValueError("Option '--resume' is given twice. Give one folder.")
    word = words.pop(places[0])
    text = word.removeprefix("--resume=") if "=" in word else words.pop(places[0]) if places[0] < len(words) else ""
    if not text or text.startswith("--"):
        raise ValueError("Option '--resume' has no folder. Give the --out of what was stopped.")
    return Path(text)


def run_help(name: str | None) -> int:
    if name is None:
        console.print(Text("coterie run RECIPE [--KEY VALUE ...] [--out DIR]\ncoterie run --resume DIR\n\nRecipes:"))
        print_rows({recipe: first_line(getattr(recipes, recipe)) for recipe in recipes.__all__})
        console.print("\nThe keys of a recipe: coterie run RECIPE --help")
        return 0
    recipe = getattr(recipes, name)
    print_doc(f"coterie run {name}", recipe)
    console.print("[bold]Keys of this recipe[/]")
    console.print(table_of(options_of(recipe, KEY_HELP).values()))
    console.print("\n[bold]Keys of every run[/]")
    more = [("--out", "runs/<recipe>-<time>", "the run folder, new or empty")]
    more.append(("--resume", "", "the folder of a stopped run: go on with its values (--rounds may grow)"))
    console.print(table_of(setting_options().values(), more))
    return 0
