"""PrivFedTalk's two server phases against plain loops in float64; what they publish, keep and refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import talking_by_hand as hand
import torch
from by_hand import farthest, generator
from cases import Toy
from talking_heads import CHANNELS, FRAMES, LATENT, STEPS, head_net, heads

from coterie.engine.run import RunError, Silent
from coterie.message import Message
from coterie.method import Adam, Everyone, Hub, Nobody, Phase, Round, Site
from coterie.methods.fedavg import Training
from coterie.methods.privfedtalk import AUTOENCODER, BACKBONE, PretrainAutoencoder, PretrainBackbone, PrivFedTalk, privfedtalk
from coterie.metrics.talking import Talking
from coterie.randomness import Draw, Key, draw
from coterie.states import ServerState

TOY = Toy(net=head_net, population=heads, metric=Talking())
LR, DECAY, CLIP, TINY, BATCH, ROUNDS, STEPS_PER_ROUND = 1e-2, 0.1, 0.05, 1e-4, 4, 2, 3
TRAINING = Training(
    optim=Adam(lr=LR, weight_decay=DECAY, eps=TINY), epochs=None, steps=STEPS_PER_ROUND, batch_size=BATCH, clip_norm=CLIP
)
AE = Phase("autoencoder", ROUNDS, PretrainAutoencoder(training=TRAINING), Nobody())
NET = Phase("backbone", ROUNDS, PretrainBackbone(training=TRAINING, diffusion_steps=STEPS), Nobody())
F64, CPU = torch.float64, torch.device("cpu")
ABAR = torch.from_numpy(np.cumprod(1 - np.minimum(np.linspace(1e-4, 0.02, STEPS) * 1000 / STEPS, 0.999)))


def public_clips():
    """Six clips of three public speakers, in float64."""
    return {name: column.double() for name, column in heads().public["train"].all_rows().items()}


def rows_of(t, ask, total):
    """Row numbers of each step of the server's round t: passes without end, each a new permutation, the last batch short."""
    found, epoch = [], 0
    while len(found) < STEPS_PER_ROUND:
        order = generator(0, "server", t, ask, 0, "order", "clips", epoch).permutation(total)
        found += [order[start : start + BATCH].tolist() for start in range(0, total, BATCH)]
        epoch += 1
    return found[:STEPS_PER_ROUND]


def drawn(t, ask, name, step, spec, count):
    return draw(Key(0, ("server", t, ask, 0, "noise", name)), step, spec, count, CPU, F64)


def parts_of_net():
    """Theta before the first step: the autoencoder, and the rest."""
    params = {name: value.double() for name, value in head_net().params.items()}
    own = {name: value for name, value in params.items() if name.startswith(("encoder.", "decoder."))}
    return own, {name: value for name, value in params.items() if name not in own}


def autoencoder_by_hand(rounds=ROUNDS):
    """One AdamW over the batches of all rounds: one random frame of each clip, L1 plus five times the squared error."""
    clips, losses = public_clips(), []
    for t in range(rounds):
        for step, rows in enumerate(rows_of(t, "reconstruct", 6)):
            places = drawn(t, "reconstruct", "frame", step, Draw("integers", ("batch",), (FRAMES,)), len(rows)).tolist()
            pictures = [clips["x"][row, place] for row, place in zip(rows, places, strict=True)]
            losses.append(lambda w, pictures=pictures: sum(hand.picture_loss(w, p) for p in pictures) / len(pictures))
    return hand.adamw(parts_of_net()[0], losses, LR, DECAY, CLIP, TINY)


def backbone_by_hand(frozen, target, first=ROUNDS, rounds=ROUNDS):
    """The same for everything else, in the latents of the published autoencoder, at one time and noise for each clip."""
    clips, losses = public_clips(), []
    latents = [hand.encode(frozen, clip) for clip in clips["x"]]
    for t in range(first, first + rounds):
        for step, rows in enumerate(rows_of(t, "denoise", 6)):
            times = drawn(t, "denoise", "t", step, Draw("integers", ("batch",), (STEPS,)), len(rows)).tolist()
            noises = drawn(t, "denoise", "eps", step, Draw("normal", ("batch", *LATENT)), len(rows))
            batch = list(zip(rows, times, noises, strict=True))

            def loss(w, batch=batch):
                whole, total = {**frozen, **w}, 0.0
                for row, time, eps in batch:
                    given = (whole, latents[row], eps, time, clips["audio"][row], clips["ref"][row])
                    total = total + (hand.velocity_loss(*given) if target == "velocity" else hand.clip_loss(*given, tdc=0.0))
                return total / len(batch)

            losses.append(loss)
    return hand.adamw(parts_of_net()[1], losses, LR, DECAY, CLIP, TINY)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Both phases, in float64."""
    return TOY.run((AE, NET), tmp_path_factory.mktemp("phases") / "run", precision="fp64")


def test_the_autoencoder_equals_plain_loops_over_two_rounds(finished):
    found = {n: v for n, v in finished.state.public[AUTOENCODER].tensors.items() if not n.startswith("latents.")}
    assert farthest(found, autoencoder_by_hand()) < 1e-11
    assert farthest(found, parts_of_net()[0]) > 1e-3  # it moved


def test_the_published_moments_are_numpys_of_all_latents(finished):
    """Mean and (population) spread of each channel over clips, frames and places, before standardising."""
    content = finished.state.public[AUTOENCODER].tensors
    raw = {**content, "latents.mean": torch.zeros(CHANNELS, dtype=F64), "latents.std": torch.ones(CHANNELS, dtype=F64)}
    latents = np.stack([hand.encode(raw, clip).numpy() for clip in public_clips()["x"]])
    np.testing.assert_allclose(content["latents.mean"].numpy(), latents.mean((0, 1, 3, 4)), rtol=1e-10)
    np.testing.assert_allclose(content["latents.std"].numpy(), latents.std((0, 1, 3, 4)), rtol=1e-8)


def test_the_backbone_equals_plain_loops_over_two_rounds(finished):
    content = {name: finished.state.public[name].tensors for name in (AUTOENCODER, BACKBONE)}
    expected = backbone_by_hand({**content[AUTOENCODER], "schedule.abar": ABAR}, "velocity")
    found = {name: value for name, value in content[BACKBONE].items() if name != "schedule.abar"}
    assert farthest(found, expected) < 1e-11
    assert farthest(found, parts_of_net()[1]) > 1e-3
    torch.testing.assert_close(content[BACKBONE]["schedule.abar"], ABAR, rtol=1e-12, atol=0)


def test_the_backbone_can_be_trained_in_noise_as_equation_6_is_printed(finished, go64):
    once = (replace(AE, rounds=1), replace(NET, rounds=1, method=replace(NET.method, target="noise")))
    content = {name: kept.tensors for name, kept in go64(once, TOY).state.public.items()}
    expected = backbone_by_hand({**content[AUTOENCODER], "schedule.abar": ABAR}, "noise", first=1, rounds=1)
    assert farthest({n: v for n, v in content[BACKBONE].items() if n != "schedule.abar"}, expected) < 1e-11


def test_content_is_published_once_in_the_last_round_and_its_workbench_removed(tmp_path, monkeypatch):
    heard = []
    for kind in (PretrainAutoencoder, PretrainBackbone):

        def absorb(self, state, mean, each, hub, inner=kind.absorb):
            after = yield from inner(self, state, mean, each, hub)
            heard.append((sorted(after.shared), {name: kept.digest for name, kept in after.public.items()}))
            return after

        monkeypatch.setattr(kind, "absorb", absorb)
    state = TOY.run((AE, NET), tmp_path / "run").state
    digests = {name: kept.digest for name, kept in state.public.items()}

    def bench(name):
        return [name, *(f"{name}/{what}" for what in ("count", "first", "second"))]

    ae = {AUTOENCODER: digests[AUTOENCODER]}
    assert heard == [(bench(AUTOENCODER), {}), ([], ae), (bench(BACKBONE), ae), ([], digests)]
    assert set(digests) == {AUTOENCODER, BACKBONE} and state.shared == {}


@pytest.mark.parametrize("after", [1, 2, 3])
def test_stopped_in_the_middle_and_resumed_equals_never_stopped(after, tmp_path):
    """Within the first phase, between the two and within the second; with a rate that falls over a phase's rounds."""
    training = replace(TRAINING, optim=replace(TRAINING.optim, schedule="cosine_round"))
    plan = tuple(replace(phase, method=replace(phase.method, training=training)) for phase in (AE, NET))
    whole = TOY.run(plan, tmp_path / "whole")

    class Stops(Silent):
        def round(self, index, phase, seconds, value, bytes_total):
            if index == after:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TOY.run(plan, tmp_path / "run", watcher=Stops())
    assert not (tmp_path / "run" / "summary.json").exists()
    resumed = TOY.run(plan, tmp_path / "run", resume=True)
    for name, content in whole.state.public.items():
        assert all(torch.equal(value, resumed.state.public[name].tensors[n]) for n, value in content.tensors.items())
        assert content.digest == resumed.state.public[name].digest


def test_no_byte_is_counted_and_nobody_is_evaluated_before_the_federation(finished):
    assert (finished.path / "wire.jsonl").read_text() == "" and finished.evaluations == []
    assert set(finished.summary["bytes"].values()) == {0}


@pytest.mark.parametrize("phase", [AE, NET])
def test_a_client_in_a_server_phase_is_told_that_it_has_no_place_there(phase):
    name, at = type(phase.method).__name__, Round(0, 1, phase.name, 0, 1, (3,), 4)
    site = Site(3, at, heads().parts[3], head_net(), Key(0))
    with pytest.raises(ValueError, match=rf"{name} runs at the server alone, and client 3 was asked\. Give its phase Nobody\(\)"):
        phase.method.client({}, Message(), site)
    assert phase.method.personal({}, Message(), site) is None


def test_a_population_without_public_clips_is_told_what_is_missing(tmp_path):
    for public, held in (({}, "none"), ({"test": heads().public["test"]}, r"\['test'\]")):
        toy = replace(TOY, population=lambda public=public: replace(heads(), public=public))
        with pytest.raises(ValueError, match=rf"trains its backbone on public clips, but the server holds {held}\. Give the population"):
            toy.run((AE,), tmp_path / str(len(public)))


def test_adapters_before_the_server_phases_are_told_which_phases_they_need(tmp_path):
    """A client's reason reaches whoever starts the run."""
    with pytest.raises(RunError, match=r"PrivFedTalk needs the public content 'backbone', found \[\]\. Run its server phases first"):
        TOY.run((Phase("train", 1, PrivFedTalk(rank=2), Everyone()),), tmp_path / "run")
    at = Round(0, 1, "train", 0, 1, (0,), 4)
    with pytest.raises(ValueError, match=r"needs the public content 'backbone', found \['autoencoder'\]\. Run its server phases first"):
        half = ServerState({"shared": {}}).publishing(AUTOENCODER, {})
        PrivFedTalk().global_model(half, Hub(at, head_net(), Key(0)))


def test_the_whole_plan_has_the_server_phases_first_and_nobody_in_them():
    plan = privfedtalk(rounds=5, autoencoder_rounds=2, backbone_rounds=3, diffusion_steps=7, backbone_target="noise")
    assert [(phase.name, phase.rounds, phase.cohort) for phase in plan] == [
        ("autoencoder", 2, Nobody()), ("backbone", 3, Nobody()), ("train", 5, Everyone()),
    ]  # fmt: skip
    assert plan[1].method.diffusion_steps == 7 and plan[1].method.target == "noise"
