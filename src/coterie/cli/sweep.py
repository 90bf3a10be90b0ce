"""`coterie sweep`: from words to a grid, and from a stopped sweep to the rest of it."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from coterie import recipes
from coterie.cli.run import known_recipe, read_start, telling_how_to_go_on
from coterie.cli.show import KEY_HELP, console, finish, print_paragraphs, setting_options
from coterie.engine.settings import Settings
from coterie.options import Option, options_of, parse, parse_grid, table_of
from coterie.recipes.folders import MAY_CHANGE, go_on, read_request
from coterie.recipes.sweep import Sweep, open_sweep, read_seeds, reopen_sweep

SWEEP_KEYS = {
    "seeds": Option("seeds", str, "0", "each combination runs with all of them, as in --seeds 0-2,7"),
    "select": Option("select", str, "val", "the best is chosen on validation parts, nothing else"),
    "out": Option("out", Path | None, None, "folder of the sweep, new or empty (default: runs/sweep-...)"),
}


def sweep_recipe(words: list[str]) -> int:
    name, folder, help = read_start(words, "sweep")
    if help:
        return sweep_help(name)
    sweep = new_sweep(str(name), words) if folder is None else resumed_sweep(folder, name, words)
    with telling_how_to_go_on(go_on("sweep", sweep.out), lambda: True):
        sweep.run(getattr(recipes, sweep.recipe), console)
    finish(sweep.out, sweep.rendered())
    return 0


def new_sweep(name: str, words: list[str]) -> Sweep:
    recipe = getattr(recipes, name)
    own = options_of(recipe, KEY_HELP)
    given = parse_grid(words, {**setting_options(), **own, **SWEEP_KEYS}, f"sweep {name}")
    if "seed" in given:
        raise ValueError("A sweep repeats over seeds, found --seed. Use for example --seeds 0-2.")
    seeds = read_seeds(",".join(given.pop("seeds", (SWEEP_KEYS["seeds"].default,))))
    select = given.pop("select", ("val",))
    if select != ("val",):
        raise ValueError(
            f"--select must be val, found '{','.join(select)}': numbers on test parts mean nothing once they were chosen by. "
            "Use --select val."
        )
    grid = {key: given.pop(key) for key in list(given) if key in own}
    several = [key for key, values in given.items() if len(values) > 1]
    if several:
        raise ValueError(f"Only keys of the recipe can be swept, found {len(given[several[0]])} values of --{several[0]}. Give one.")
    settings = {key: values[0] for key, values in given.items()}
    out = settings.pop("out", None)
    values = {key: grid[key][0] if key in grid else option.default for key, option in own.items()}
    grid = {key: several for key, several in grid.items() if len(several) > 1}
    return open_sweep(name, recipe, values, grid, seeds, Settings(**settings), out)


def resumed_sweep(folder: Path, name: str | None, words: list[str]) -> Sweep:
    stored = read_request(folder, "sweep")
    if name not in (None, stored["recipe"]):
        raise ValueError(f"'{folder}' holds a sweep of '{stored['recipe']}', not '{name}'. Leave the name out to resume it.")
    known_recipe(folder, stored["recipe"], recipes.__all__)
    options = {key: option for key, option in setting_options().items() if key in MAY_CHANGE}
    return reopen_sweep(folder, stored, parse(words, options, "sweep --resume"))


def sweep_help(name: str | None) -> int:
    """Run a recipe with every combination of some values, and choose the best on validation data.

    Give several values for any key of the recipe, with commas between them; a key that is a list itself is repeated
    (--methods fedavg --methods fedavg,ditto). A key with one value has it in every combination. Every method gets the
    same combinations and seeds. Each combination and seed is a full run folder, DIR/<key>-<value>/seed-<s>/; finished
    ones are skipped when a sweep is resumed.

    The best combination of each method has the best mean over seeds of the main metric on validation parts after the
    last round, of the personal model where there is one, else of the global one. Only its test value is shown. All
    numbers are in DIR/sweep.json, and coterie compare DIR compares all runs.
    """
    console.print(Text("coterie sweep RECIPE --KEY V1,V2,... [--seeds 0-2] [--out DIR]\ncoterie sweep --resume DIR\n", style="bold"))
    print_paragraphs(sweep_help)
    console.print(Text("Example\n  coterie sweep compare_digits --methods fedavg,fable --lr 0.1,0.3 --seeds 0-2\n"))
    console.print("[bold]Keys of a sweep[/]")
    console.print(table_of(SWEEP_KEYS.values(), [("--resume", "", "the folder of a stopped sweep: go on")]))
    if name is None:
        console.print("\nThe keys of a recipe: coterie sweep RECIPE --help. Keys of every run: coterie run RECIPE --help.")
        return 0
    console.print(f"\n[bold]Keys of {name}[/]")
    console.print(table_of(options_of(getattr(recipes, name), KEY_HELP).values()))
    return 0
