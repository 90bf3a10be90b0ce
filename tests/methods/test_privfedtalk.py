"""PrivFedTalk's federated rounds against talking_by_hand in float64, and spec/privfedtalk.md section 12 (PT-T5 ... PT-T11)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

import pytest
import talking_by_hand as hand
import torch
from by_hand import batches, farthest, mean
from cases import COMMON_CHANGES, ROTA, Case, Toy, every_round
from talking_heads import CHANNELS, LATENT, STEPS, head_net, heads
from torch import Tensor

from coterie.engine.answers import Context, conclude, conduct
from coterie.engine.run import run
from coterie.engine.settings import Settings
from coterie.message import Message
from coterie.method import Adam, Hub, Named, Phase, Round, Site, Sweep, Train, as_run
from coterie.methods import privfedtalk
from coterie.methods.fedavg import Training
from coterie.methods.fedprox import Proximal
from coterie.methods.privfedtalk import AUTOENCODER, BACKBONE, PrivFedTalk
from coterie.metrics.talking import Talking
from coterie.models.talking import model as talking
from coterie.privacy.guards import Guards
from coterie.privacy.secure_sum import SecureSum
from coterie.randomness import Draw, Key, draw
from coterie.states import ServerState

TOY = Toy(net=head_net, population=heads, metric=Talking())
LR, DECAY, CLIP, TINY, BATCH, EPOCHS = 2e-2, 0.1, 0.05, 1e-4, 2, 2
CONSTANT = Training(optim=Adam(lr=LR, weight_decay=DECAY, eps=TINY), epochs=EPOCHS, batch_size=BATCH, clip_norm=CLIP)
TRAINING = replace(CONSTANT, optim=replace(CONSTANT.optim, schedule="cosine_round"))
SERVER = Training(optim=Adam(lr=1e-2), epochs=None, steps=1, batch_size=4)
LAYERS = ("q", "k", "v", "out", "film")
METHOD = PrivFedTalk(
    training=TRAINING, layers=LAYERS, rank=2, scale=1.5, consistency=0.3, sharpness=2.0, identity_share=0.6, n_max=2,
    sampler_steps=3, server_lr=0.7,
)  # fmt: skip
F64, CPU = torch.float64, torch.device("cpu")


def plan_of(method, rounds=3, cohort=ROTA):
    """One short round for each server phase, then the federation."""
    server = privfedtalk(
        rounds=1, diffusion_steps=STEPS, autoencoder_rounds=1, backbone_rounds=1, autoencoder_training=SERVER, backbone_training=SERVER
    )
    return (*server[:2], Phase("train", rounds, method, cohort))


def model_of(finish):
    """theta as it was published."""
    return {**finish.state.public[AUTOENCODER].tensors, **finish.state.public[BACKBONE].tensors}


# --- what the shared tests must know ------------------------------------------------------------------------------------------

KEPT = "the server's phases keep their optimiser's memory in any case: they are one training, cut where it may be stopped"


def formulas(f):
    """Section 2.2 of spec/wire.md, formal weights without secure sums; theta goes down once, to whom takes part first."""
    sizes = {name: value.numel() for name, value in head_net().params.items()}
    adapter = sum(2 * sum(head_net().params[f"{layer}.weight"].shape) for layer in ADAPTED)  # rank 2: 2 (d_in + d_out)
    parts = {name: sum(size for n, size in sizes.items() if n.startswith(("encoder.", "decoder."))) for name in (AUTOENCODER,)}
    parts[BACKBONE] = sum(sizes.values()) - parts[AUTOENCODER] + STEPS  # abar_t
    parts[AUTOENCODER] += 2 * CHANNELS  # mean and spread of the latents
    found, known = every_round(f, up={"shared": f.b * adapter, "weight": 8}, down={"shared": f.b * adapter}), set()
    for cohort in f.cohorts:
        new = set(cohort) - known
        known |= new
        found += [(-1, "down", name, f.b * size * len(new), len(new)) for name, size in parts.items() if new]
    return found


ADAPTED = ("unet.attn1.out", "unet.attn2.out", "unet.attn3.out")
CASES = {
    "privfedtalk": Case(
        changes={
            **COMMON_CHANGES, "rounds": (1, {}), "training.batch_size": (1, {}), "training.clip_norm": (1e-3, {}),
            "layers": (("q", "out"), {}), "rank": (3, {}), "scale": (1.0, {}), "consistency": (0.5, {}), "target": ("velocity", {}),
            "sharpness": (0.0, {}), "identity_share": (0.1, {}), "n_max": (2, {}), "sampler_steps": (3, {}), "server_lr": (0.5, {}),
            "freeze_a": (True, {}), "adapter_seed": (1, {}), "diffusion_steps": (6, {}), "backbone_target": ("noise", {}),
            **{
                f"{part}_{what}": change
                for part in (AUTOENCODER, BACKBONE)
                for what, change in {
                    "rounds": (2, {}), "training.optim": (Adam(lr=1e-3), {}), "training.steps": (2, {}), "training.batch_size": (1, {}),
                    "training.epochs": (2, {f"{part}_training.epochs": 1, f"{part}_training.steps": None}),
                    "training.clip_norm": (1e-3, {}), "training.keep_memory": KEPT,
                }.items()
            },
        },
        knobs={
            "layers": ("out",), "rank": 2, "diffusion_steps": STEPS, "sampler_steps": 2, "autoencoder_rounds": 1, "backbone_rounds": 1,
            "autoencoder_training": SERVER, "backbone_training": SERVER,
        },
        toy=TOY, wire=formulas, rounds=2,
    )
}  # fmt: skip


# --- the oracle ---------------------------------------------------------------------------------------------------------------


@dataclass
class Clip:
    """One clip in float64."""

    x: Tensor
    audio: Tensor
    ref: Tensor


def clips_of(view):
    columns = view.all_rows()
    return [Clip(*(columns[name][i].double() for name in ("x", "audio", "ref"))) for i in range(len(view))]


def first_adapter(net, method=METHOD):
    """A = U(-1/sqrt(d_in), 1/sqrt(d_in)) from its documented key, B = 0."""
    phi = {}
    for name, weight in net.params.items():
        if name.endswith(".weight") and name.split(".")[-2] in method.layers and weight.dim() == 2:
            layer, (d_out, d_in) = name.removesuffix(".weight"), weight.shape
            u = draw(Key(method.adapter_seed, ("adapter", layer)), 0, Draw("uniform", (method.rank, d_in)), 0, CPU, F64)
            phi[f"{layer}.A"] = (2 * u - 1) / math.sqrt(d_in)
            phi[f"{layer}.B"] = torch.zeros(d_out, method.rank, dtype=F64)
    return phi


def losses_by_hand(theta, clips, t, k, method, mu=0.0, received=None):
    """One loss of phi per step: the mean of (12) over the batch, plus FedProx's pull."""
    latents = [hand.encode(theta, clip.x) for clip in clips]
    for step, rows in enumerate(batches(t, k, len(clips), BATCH, EPOCHS, stream="clips")):
        key = Key(0, ("round", t, "client", k, "train", 0, "noise"))
        times = draw(key.fold("t"), step, Draw("integers", ("batch",), (STEPS,)), len(rows), CPU, F64)
        noises = draw(key.fold("eps"), step, Draw("normal", ("batch", *LATENT)), len(rows), CPU, F64)

        def loss(phi, rows=rows, times=times, noises=noises):
            w, total = hand.merged(theta, phi, method.scale), 0.0
            for i, eps, time in zip(rows.tolist(), noises, times.tolist(), strict=True):
                total = total + hand.clip_loss(w, latents[i], eps, time, clips[i].audio, clips[i].ref, method.consistency)
            pull = sum(((phi[name] - received[name]) ** 2).sum() for name in phi) if mu else 0.0
            return total / len(rows) + mu / 2 * pull

        yield loss


def score_by_hand(theta, phi, clips, k, method):
    """The mean of (20) over clips generated from the noise that this client starts from in every round."""
    starts = draw(Key(0, ("score", k)), 0, Draw("normal", ("batch", *LATENT)), len(clips), CPU, F64)
    w, scores = hand.merged(theta, phi, method.scale), []
    for clip, start in zip(clips, starts, strict=True):
        video = hand.generated(w, start, clip.audio, clip.ref, method.sampler_steps)
        scores.append(hand.score(theta, video, clip.x, clip.ref, method.identity_share))
    return sum(scores) / len(scores)


def rounds_by_hand(theta, phi, method, cohorts, mu=0.0):
    """phi after these rounds; rounds count from 2, because each server phase has one."""
    parts, fixed = heads().parts, {}
    if method.freeze_a:
        fixed, phi = ({n: v for n, v in phi.items() if n.endswith(kind)} for kind in (".A", ".B"))
    for index, cohort in enumerate(cohorts):
        lr, found, weights = LR * (1 + math.cos(math.pi * index / len(cohorts))) / 2, [], []
        for k in cohort:
            clips, held_out = clips_of(parts[k].train), clips_of(parts[k].validation)
            losses = losses_by_hand(theta, clips, index + 2, k, method, mu, phi)
            trained = hand.adamw(phi, ((lambda moving, loss=loss: loss({**fixed, **moving})) for loss in losses), lr, DECAY, CLIP, TINY)
            weight = min(len(clips), method.n_max) / method.n_max
            if method.sharpness:
                weight *= math.exp(method.sharpness * (score_by_hand(theta, {**fixed, **trained}, held_out, k, method) - 1))
            assert 0 < weight <= 1
            found.append(trained)
            weights.append(weight)
        average = mean(found, weights)
        phi = {name: value + method.server_lr * (average[name] - value) for name, value in phi.items()}  # (21)
    return phi


COHORTS = [ROTA.rounds[t % 3] for t in (2, 3, 4)]


@pytest.mark.parametrize(("rounds", "freeze_a"), [(3, False), (1, True)])
def test_rounds_equal_plain_loops(rounds, freeze_a, go64):
    method = replace(METHOD, freeze_a=freeze_a)
    finish = go64(plan_of(method, rounds), TOY, eval_every=100)
    expected = rounds_by_hand(model_of(finish), first_adapter(head_net()), method, COHORTS[:rounds])
    assert farthest(finish.state.shared["shared"], expected) < 1e-12


def test_an_optimiser_that_is_kept_goes_on_where_it_stopped(go64):
    """Two rounds of one client with server_lr 1 are one AdamW over all their batches."""
    method = replace(METHOD, training=replace(CONSTANT, keep_memory=True), sharpness=0.0, server_lr=1.0)
    finish = go64(plan_of(method, 2, Named((1,))), TOY, eval_every=100)
    theta, clips, phi = model_of(finish), clips_of(heads().parts[1].train), first_adapter(head_net())
    losses = [loss for t in (2, 3) for loss in losses_by_hand(theta, clips, t, 1, method)]
    assert farthest(finish.state.shared["shared"], hand.adamw(phi, losses, LR, DECAY, CLIP, TINY)) < 1e-12


def test_what_is_evaluated_is_the_mean_loss_over_draws(go64):
    """Held-out clips with noise that depends on client and part alone, so that rounds can be compared."""
    method = replace(METHOD, sharpness=0.0, eval_draws=2)
    finish = go64(plan_of(method, 1, Named((1,))), TOY)
    w, found = hand.merged(model_of(finish), finish.state.shared["shared"], method.scale), {"loss": [], "velocity": []}
    for k, parts in enumerate(heads().parts):
        (clip,), key = clips_of(parts.test), Key(0, ("evaluate", k, "test", "noise"))
        times = draw(key.fold("t"), 0, Draw("integers", ("batch", 2), (STEPS,)), 1, CPU, F64)[0]
        noises = draw(key.fold("eps"), 0, Draw("normal", ("batch", 2, *LATENT)), 1, CPU, F64)[0]
        z = hand.encode(w, clip.x)
        given = [(w, z, eps, t, clip.audio, clip.ref) for eps, t in zip(noises, times.tolist(), strict=True)]
        found["loss"].append(sum(float(hand.clip_loss(*each, tdc=0.0)) for each in given) / 2)
        found["velocity"].append(sum(float(hand.velocity_loss(*each)) for each in given) / 2)
    for name, values in found.items():
        for model in ("global", "personal"):  # nobody keeps an adapter of their own
            assert finish.summary["results"][model][name]["last"] == pytest.approx(sum(values) / 4, rel=1e-12)


# --- weights ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What each client trains in the first round (server_lr 1 and a cohort of one: the mean is its own adapter)."""
    method, found = replace(METHOD, sharpness=0.0, server_lr=1.0), {}
    for k in (0, 1, 3):
        finish = TOY.run(plan_of(method, 1, Named((k,))), tmp_path_factory.mktemp("alone") / str(k), precision="fp64", eval_every=100)
        found[k] = finish.state.shared["shared"]
    return found


def test_t5_without_sharpness_it_is_fedavg_by_size_and_nothing_is_generated(alone, go64, monkeypatch):
    monkeypatch.setattr(PrivFedTalk, "score", None)  # a call would raise
    method = replace(METHOD, sharpness=0.0, n_max=3, server_lr=1.0)
    finish = go64(plan_of(method, 1, Named((0, 1, 3))), TOY, eval_every=100)
    assert [len(heads().parts[k].train) for k in (0, 1, 3)] == [1, 2, 3]
    assert farthest(finish.state.shared["shared"], mean([alone[0], alone[1], alone[3]], [1, 2, 3])) < 1e-12


class Told(PrivFedTalk):
    """Scores are given."""

    SCORES = MappingProxyType({0: 0.9, 1: 0.2, 3: 0.6})
    SHIFT = 0.0

    def score(self, adapter, refs, shape, site):
        yield from ()
        return torch.tensor(self.SCORES[site.client] + self.SHIFT, dtype=F64)


class Shifted(Told):
    SHIFT = 0.35


def test_t5_the_same_shift_of_all_scores_changes_nothing(alone, go64):
    """And without it the weights are those of (21), where clips beyond n_max = 2 do not count."""
    settings = {f.name: getattr(METHOD, f.name) for f in fields(METHOD)} | {"server_lr": 1.0}
    one, two = (
        go64(plan_of(kind(**settings), 1, Named((0, 1, 3))), TOY, eval_every=100).state.shared["shared"] for kind in (Told, Shifted)
    )
    weights = [n * math.exp(METHOD.sharpness * s) for n, s in ((1, 0.9), (2, 0.2), (2, 0.6))]
    assert farthest(one, mean([alone[0], alone[1], alone[3]], weights)) < 1e-12
    assert farthest(one, two) < 1e-12


def site_of(finish, client=1, **data):
    population = heads().moved(lambda column: column.double() if column.is_floating_point() else column, decoded=F64)
    public = {name: content.tensors for name, content in finish.state.public.items()}
    net = head_net().to("cpu", F64)
    return Site(client, Round(0, 1, "train", 0, 1, (client,), 4), replace(population.parts[client], **data), net, Key(0), public=public)


def sent_by(method, site):
    run = as_run(method.client({}, Message({"shared": method.adapter(site.net)[0]}), site))
    return conclude(conduct(run, Context(site.net, site.round, site.key), (Train, Sweep), []))[1]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A run whose server phases are done."""
    method = replace(METHOD, sharpness=0.0)
    return TOY.run(plan_of(method, 1, Named((0,))), tmp_path_factory.mktemp("published") / "run", precision="fp64", eval_every=100)


@pytest.mark.parametrize(("client", "size"), [(0, 0.5), (3, 1.0)])
def test_a_weight_lies_above_0_and_at_most_at_1_whatever_the_score(client, size, published, monkeypatch):
    """n_max is 2: one clip of two counts half, and three count as two."""
    site = site_of(published, client)
    for score in (0.0, 1.0):
        monkeypatch.setattr(Told, "SCORES", {client: score})
        message = sent_by(Told(training=TRAINING, rank=2, n_max=2, sharpness=3.0), site)
        assert float(message.weight) == pytest.approx(size * math.exp(3.0 * (score - 1)), rel=1e-15)
        assert 0 < float(message.weight) <= 1


def test_without_a_held_out_clip_a_client_counts_as_if_its_score_were_0(published):
    site = site_of(published)
    none = replace(site.data.validation, index=site.data.validation.index[:0])
    message = sent_by(METHOD, site_of(published, validation=none))
    assert float(message.weight) == pytest.approx(math.exp(-METHOD.sharpness), rel=1e-15)  # it has n_max clips
    assert float(sent_by(METHOD, site).weight) > 1.5 * float(message.weight)


# --- what it composes with ------------------------------------------------------------------------------------------------------


def test_t9_fedprox_around_it_equals_plain_loops(go64):
    """The adapter is pulled towards the one received; with mu = 0 it is the inner method bit for bit."""
    method, found = replace(METHOD, sharpness=0.0, server_lr=1.0), {}
    for mu in (0.0, 0.8):
        found[mu] = go64(plan_of(Proximal(mu, method), 1, Named((1,))), TOY, eval_every=100)
    plain = go64(plan_of(method, 1, Named((1,))), TOY, eval_every=100).state.shared["shared"]
    assert all(torch.equal(value, plain[name]) for name, value in found[0.0].state.shared["shared"].items())
    expected = rounds_by_hand(model_of(found[0.8]), first_adapter(head_net()), method, [(1,)], mu=0.8)
    assert farthest(found[0.8].state.shared["shared"], expected) < 1e-12 < 1e-6 < farthest(expected, plain)


def guarded(guards, out, cohort):
    method = replace(METHOD, server_lr=1.0)
    settings = Settings(backend="loop", quiet=True, precision="fp64", eval_every=100)
    plan = plan_of(method, 1, Named(cohort))
    return run(plan, heads(), net=head_net(), metric=Talking(), out=out, guards=guards, settings=settings)


def test_t4_the_engines_clip_bounds_what_a_speaker_can_do_to_the_adapter(alone, tmp_path):
    start = first_adapter(head_net())
    moved = {name: value - start[name] for name, value in alone[1].items()}
    length = math.sqrt(sum(float((value**2).sum()) for value in moved.values()))
    clip = length / 3
    found = guarded(Guards(clip=clip), tmp_path, (1,)).state.shared["shared"]
    assert farthest({n: (v - start[n]) * 3 for n, v in found.items()}, moved) < 1e-12


def test_noise_as_small_as_nothing_leaves_the_weighted_mean_of_clipped_changes(alone, tmp_path):
    """The formal mode (PT-D2): a_k is multiplied in at the client, and the sum of a_k divides at the server."""
    start, clip = first_adapter(head_net()), 0.05
    finish = {noise: guarded(Guards(clip=clip, noise=noise, audit_seed=0), tmp_path / str(noise), (0, 1, 3)) for noise in (0.0, 1e-12)}
    one, two = (finish[noise].state.shared["shared"] for noise in (0.0, 1e-12))
    assert farthest(one, two) < 1e-10
    assert math.sqrt(sum(float(((one[n] - start[n]) ** 2).sum()) for n in one)) <= clip
    assert finish[1e-12].summary["bytes"]["up"] == finish[0.0].summary["bytes"]["up"]


def test_t6_the_weights_of_21_work_exactly_under_a_secure_sum(tmp_path):
    """Nobody knows the sum of the a_k before the round, and nobody learns one of them: S / A is the plain weighted mean."""
    plain = guarded(Guards(), tmp_path / "plain", (0, 1, 3)).state.shared["shared"]
    finish = {bits: guarded(Guards(secure=SecureSum(range=4.0, bits=bits)), tmp_path / str(bits), (0, 1, 3)) for bits in (32, 64)}
    assert farthest(finish[64].state.shared["shared"], plain) < 1e-13
    assert 0 < farthest(finish[32].state.shared["shared"], plain) < 1e-5
    adapter = sum(value.numel() for value in plain.values())
    wire = [json.loads(line) for line in (finish[32].path / "wire.jsonl").read_text().splitlines()]
    up = {line["slot"]: line["bytes"] for line in wire if line["direction"] == "up"}
    sa_up = 64 + 2 * 100 + 40 * 3  # section 2.2 of spec/wire.md: 4 (P_lora + 1) + SA_up
    assert up.pop("shared") + up.pop("weight") == 3 * 4 * (adapter + 1) and sum(up.values()) == 3 * sa_up


def test_freezing_a_sends_b_alone(go64):
    """Rank 2: 2 d_out floats per layer instead of 2 (d_in + d_out), and 8 bytes of weight."""
    sizes = [head_net().params[name.removesuffix("A") + "weight"].shape for name in first_adapter(head_net()) if name.endswith("A")]
    for freeze_a in (False, True):
        finish = go64(plan_of(replace(METHOD, freeze_a=freeze_a), 1, Named((1,))), TOY, eval_every=100)
        assert set(finish.state.shared) == {"shared"}
        assert finish.summary["bytes"]["up"] == 8 + 8 * sum(2 * d_out + (0 if freeze_a else 2 * d_in) for d_out, d_in in sizes)


def test_t10_an_adapter_of_norm_1_changes_what_the_net_predicts(published):
    """Where attention is normalised over the asking places, an adapter reaches the output by a share of 1/N only.

    The exact statement about attention alone is in tests/models/test_talking_unet.py.
    """
    theta, net = model_of(published), head_net().to("cpu", F64)
    (clip,) = clips_of(heads().parts[1].test)
    given = talking.conditions(net, theta, {"audio": clip.audio[None], "ref": clip.ref[None]})
    g = torch.Generator().manual_seed(0)
    d_out, d_in = theta["unet.attn1.out.weight"].shape
    factors = {"A": torch.randn(2, d_in, generator=g, dtype=F64), "B": torch.randn(d_out, 2, generator=g, dtype=F64)}
    adapter = {f"unet.attn1.out.{name}": value / (math.sqrt(2) * value.norm()) for name, value in factors.items()}
    z_t = torch.randn(1, *LATENT, generator=g, dtype=F64)
    without, with_it = (
        talking.predict(net, model, z_t, torch.tensor([2]), given) for model in (theta, hand.merged(theta, adapter, METHOD.scale))
    )
    assert float((with_it - without).norm() / without.norm()) > 1e-3


# --- bad input ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"rank": 0}, r"rank must be at least 1, found 0\. Use 1 or more"),
        ({"n_max": 0}, r"n_max must be at least 1, found 0"),
        ({"sampler_steps": 0}, r"sampler_steps must be at least 1, found 0"),
        ({"eval_draws": 0}, r"eval_draws must be at least 1, found 0"),
        ({"identity_share": 1.5}, r"identity_share must lie in \[0, 1\], found 1\.5"),
        ({"sharpness": -1.0}, r"sharpness must be at least 0, found -1\.0"),
        ({"sharpness": math.nan}, r"sharpness must be at least 0, found nan"),
        ({"consistency": -0.1}, r"consistency must be at least 0, found -0\.1"),
        ({"target": "score"}, r"target must be noise or velocity, found 'score'"),
    ],
)
def test_values_that_mean_nothing_are_refused_with_a_cure(knobs, text):
    with pytest.raises(ValueError, match=text):
        PrivFedTalk(**knobs)


def test_adapters_need_a_published_model_and_layers_that_exist(published):
    hub = Hub(Round(0, 1, "train", 0, 1, (0,), 1), head_net(), Key(0))
    with pytest.raises(ValueError, match=r"found none called \['query'\]\. Choose from \[.*'film'.*'q'.*\]"):
        PrivFedTalk(layers=("q", "query")).slots(hub)
    with pytest.raises(ValueError, match=r"needs the public content 'backbone', found \[\]\. Run its server phases first"):
        METHOD.global_model(ServerState({"shared": first_adapter(head_net())}), hub)
    with pytest.raises(ValueError, match=r"the server holds none\. Give the population public="):
        METHOD.global_model(replace(published.state), hub)
