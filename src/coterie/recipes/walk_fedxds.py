"""FedXDS, walking: share what a network looked at, and say exactly what that guarantees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from coterie import methods
from coterie.attribution import MaskKind
from coterie.data.examples import ClientParts, Population, View
from coterie.engine.folder import write_json
from coterie.engine.run import Finish
from coterie.method import SGD, Hub, Plan, Round, Site
from coterie.methods.fedavg import Training
from coterie.methods.fedxds import POOL, Relevance, Share, Statistics, fedxds
from coterie.metrics.classification import Classification
from coterie.models.net import Net
from coterie.models.nets import resnet8
from coterie.privacy.metric_privacy import Sharing
from coterie.randomness import Key
from coterie.recipes.population import build_population
from coterie.recipes.session import Session, beside, seeded
from coterie.report.records import number, read_lines

_TILE = 96  # pixels of one image in the picture


def walk_fedxds(
    session: Session, *, rounds: int = 8, warmup_rounds: int = 6, data: str = "digits", data_dir: str | None = None,
    limit: int | None = None, clients: int = 10, beta: float = 0.1, relevance: Relevance = "lrp", s: float = 80.0,
    mask: MaskKind = "soft", clip: float = 10.0, sigma: float = 0.15, label_eps: float | None = None,
    fraction: float = 1.0, statistics: Statistics = "local", epochs: int = 2, lr: float = 0.02, batch_size: int = 32,
    control: bool = True, fresh_noise: bool = False,
) -> None:  # fmt: skip
    """FedXDS beside FedAvg and beside masks that look at no image, on label-skewed clients; with its exact guarantee.

    --relevance lrp|gradient     which pixels are shared (lrp needs the extra [xai])
    --data cifar10 --limit 4000  another data set, or a part of it
    --label-eps 4                labels by randomised response
    --statistics both            running batch-norm statistics of local and pooled batches, as the authors' code has it
    --fresh-noise                noise from the operating system; without it a seed makes the run repeatable and protects nobody
    """
    seed = session.settings.seed
    population = images(data, data_dir, limit, clients, beta, seed)
    channels, height, width = population.parts[0].train.rows(torch.tensor([0]))["x"].shape[1:]
    assert population.num_classes is not None
    net = seeded(seed, resnet8, channels, population.num_classes)
    training = Training(optim=SGD(lr=lr, momentum=0.9, weight_decay=1e-4), epochs=epochs, batch_size=batch_size)

    def sharing(by: Relevance) -> Plan:
        return fedxds(
            rounds=rounds, warmup_rounds=warmup_rounds, training=training, relevance=by, s=s, mask=mask, clip=clip, sigma=sigma,
            label_eps=label_eps, fraction=fraction, image=(channels, height, width), statistics=statistics,
            audit_seed=None if fresh_noise else seed,
        )  # fmt: skip

    plans = {"fedavg": methods.fedavg(rounds=warmup_rounds + rounds, training=training), f"fedxds_{relevance}": sharing(relevance)}
    if control and relevance != "random":
        plans["fedxds_random"] = sharing("random")
    runs = {
        name: session.run(plan, population, net=net, metric=Classification(population.num_classes), method=name, name=name)
        for name, plan in plans.items()
    }
    stated = statement(plans, runs, rounds)
    write_json(session.out / "fedxds.json", stated)
    main = f"fedxds_{relevance}"
    looked_at = beside(runs[main], population, net)
    drawn = draw_sharing(share_of(plans[main]), runs[main], *looked_at, runs[main].path / "media" / "shared.png")
    if not session.settings.quiet:
        tell(stated, main, drawn)


def images(data: str, data_dir: str | None, limit: int | None, clients: int, beta: float, seed: int) -> Population:
    """Label-skewed clients, and all their test images together as the central test set."""
    population = build_population(data, clients=clients, partition="dirichlet", beta=beta, data_dir=data_dir, limit=limit, seed=seed)
    first = population.parts[0]
    if population.num_classes is None or first.train.rows(torch.tensor([0]))["x"].dim() != 4:
        raise ValueError(f"walk_fedxds needs labelled images, and '{data}' has none. Use for example --data digits.")
    population = population.moved(enlarged) if data == "digits" else population
    index = torch.cat([parts.test.index for parts in population.parts])
    return replace(population, central_test=replace(population.parts[0].test, index=index))


def enlarged(column: Tensor) -> Tensor:
    """Digits of 16 x 16 pixels in [-1, 1], so that three stages of a residual net have something to look at."""
    if not column.is_floating_point():
        return column
    return F.interpolate(column, scale_factor=2, mode="bilinear") * 2.0 - 1.0


def share_of(plan: Plan) -> Share:
    return next(phase.method for phase in plan if isinstance(phase.method, Share))


def statement(plans: dict[str, Plan], runs: dict[str, Finish], rounds: int) -> dict[str, Any]:
    """What was shared, what that guarantees (three numbers, and no other words about privacy), and what came out."""
    told: dict[str, Any] = {}
    for name, run in runs.items():
        told[name] = {
            "central_accuracy": run.summary["results"]["global"]["accuracy"]["central"],
            "mean_central_accuracy": mean_accuracy(run, rounds),
            "bytes": run.summary["bytes"],
        }
        if POOL not in run.state.public:
            continue
        share, count = share_of(plans[name]), len(run.state.public[POOL].tensors["y"])
        guarantee = Sharing(
            clip=share.clip, sigma=share.sigma, dense_noise=share.noise_on == "all", fixed_mask=share.relevance == "random",
            label_eps=share.label_eps, delta=min(1e-5, 0.5 / count),
        ).guarantee()  # fmt: skip
        source = "the operating system" if share.audit_seed is None else f"audit seed {share.audit_seed}"
        told[name] |= {"shared_images": count, "noise_from": source, "guarantee": guarantee}
        told[name]["squared_length"] = squared_length(run.state.public[POOL].tensors["x"], share.sigma)
        if share.audit_seed is not None:
            told[name]["warning"] = "Noise from a seed can be computed again and subtracted: the numbers hold with --fresh-noise only."
    return told


def squared_length(shared: Tensor, sigma: float) -> float:
    """Mean ||v||^2 of what was shared, from what was sent: E ||x~||^2 = ||v||^2 + d sigma^2."""
    flat = shared.flatten(1).double()
    return float(flat.square().sum(1).mean()) - flat.shape[1] * sigma**2


def mean_accuracy(run: Finish, rounds: int) -> float:
    """Of the global model on all test images over the last so many rounds: one round is up or down by several points."""
    lines, _ = read_lines(run.path / "metrics.jsonl")
    central = [line for line in lines if (line.get("split"), line.get("model")) == ("central", "global")]
    first = run.summary["rounds"] - rounds
    return float(np.mean([number(line, "accuracy") for line in central if number(line, "round") > first]))


def tell(stated: dict[str, Any], main: str, picture: Path | None) -> None:
    console, own = Console(highlight=False), stated[main]
    accuracies = ", ".join(
        f"{name} {100 * run['central_accuracy']:.1f} ({100 * run['mean_central_accuracy']:.1f})" for name, run in stated.items()
    )
    console.print(
        f"\nGlobal model on all test images in %, last round (mean of the rounds after sharing): {accuracies}. One seed.",
        soft_wrap=True,
    )
    for other in [name for name in stated if name != main]:
        gain, mean_gain = (100 * (own[k] - stated[other][k]) for k in ("central_accuracy", "mean_central_accuracy"))
        told = f"{main} against {other}: {gain:+.1f} points in the last round, {mean_gain:+.1f} in the mean."
        console.print(told, soft_wrap=True)
    lengths = ", ".join(f"{name} {run['squared_length']:.1f}" for name, run in stated.items() if "squared_length" in run)
    console.print(f"Squared length of a shared image without its noise (a soft mask dims what it keeps): {lengths}", soft_wrap=True)
    guarantee = own["guarantee"]
    curve = ", ".join(f"{_number(eps)} at {d}" for d, eps in guarantee["a_metric_curve"].items())
    holds = "holds" if guarantee["a_holds_for_this_mask"] else "does not hold here: the mask looks at the image"
    console.print(
        f"{own['shared_images']:,} images shared. Unit: {guarantee['unit']}; delta {guarantee['delta']:g}.\n"
        f"(a) eps by L2 distance, for a fixed mask: {curve}; {holds}.\n"
        f"(b) eps for any two images: {_number(guarantee['b_image_eps'])}. "
        f"For 8 it would need sigma {guarantee['sigma_for_image_eps_8']:.1f}, not {guarantee['sigma']:g}.\n"
        f"(c) eps with the label: {_number(guarantee['c_image_and_label_eps'])}"
        f"{'' if guarantee['label_eps'] is not None else ' (labels are sent as they are)'}.\n"
        f"Covers {guarantee['covers']}. {own.get('warning', '')}",
        soft_wrap=True,
    )
    without = "No picture: that needs Pillow. Install it with: pip install 'coterie[vision]'"
    console.print(f"Picture: {picture}" if picture else without, markup=False, soft_wrap=True)  # [vision] is no markup


def _number(eps: float | None) -> str:
    return "no finite number" if eps is None else f"{eps:,.2f}" if eps < 100 else f"{eps:,.0f}"


def draw_sharing(share: Share, run: Finish, population: Population, net: Net, path: Path) -> Path | None:
    """One image of each class: as it is, what the final model looks at, masked and clipped, and as it would be sent."""
    pillow = _pillow()
    if pillow is None:
        return None
    view = one_per_class(population)
    total = run.summary["rounds"]
    round = Round(total - 1, total, "picture", 0, 1, (0,), len(population))
    key = Key(0, ("picture",))
    site = Site(0, round, ClientParts(view, view, view), net, key)
    columns = view.all_rows()
    x, y = columns["x"], columns["y"]
    model = share.inner.global_model(run.state, Hub(round, net, key))
    assert model is not None, "FedAvg without private parts has a global model"
    maps = share.maps(model, site, x, y)
    v = share.clipped(x, maps)
    low, high = x.min(), x.max()
    grey = [((images - low) / (high - low)).clamp(0, 1) for images in (x, v, share.noised(v, maps, site))]
    titles = ("original", "relevance", "masked, clipped", "sent")
    sheet = pillow.new("RGB", (_TILE * len(titles), _TILE * len(x) + 16), "white")
    pen = _drawing().Draw(sheet)
    for column, (title, tiles) in enumerate(zip(titles, (grey[0], heat(maps), grey[1], grey[2]), strict=True)):
        pen.text((_TILE * column + 4, 2), title, fill="black")
        for row, tile in enumerate(tiles):
            pixels = (tile.expand(3, -1, -1) * 255).round().byte().permute(1, 2, 0).contiguous().cpu().numpy()
            picture = pillow.fromarray(pixels).resize((_TILE - 4, _TILE - 4), pillow.Resampling.NEAREST)
            sheet.paste(picture, (_TILE * column + 2, _TILE * row + 18))
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
    return path


def one_per_class(population: Population) -> View:
    """The first training image of every class, whoever owns it (a picture that only a simulation can make)."""
    first: dict[int, Tensor] = {}
    for parts in population.parts:
        for label, row in zip(parts.train.column("y").tolist(), parts.train.index, strict=True):
            first.setdefault(label, row)
    return replace(population.parts[0].train, index=torch.stack([first[label] for label in sorted(first)]))


def heat(maps: Tensor) -> Tensor:
    """Relevance as colour: red for, blue against, white for nothing; each map by its own largest magnitude."""
    strength = maps / maps.abs().amax((1, 2), keepdim=True).clamp(min=1e-30)
    positive, negative = strength.clamp(min=0), (-strength).clamp(min=0)
    return torch.stack([1 - negative, 1 - positive - negative, 1 - positive], dim=1)


def _pillow() -> ModuleType | None:
    try:
        from PIL import Image
    except ImportError:
        return None
    return Image


def _drawing() -> ModuleType:
    from PIL import ImageDraw

    return ImageDraw
