"""What gradients give away: FedAvg, FedPer and FABLE under every gradient inversion, from the Messages that each run records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from torch import Tensor

from coterie import methods as known_methods
from coterie.attacks.transcript import Transcript
from coterie.data.examples import Population
from coterie.engine.folder import write_json
from coterie.engine.run import Finish
from coterie.method import SGD, Plan
from coterie.methods.fedavg import Training
from coterie.metrics.classification import Classification
from coterie.models.net import Net
from coterie.models.nets import resnet8
from coterie.models.smooth import lenet_dlg
from coterie.options import nearest
from coterie.privacy.guards import Guards
from coterie.recipes.inversion import LEVELS, OF_THE_WHOLE_NET, Budget, Inversion, Level, Target, invert
from coterie.recipes.population import build_population
from coterie.recipes.scene import Scene
from coterie.recipes.session import Session, seeded
from coterie.report.reconstructions import Strip, reconstructions_svg
from coterie.report.wording import duration

METHODS = ("fedavg", "fedper", "fable")
ATTACKS = ("dlg", "dummy-decoder", "dummy-anchors", "free-cotangent", "known-anchors")
PAPER = {"fedavg": "21.04 ± 2.10", "fedper": "16.37 ± 0.90", "fable": "14.81 ± 0.90"}  # Table 3: another net, 300 iterations
_SHOWN = 8  # pictures in the drawing


@dataclass(frozen=True)
class Scale:
    """What is attacked, and how hard."""

    data: str
    shape: tuple[int, int]  # channels, side
    images: int
    iterations: int


SCALES = {"smoke": Scale("digits", (1, 8), 2, 12), "small": Scale("cifar10", (3, 32), 20, 150)}


def fable_inversion(
    session: Session, *, scale: Literal["smoke", "small"] = "small", methods: tuple[str, ...] = METHODS,
    attacks: tuple[str, ...] = ATTACKS, images: int | None = None, iterations: int | None = None, restarts: int = 1,
    anchors: int = 16, examples: int = 40, trained: int = 0, net: Literal["lenet_dlg", "resnet8"] = "lenet_dlg",
    data_dir: str | None = None,
) -> None:  # fmt: skip
    """Gradient inversion of FedAvg, FedPer and FABLE: pictures, PSNR and SSIM of every attack, the strongest one per method.

    The worst case for a client: one picture, one step, its exact gradient (float64). Every client is one attacked picture. The net is
    DLG's LeNet (3 convolutions, sigmoids, weights U(-0.5, 0.5)), on which undefended FedAvg is broken, so that a picture that stays
    hidden is hidden by the method. Attackers work from the recorded Messages alone; known-anchors is an oracle that also has
    the true anchors. Scale smoke is 8x8 digits in seconds, small is pictures of CIFAR-10: minutes for dlg, hours of one core for all.

    --attacks dlg,free-cotangent    dlg, idlg, inverting need the whole net, the others an encoder; each runs where it can
    --images                        how many are attacked (default: of the scale)
    --iterations                    of L-BFGS, 20 inner steps each (default: of the scale)
    --restarts                      the smallest distance counts, not the best picture
    --anchors                       of FABLE, and dummy ones of its attacker
    --examples                      pictures of each client, of which anchors and the attacked one are drawn
    --trained                       rounds of usual training before the attacked one
    --net                           resnet8 has ReLUs, and its batch norms use running statistics; for the attack inverting
    """
    chosen = SCALES[scale]
    for name in methods:
        if name not in METHODS:
            raise ValueError(f"The method '{name}' is not among those that this recipe attacks. {nearest(name, METHODS)}")
    for name in attacks:
        if name not in LEVELS:
            raise ValueError(f"Unknown attack '{name}'. {nearest(name, LEVELS)}")
    if trained < 0:
        raise ValueError(f"trained must be at least 0, found {trained}. Use the number of rounds before the attacked one.")
    for name in methods:
        if not levels_for(name, attacks):
            raise ValueError(f"None of the attacks {', '.join(attacks)} fits the Messages of {name}. Add free-cotangent, which fits all.")
    budget = Budget(restarts=restarts, iterations=iterations or chosen.iterations, anchors=anchors, seed=session.settings.seed)
    count = images or chosen.images
    population, model = world(chosen, net, count, examples, data_dir, session.settings.seed)
    settings = replace(session.settings, precision="fp64", record_messages=f"{trained + 1},")
    session.settings = settings
    plans = {name: plan_of(name, trained, anchors, "server" if model.buffers else "average") for name in methods}
    finished = session.run_all(plans, population, net=model, metric=Classification(10))
    console = Console(highlight=False, quiet=settings.quiet)
    found: dict[str, dict[str, Inversion]] = {}
    for name, finish in finished.items():
        target = Target.of(Scene(plans[name], population, model, settings, Guards()), Transcript.load(finish.path))
        for level in levels_for(name, attacks):
            found.setdefault(name, {})[level] = one = invert(target, level, budget, anchors=true_anchors(finish))
            console.print(f"{name} {level}: {words(one)} dB in {duration(sum(r.attempt.seconds for r in one.rebuilt))}", soft_wrap=True)
    tell(session.out, found, console)


def world(scale: Scale, net: str, images: int, examples: int, data_dir: str | None, seed: int) -> tuple[Population, Net]:
    """As many clients as attacked pictures, each with a few examples."""
    channels, side = scale.shape
    population = build_population(
        scale.data, clients=images, partition="iid", limit=images * examples, data_dir=data_dir, seed=seed, check=False
    )
    return population, seeded(seed, resnet8, channels, 10) if net == "resnet8" else seeded(seed, lenet_dlg, channels, side, 10)


def plan_of(name: str, trained: int, anchors: int, buffers: str) -> Plan:
    """Rounds of usual training, if any, and one round of one step on one picture."""
    function = getattr(known_methods, name)
    own: dict[str, Any] = {"buffers": buffers, **({"anchors": anchors} if name == "fable" else {})}
    (attacked,) = function(rounds=1, training=Training(optim=SGD(lr=0.1), epochs=None, steps=1, batch_size=1), **own)
    if not trained:
        return (attacked,)
    (usual,) = function(rounds=trained, training=Training(optim=SGD(lr=0.1), batch_size=16), **own)
    return (usual, replace(attacked, name="attacked"))


def levels_for(method: str, attacks: Sequence[str]) -> list[Level]:
    """Attacks that make sense of this method's Messages."""
    useless = {
        "fedavg": ("dummy-decoder", "dummy-anchors", "known-anchors"),  # its head is there to be read
        "fedper": (*OF_THE_WHOLE_NET, "dummy-anchors", "known-anchors"),
        "fable": OF_THE_WHOLE_NET,
    }
    return [level for level in LEVELS if level in attacks and level not in useless[method]]


def true_anchors(finish: Finish) -> Callable[[int], Tensor] | None:
    """For the oracle: what a client keeps to itself."""
    if not finish.clients or "anchors" not in finish.clients[0]:
        return None
    return lambda client: finish.clients[client]["anchors"]["x"]


def headline(found: Mapping[str, Inversion]) -> str:
    """The strongest attack that needs nothing but Messages (AT-D1)."""
    fair = {level: one for level, one in found.items() if level != "known-anchors"}
    return max(fair, key=lambda level: fair[level].to_json()["psnr"]["mean"])


def words(one: Inversion) -> str:
    told = one.to_json()["psnr"]
    return f"{told['mean']:.2f} ± {told['std']:.2f}"


def tell(out: Path, found: Mapping[str, Mapping[str, Inversion]], console: Console) -> None:
    """The table, all numbers as JSON, and the pictures."""
    first = next(iter(next(iter(found.values())).values()))
    baseline = first.to_json()["mean_picture_psnr"]
    table = Table(title="What gradients give away: PSNR in dB (higher: more is given away)", title_justify="left")
    for column in ("method", "attack", "PSNR", "SSIM", "SSIM > 0.5", ""):
        table.add_column(column)
    for method, levels in found.items():
        for level, one in levels.items():
            told = one.to_json()
            similar = "–" if told["ssim"] is None else f"{told['ssim']['mean']:.2f} ± {told['ssim']['std']:.2f}"
            success = "–" if told["success"] is None else f"{told['success']:.0%}"
            mark = "strongest" if level == headline(levels) else "oracle" if level == "known-anchors" else ""
            table.add_row(method, level, words(one), similar, success, mark)
    table.add_row("(any)", "mean picture", f"{baseline['mean']:.2f} ± {baseline['std']:.2f}", "", "", "needs no Message")
    console.print(table)
    console.print(f"Setting: {first.setting}; {len(first.decibels)} pictures. FABLE's Table 3 has, on another net: "
                  + ", ".join(f"{name} {PAPER[name]}" for name in found) + ".", soft_wrap=True)  # fmt: skip
    strongest = {method: headline(levels) for method, levels in found.items()}
    facts = {method: {level: one.to_json() for level, one in levels.items()} for method, levels in found.items()}
    write_json(out / "inversion.json", {"strongest": strongest, "mean_picture_psnr": baseline, "attacks": facts, "paper_table_3": PAPER})
    strips = [(f"{method}, {level}", one) for method, levels in found.items() for level, one in levels.items()]
    (out / "reconstructions.svg").write_text(picture(strips, first.setting), encoding="utf-8")
    console.print(f"Pictures: {out / 'reconstructions.svg'}", soft_wrap=True)


def picture(attacks: Sequence[tuple[str, Inversion]], setting: str) -> str:
    """Originals on top, one row of reconstructions per attack."""

    def captions(one: Inversion) -> list[str]:
        told = [(r.psnr[i], r.ssim[i] if r.ssim else None) for r in one.rebuilt for i in range(len(r.psnr))]
        return [f"{p:.1f} dB" + (f"\nSSIM {s:.2f}" if s is not None else "") for p, s in told[:_SHOWN]]

    first = attacks[0][1]
    originals = [image.numpy() for r in first.rebuilt for image in r.original][:_SHOWN]
    strips = [Strip("original", originals, [f"client {r.client}" for r in first.rebuilt for _ in r.original][:_SHOWN])]
    for name, one in attacks:
        strips.append(Strip(name, [image.numpy() for r in one.rebuilt for image in r.found][:_SHOWN], captions(one)))
    return reconstructions_svg(strips, "Pictures rebuilt from recorded Messages", setting)
