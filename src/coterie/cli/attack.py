"""`coterie attack`: what somebody could learn from what a run let out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from coterie.attacks.transcript import Transcript
from coterie.cli.show import console, first_line, function_help, print_rows, wants_help
from coterie.engine.folder import write_json
from coterie.options import nearest, options_of, parse
from coterie.recipes.fable_inversion import picture
from coterie.recipes.inversion import Budget, Inversion, Level, Target, invert
from coterie.recipes.scene import scene_of


def attack_inversion(
    run: Path, *, method: Level | None = None, images: int | None = None, restarts: int = 1, iterations: int | None = None,
    anchors: int = 16, round: int | None = None, seed: int = 0, out: Path | None = None,
) -> int:  # fmt: skip
    """Rebuild training pictures from the Messages that a run recorded with --record-messages.

    The attacker is the server of the run: it knows net, weights and knobs, and sees every Message, and nothing else. It reads
    the gradient of one local step, so clients must take one step in the attacked round; one picture per step is its easiest case.
    What it finds is then scored against the pictures that the recipe's data hold (PSNR, SSIM), beside the mean picture, which
    needs no Message.

    dlg moves picture and label until their gradient fits, idlg reads the label first, inverting fits the gradient's direction (for ReLU
    nets). Where only an encoder is sent: dummy-decoder makes a head up, dummy-anchors makes FABLE's anchors up too,
    free-cotangent varies what reaches the encoder instead, and is the strongest.

    --method       default: dlg where the whole net is sent, otherwise free-cotangent
    --images       clients that are attacked (default: all that sent something)
    --restarts     of each picture; the smallest distance counts
    --iterations   default: 300, inverting 4800
    --anchors      of dummy-anchors
    --round        which recorded one (default: the first)
    --seed         where the attacker's starts come from
    --out DIR      for inversion.json and reconstructions.svg (default: the run folder's attack/)
    """
    if images is not None and images < 1:
        raise ValueError(f"images must be at least 1, found {images}. Use for example 5.")
    transcript = Transcript.load(run)
    target = Target.of(scene_of(run), transcript, round)
    level: Level = method or ("dlg" if target.sends_all else "free-cotangent")
    budget = Budget(restarts=restarts, iterations=iterations, anchors=anchors, seed=seed)
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[words]}"), console=console) as bars:
        task = bars.add_task(f"{level}", total=None, words="")

        def told(client: int, iteration: int, distance: float) -> None:
            bars.update(task, words=f"client {client}, iteration {iteration}, distance {distance:.3g}")

        found = invert(target, level, budget, images=images, told=told)
        bars.update(task, total=1, completed=1, words="done")
    folder = out or run / "attack"
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"inversion-{level}.json", {"run": run.name, **found.to_json()})
    (folder / f"reconstructions-{level}.svg").write_text(picture([(level, found)], found.setting), encoding="utf-8")
    show(found)
    console.print(f"Pictures: {folder / f'reconstructions-{level}.svg'}", soft_wrap=True, markup=False)
    return 0


def show(found: Inversion) -> None:
    told = found.to_json()
    table = Table.grid(padding=(0, 3, 0, 0))
    for heading in ("client", "PSNR", "SSIM", "distance", "iterations"):
        table.add_column(heading, justify="right")
    table.add_row("client", "PSNR", "SSIM", "distance", "iterations", style="dim")
    for one in found.rebuilt:
        for place, value in enumerate(one.psnr):
            similar = f"{one.ssim[place]:.2f}" if one.ssim else "–"
            table.add_row(str(one.client), f"{value:.2f}", similar, f"{one.attempt.loss:.3g}", str(one.attempt.iterations))
    console.print(table)
    mean, base = told["psnr"], told["mean_picture_psnr"]
    console.print(f"\nPSNR {mean['mean']:.2f} ± {mean['std']:.2f} dB; the mean picture has {base['mean']:.2f} ± {base['std']:.2f}, without any Message.")
    console.print(f"Setting: {found.setting}.")


def attack_command(words: list[str]) -> int:
    commands: dict[str, Callable[..., int]] = {"inversion": attack_inversion}
    if not words or words[0] in ("-h", "--help"):
        print_rows({f"coterie attack {name}": first_line(function) for name, function in commands.items()})
        return 0
    name, *rest = words
    if name not in commands:
        raise ValueError(f"Unknown command 'attack {name}'. {nearest(name, list(commands))}")
    if wants_help(rest):
        return function_help(f"attack {name} RUN", commands[name])
    places: list[str] = []
    given = parse(rest, options_of(commands[name]), f"attack {name}", places)
    if len(places) != 1:
        raise ValueError(f"coterie attack {name} takes one run folder, found {len(places)}. Give the --out of a run.")
    if not Path(places[0]).is_dir():
        raise ValueError(f"There is no folder '{places[0]}' to attack. Give the --out of a run.")
    return commands[name](Path(places[0]), **given)
