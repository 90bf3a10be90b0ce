"""PrivFedTalk, walking: adapters for speakers who look different from the public ones, measured on drawn heads."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from coterie import __version__
from coterie.data.examples import Population
from coterie.data.procedural_heads import FEDERATED, FRAMES_PER_SECOND, SAMPLE_RATE, procedural_talking_heads
from coterie.engine.answers import sweep
from coterie.engine.folder import write_json
from coterie.engine.run import Finish
from coterie.method import Examples, Net, Sweep
from coterie.methods.privfedtalk import PrivFedTalk, privfedtalk
from coterie.methods.privfedtalk.losses import Generate, Losses, adapted, diffusion_noise, latent_shape, start_noise
from coterie.methods.privfedtalk.phases import AUTOENCODER_TRAINING, BACKBONE_TRAINING
from coterie.metrics.images import psnr
from coterie.metrics.statistics import paired
from coterie.metrics.talking import Talking, correlation_over_time, jitter, mouth_opening
from coterie.models.talking import model as talking
from coterie.models.talking import talking_head
from coterie.privacy.guards import Guards
from coterie.randomness import Key
from coterie.recipes.private import Privacy
from coterie.recipes.secure import secured
from coterie.recipes.session import Session, beside, seeded
from coterie.report.video import Panel, Provenance, check_reason, write_sheet, write_video
from coterie.states import Content
from coterie.tensors import Groups, Tensors, num_elements

_DRAWS = 8  # (t, eps) per clip when the final losses are measured
_SHOWN = 4  # clients in the video
_SERVER_ROUNDS = 5  # in which each part of the model is trained: after each of them the run can be stopped and resumed


def walk_privfedtalk(
    session: Session, *, rounds: int = 10, clients: int = 8, cohort: int | None = None, public_speakers: int = 128,
    autoencoder_steps: int = 1000, backbone_steps: int = 900, rank: int = 8, consistency: float = 0.05, sharpness: float = 0.5,
    freeze_a: bool = False, clip: float | None = None, noise: float = 0.0, fresh_noise: bool = False, sampler_steps: int = 8,
    secure_sum: bool = False, unmarked_because: str | None = None,
) -> None:  # fmt: skip
    """A talking-head diffusion trained on public drawn speakers, then adapters for others; with a marked video.

    --clients 8              speakers of the federation, one per client
    --clip 1 --noise 0.5     bound what one speaker can change, and hide it in noise (printed, no bar)
    --fresh-noise            noise from the operating system; without it a seed makes the run repeatable and protects nobody
    --backbone-steps 5000    train the public model for longer (better pictures)
    --sharpness 0            count clients by clips alone, not by how reliable their generated clips are
    --freeze-a               send only one of the two factors
    --secure-sum             the server learns the sum of all adapters only (needs coterie[privacy])
    --unmarked-because TEXT  leave the visible mark out of the video, for a reason that is written into the file
    """
    seed = session.settings.seed
    population = procedural_talking_heads(Key(seed, ("heads",)), num_clients=clients, num_public=public_speakers)
    net = seeded(seed, talking_head)
    least = {"autoencoder_steps": autoencoder_steps, "backbone_steps": backbone_steps, "sampler_steps": sampler_steps}
    for name, steps in least.items():
        if steps < 1:
            raise ValueError(f"{name} must be at least 1, found {steps}. Leave it out for the default.")
    check_reason(unmarked_because)
    plan = privfedtalk(
        rounds=rounds, cohort=Privacy().cohort(cohort, clients), rank=rank, consistency=consistency, sharpness=sharpness, n_max=24,
        freeze_a=freeze_a, sampler_steps=sampler_steps, autoencoder_rounds=_SERVER_ROUNDS, backbone_rounds=_SERVER_ROUNDS,
        autoencoder_training=replace(AUTOENCODER_TRAINING, steps=-(-autoencoder_steps // _SERVER_ROUNDS)),
        backbone_training=replace(BACKBONE_TRAINING, steps=-(-backbone_steps // _SERVER_ROUNDS)),
    )  # fmt: skip
    guards = secured(Guards(clip=clip, noise=noise, audit_seed=None if fresh_noise else seed), population, secure_sum=secure_sum, n_max=1.0)
    finish = session.run(plan, population, net=net, metric=Talking(), method="privfedtalk", guards=guards)
    method = plan[-1].method
    assert isinstance(method, PrivFedTalk)
    with threads(session.settings.threads):
        heads = Heads(finish, *beside(finish, population, net), method, sampler_steps)
        measured = heads.measured()
        measured["bars"] = bars(measured) if clip is None and not noise else None
        numbers = num_elements(heads.untrained)
        length = guards.noise_std * math.sqrt(numbers / (cohort or clients))  # of a mean of weights 1; smaller weights add more
        measured["privacy"] = finish.summary["privacy"] and {**finish.summary["privacy"], "numbers": numbers, "noise_length": length}
        write_json(session.out / "talking.json", measured)
        written = heads.shown(session.out, unmarked_because)
    if not session.settings.quiet:
        tell(measured, written)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """As many threads as the run itself had: more of them fight over a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Heads:
    """A finished run, looked at with the noise that every adapter gets."""

    def __init__(self, finish: Finish, population: Population, net: Net, method: PrivFedTalk, sampler_steps: int) -> None:
        self.population, self.net, self.method, self.sampler_steps = population, net, method, sampler_steps
        public = {name: content.tensors for name, content in finish.state.public.items()}
        self.refs: Groups = method.fixed(net, public)
        self.trained = finish.state.shared["shared"]
        self.untrained = method.adapter(net)[0]
        self.shape = latent_shape(population.parts[0].test, self.refs["frozen"])
        self.run = finish.path.name

    def losses(self, adapter: Tensors, clips: Examples, key: Key) -> Tensors:
        noise = diffusion_noise(len(self.refs["frozen"][talking.SCHEDULE]), self.shape, _DRAWS)
        return self.swept(Losses(self.method.scale), adapter, {"local": clips}, noise, key)

    def generated(self, adapter: Tensors, clips: Tensors, key: Key) -> Tensor:
        fn = Generate(self.sampler_steps, self.method.scale)
        return self.swept(fn, adapter, {"clips": clips}, start_noise(self.shape), key)["video"]

    def swept(self, fn: Any, adapter: Tensors, streams: Any, noise: Any, key: Key) -> Tensors:
        ask = Sweep(fn=fn, params={"shared": adapter}, refs=self.refs, streams=streams, noise=noise, batch_size=32, name="measure")
        return sweep(ask, self.net, key)

    def measured(self) -> dict[str, Any]:
        """Losses with common noise, and mouths of clips from pure noise, all on clips that nobody trained on."""
        public = self.losses(self.untrained, self.population.public["test"], Key(0, ("measure", "public")))
        found: dict[str, list[Tensor]] = {}
        for client, parts in enumerate(self.population.parts):
            key, clips = Key(0, ("measure", client)), parts.test.all_rows()
            for name, adapter in (("untrained", self.untrained), ("adapter", self.trained)):
                for loss, values in self.losses(adapter, parts.test, key).items():
                    found.setdefault(f"{name}/{loss}", []).append(values)
                for what, values in self.seen(adapter, clips, key).items():
                    found.setdefault(f"{name}/{what}", []).append(values)
        clips_of = {name: torch.cat(values).double() for name, values in found.items()}
        return {
            "shift": asdict(FEDERATED),
            "backbone_on_public": {name: float(values.mean()) for name, values in public.items()},
            "means": {name: float(values.mean()) for name, values in clips_of.items()},
            "loss": compared(clips_of, found, "loss"),
            "velocity": compared(clips_of, found, "velocity"),
        }

    def seen(self, adapter: Tensors, clips: Tensors, key: Key) -> Tensors:
        """What clips generated from pure noise look like, with their own sound and with that of another clip."""
        video = self.generated(adapter, clips, key)
        other = self.generated(adapter, {**clips, "audio": clips["audio"].roll(1, dims=0)}, key)
        opening, truth = mouth_opening(video, clips["box"]), clips["opening"]
        return {
            "mouth_correlation": correlation_over_time(opening, truth),
            "mouth_correlation_other_sound": correlation_over_time(mouth_opening(other, clips["box"]), truth),
            "mouth_opening_ratio": opening.mean(1) / mouth_opening(clips["x"], clips["box"]).mean(1),
            "jitter_ratio": jitter(video) / jitter(clips["x"]),
            "psnr": psnr(video.flatten(0, 1), clips["x"].flatten(0, 1)).reshape(video.shape[:2]).mean(1),
        }

    def shown(self, out: Path, unmarked_because: str | None) -> list[Path]:
        """The first held-out clip of some clients beside its truth, as video and as a sheet of frames."""
        columns = [parts.test.rows(torch.tensor([0])) for parts in self.population.parts[:_SHOWN]]
        clips = {name: torch.cat([column[name] for column in columns]) for name in columns[0]}
        panels = [
            Panel(as_bytes(clips["x"]), "TRUTH", generated=False),
            Panel(as_bytes(self.generated(self.trained, clips, Key(0, ("shown",)))), "ADAPTER", generated=True),
            Panel(as_bytes(self.generated(self.untrained, clips, Key(0, ("shown",)))), "NO ADAPTER", generated=True),
        ]
        model = Content.of(adapted({"shared": self.trained}, self.refs, self.method.scale)).digest
        origin = Provenance(made_by=f"coterie {__version__}", run=self.run, model_hash=model)
        written = []
        if importlib.util.find_spec("PIL"):
            written.append(write_sheet(out / "media" / "heads.png", panels, provenance=origin, unmarked_because=unmarked_because))
        if importlib.util.find_spec("av"):
            written.append(write_video(
                out / "media" / "heads.mp4", panels, frames_per_second=FRAMES_PER_SECOND, provenance=origin,
                sound=clips["sound"].flatten().cpu().numpy(), sample_rate=SAMPLE_RATE, unmarked_because=unmarked_because,
            ))  # fmt: skip
        return written


def as_bytes(video: Tensor) -> Any:
    """Clips [clips, frames, 3, h, w] in [0, 1], one after the other, as pictures."""
    return (video.flatten(0, 1).permute(0, 2, 3, 1) * 255.0).round().byte().cpu().numpy()


def compared(clips_of: Tensors, found: dict[str, list[Tensor]], loss: str) -> dict[str, Any]:
    """Adapter against none: the paired interval over clips, and over clients (whose clips are no independent draws)."""
    after, before = clips_of[f"adapter/{loss}"], clips_of[f"untrained/{loss}"]
    means = {name: [float(v.double().mean()) for v in found[f"{name}/{loss}"]] for name in ("adapter", "untrained")}
    pairs = {"over_clips": (after.tolist(), before.tolist()), "over_clients": (means["adapter"], means["untrained"])}
    tests = {over: paired(*two) for over, two in pairs.items() if len(two[0]) > 1}  # one client has no spread over clients
    intervals = {over: {"difference": t.difference, "low": t.low, "high": t.high} for over, t in tests.items()}
    return {"lower_by": 1.0 - float(after.mean() / before.mean()), **intervals}


def bars(measured: dict[str, Any]) -> dict[str, bool]:
    """What this walk must reach without clip and noise."""
    public, means = measured["backbone_on_public"], measured["means"]
    return {
        "backbone at most 0.5 of predicting zero": max(public["loss"], public["velocity"]) <= 0.5,
        "adapter lowers the loss of every kind by 10 %": min(measured[k]["lower_by"] for k in ("loss", "velocity")) >= 0.1,
        "interval over clips without 0": measured["loss"]["over_clips"]["high"] < 0,
        "mouth follows its sound (above 0.5)": means["adapter/mouth_correlation"] > 0.5,
        "and no other sound (below 0.2)": means["adapter/mouth_correlation_other_sound"] < 0.2,
    }


def tell(measured: dict[str, Any], written: list[Path]) -> None:
    console, means = Console(highlight=False), measured["means"]
    table = Table("held-out clips of shifted speakers", "no adapter", "adapter", title="Talking heads")
    for name in ("loss", "velocity", "tdc", "mouth_correlation", "mouth_correlation_other_sound", "mouth_opening_ratio",
                 "jitter_ratio", "psnr"):  # fmt: skip
        table.add_row(name, f"{means[f'untrained/{name}']:.3f}", f"{means[f'adapter/{name}']:.3f}")
    console.print(table)
    loss, public = measured["loss"], measured["backbone_on_public"]
    interval = ", ".join(
        f"[{loss[over]['low']:.4f}, {loss[over]['high']:.4f}] {over.replace('_', ' ')}"
        for over in ("over_clips", "over_clients")
        if over in loss
    )
    console.print(
        f"The adapter {'lowers' if loss['lower_by'] >= 0 else 'raises'} the loss by {100 * abs(loss['lower_by']):.1f} %; "
        f"difference {loss['over_clips']['difference']:.4f}, "
        f"95 % {interval}. The backbone on public speakers: {public['loss']:.3f} of predicting zero "
        f"({public['velocity']:.3f} in velocity).",
        soft_wrap=True,
    )
    if measured["privacy"]:
        told = "clip {clip:g}, noise {noise:g}: {note}.".format(**measured["privacy"])
        told += " --fresh-noise draws it from the operating system." if "protects nobody" in told else ""
        size = "In each round the noise on the mean of {numbers:,} numbers is at least {noise_length:.3g} long, a client's change at most {clip:g}."
        console.print(told, size.format(**measured["privacy"]) if measured["privacy"]["noise"] else "", soft_wrap=True)
    for bar, holds in (measured["bars"] or {}).items():
        console.print(f"  {'holds' if holds else '[bold]does not hold[/]'}: {bar}")
    if not any(path.suffix == ".mp4" for path in written):
        console.print("No video: that needs PyAV. Install it with: pip install 'coterie[talk]'", markup=False)
    for path in written:
        console.print(f"Wrote {path}", markup=False, soft_wrap=True)  # a path may hold [brackets], and is copied whole
