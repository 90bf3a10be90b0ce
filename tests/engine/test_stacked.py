"""Many clients at once: every kind of ask has the reference's answer, whoever stands beside whom, or is answered alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import DATA, F64, NET, ROUND, ask, curve, pull_to_zero
from cases import ROTA, TRAINING, Toy, norm_net
from play import tensors_of
from test_answers import Twice, halved, tenfold
from test_exchange import Poll
from torch import nn
from toy import population

from coterie.data.examples import View
from coterie.engine import answers
from coterie.engine.recording import Kept
from coterie.engine.recording import track as tracks
from coterie.engine.run import Silent
from coterie.engine.signature import signature
from coterie.engine.stacked import backend as stacking
from coterie.engine.stacked.member import Member
from coterie.engine.stacked.padding import padding_matters
from coterie.engine.stacked.program import StackedProgram
from coterie.engine.stacked.sweep import sweep_stacked
from coterie.engine.stacked.train import train_stacked
from coterie.method import SGD, Adam, Batch, Loss, Net, Phase, Site, Sweep, Train, Trained, Turn, editing
from coterie.methods.fedavg import FedAvg
from coterie.models.losses import CrossEntropy
from coterie.models.net import EncoderHead
from coterie.models.net import Net as Module
from coterie.randomness import Draw, Key
from coterie.tensors import Groups, Tensors, masked_mean

PER_EXAMPLE = ("z", "i")  # noise with a number for each row of a batch
SIZES = (11, 3, 8, 5)  # with batches of 4: whole and short ones, and 1 to 3 steps a pass


def curved(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    """A loss by rows, with its mask, a buffer that counts real rows, and everything that a batch may hold."""
    p, local = params["shared"], batch["local"]
    rows = torch.stack([curve(p["w"], p["b"], local["x"][i : i + 1]) for i in range(local["x"].shape[0])])
    noise = p["b"].new_zeros(())
    for name, value in batch["noise"].items():
        real = local["mask"].reshape(-1, *[1] * (value.dim() - 1)) if name in PER_EXAMPLE else 1
        noise = noise + (value.double() * real).sum()
    value = masked_mean(rows, local["mask"]) * (1 + refs["ref"]["r"]) + 1e-3 * noise * p["b"]
    return Loss(value, {"seen": {"rows": buffers["seen"]["rows"] + local["mask"].sum()}}, {"rows": local["mask"].sum().double()})


def members(train: Train, sizes: tuple[int, ...] = SIZES, *, shared_table: bool = True) -> list[Member]:
    """Clients of unlike size and state, on one table or on their own ones."""
    found = []
    for client, size in enumerate(sizes):
        index = (torch.arange(size) * 3 + client) % 11
        rows = View(DATA, index) if shared_table else View({n: v[index] for n, v in DATA.items()}, torch.arange(size))
        params = {g: {n: v + 0.1 * client for n, v in t.items()} for g, t in train.params.items()}
        streams = {name: rows for name in train.streams}
        refs = {**train.refs, "ref": {"r": torch.tensor(0.1 * client, dtype=F64)}}
        buffers = {"seen": {"rows": torch.tensor(float(client), dtype=F64)}}
        found.append(Member(replace(train, params=params, streams=streams, refs=refs, buffers=buffers), Key(5, ("client", client))))
    return found


def assert_as_the_reference(group: list[Member], net: Net = NET) -> None:
    """Once, and again with the tensors and recordings that the first time left behind, in another order."""
    assert len({signature(member.ask) for member in group}) == 1
    programs: Kept[StackedProgram] = Kept()
    told: list[str] = []
    for members in (group, group[::-1]):
        assert_answers(members, train_stacked(members, net, ROUND, programs, told.append), net)
    assert not told


def assert_answers(group: list[Member], answered: list[Trained], net: Net) -> None:
    for member, got in zip(group, answered, strict=True):
        assert isinstance(member.ask, Train)
        expected = answers.train(member.ask, net, ROUND, member.key)
        assert (got.num_steps, got.lr_sum) == (expected.num_steps, expected.lr_sum)
        assert got.metrics == pytest.approx(expected.metrics, rel=1e-12)
        for name in ("params", "buffers", "memory"):
            assert_close(getattr(got, name), getattr(expected, name), name)


def assert_close(found: Mapping[str, Tensors], expected: Mapping[str, Tensors], what: str) -> None:
    assert found.keys() == expected.keys(), what
    for group, tensors in expected.items():
        assert found[group].keys() == tensors.keys()
        for name, value in tensors.items():
            torch.testing.assert_close(found[group][name], value, rtol=1e-11, atol=1e-12, msg=lambda t, at=f"{what}/{group}/{name}": f"{at}: {t}")


def first_half(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    loss = curved(params, buffers, refs, batch, net)
    return Loss(loss.value, loss.buffers, {"first": loss.value.detach()})


def without_extra(grads: Groups, refs: Groups) -> Groups:
    return {group: values for group, values in grads.items() if group != "extra"}


PARAMS = ask().params
SETTINGS: dict[str, dict[str, Any]] = {
    "passes": {"steps": None, "epochs": 3},
    "steps beyond a pass": {"steps": 7},
    "momentum and decay": {"optim": SGD(lr=0.1, momentum=0.9, weight_decay=0.3)},
    "nesterov": {"optim": SGD(lr=0.1, momentum=0.9, nesterov=True)},
    "adam": {"optim": Adam(lr=0.1, weight_decay=0.3)},
    "rates by round": {"optim": SGD(lr=0.1, schedule="cosine_round")},
    "rates by step, which differ with the number of steps": {"optim": Adam(lr=0.1, schedule="cosine_step"), "steps": None, "epochs": 2},
    "clipped": {"clip_norm": 0.05},
    "terms, corrections, a second gradient, a projection": {
        "terms": (pull_to_zero,), "adjusts": (tenfold,), "gradient": Twice(), "project": halved,
        "refs": {"shift": {"s": torch.tensor(0.3, dtype=F64)}}, "clip_norm": 2.0,
    },
    "frozen": {"frozen": {"w": torch.tensor(True)}, "optim": Adam(lr=0.1, weight_decay=0.3), "project": halved},
    "partly frozen": {"frozen": {"w": torch.tensor([True, False])}, "optim": SGD(lr=0.1, momentum=0.9)},
    "two streams": {"streams": {"local": DATA, "pool": DATA}, "steps": 5},
    "noise": {"steps": 4, "noise": {
        "z": Draw("normal", ("batch", 3)), "u": Draw("uniform", (2,)), "i": Draw("integers", ("batch",), (9,)),
        "f": Draw("bernoulli", (3,), (0.5,)), "b": Draw("beta", (2,), (2.0, 3.0)), "c": Draw("categorical", (4,), (1.0, 2.0)),
    }},
    "turns": {"loss": None, "turns": (Turn(loss=first_half, moves=frozenset({"shared"})), Turn(loss=curved, moves=frozenset({"shared"})))},
    "no step at all": {"steps": 0},
    "a correction that leaves a group where it is": {
        "optim": SGD(lr=0.1, momentum=0.9), "adjusts": (without_extra,), "params": {**PARAMS, "extra": {"e": torch.tensor(1.0, dtype=F64)}},
    },
    "turns that never move a group, and a group without names": {
        "loss": None, "turns": (Turn(loss=first_half, moves=frozenset({"shared"})),), "optim": SGD(lr=0.1, momentum=0.9),
        "params": {**PARAMS, "extra": {"e": torch.tensor(1.0, dtype=F64)}, "none": {}},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("shared_table", "pays_after"), [(True, 1), (True, 10**9), (False, 1)], ids=["one table", "one table, not recorded", "own tables"]
)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_kind_of_training_gives_the_references_numbers(
    setting: str, shared_table: bool, pays_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracks, "PAYS_AFTER", pays_after)
    assert_as_the_reference(members(ask(**{"loss": curved, **SETTINGS[setting]}), shared_table=shared_table))


@pytest.mark.parametrize("optim", [SGD(lr=0.1, momentum=0.9), Adam(lr=0.1)], ids=["sgd", "adam"])
def test_memory_goes_in_and_out_and_a_client_without_one_starts_fresh(optim: Any) -> None:
    group = members(ask(loss=curved, optim=optim, steps=3))
    memories = [got.memory if i % 2 else None for i, got in enumerate(train_stacked(group, NET, ROUND))]
    group = [Member(replace(m.ask, memory=kept), m.key) for m, kept in zip(group, memories, strict=True)]
    assert_as_the_reference(group)
    steps = (3, 0, 2, 5)  # who takes no step hands back what it brought
    assert_as_the_reference([Member(replace(m.ask, steps=count), m.key) for m, count in zip(group, steps, strict=True)])
    assert_as_the_reference([Member(replace(m.ask, optim=SGD(lr=0.1)), m.key) for m in group])


def test_a_train_without_streams_lives_on_noise() -> None:
    train = ask(loss=noisy, streams={}, steps=3, noise={"z": Draw("normal", ("batch",))})
    assert_as_the_reference([Member(train, Key(5, ("client", i))) for i in range(3)])


def noisy(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    return Loss((params["shared"]["w"] * batch["noise"]["z"].mean()).sum() + params["shared"]["b"] ** 2)


def task(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    outputs, after = net.apply(params["shared"], buffers["buffers"], batch["local"], train=True)
    return Loss(net.loss(outputs, batch["local"])[0], {"buffers": after})


@pytest.mark.parametrize("frozen", [False, True])
def test_padding_is_no_part_of_a_batch_norm(frozen: bool) -> None:
    """Short batches beside whole ones; with `frozen` the clients freeze different layers."""
    net = norm_net().to("cpu", F64)
    data = {"x": torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=F64), "y": torch.arange(20) % 3}
    group = []
    for client, size in enumerate((20, 11, 6, 2)):
        flags = {n: torch.tensor(client % 2 == 0 and n.startswith("encoder.")) for n in net.params} if frozen else None
        train = ask(
            params={"shared": net.params}, buffers={"buffers": net.buffers}, loss=task, batch_size=8, steps=None, epochs=2,
            streams={"local": View(data, torch.arange(size))}, frozen=flags,
        )  # fmt: skip
        group.append(Member(train, Key(1, ("client", client))))
    assert_as_the_reference(group, net)


# --- sweeps -------------------------------------------------------------------------------------------------------------------


def looked(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    local = batch["local"]
    rows = local["x"] @ params["p"]["w"] + batch["noise"]["z"].sum(1) + batch["noise"]["s"]
    return {"rows": rows}


def added(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    mask = batch["local"]["mask"].double()
    return {"sum": (batch["local"]["x"] * mask[:, None]).sum(0) * params["p"]["w"]}


def averaged(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    return {"mean": masked_mean(batch["local"]["x"][:, 0] * params["p"]["w"][0], batch["local"]["mask"])}


@pytest.mark.parametrize(("gather", "fn"), [("rows", looked), ("sum", added), ("mean", averaged)])
def test_every_kind_of_sweep_gives_the_references_numbers(gather: Any, fn: Any) -> None:
    noise = {"z": Draw("normal", ("batch", 2)), "s": Draw("uniform", ())} if gather == "rows" else {}
    group = []
    for client, size in enumerate((*SIZES, 4)):
        params = {"p": {"w": torch.tensor([1.0, client], dtype=F64)}}
        sweep = Sweep(fn=fn, params=params, streams={"local": View(DATA, torch.arange(size))}, gather=gather, batch_size=4, noise=noise)
        group.append(Member(sweep, Key(5, ("client", client))))
    for member, got in zip(group, sweep_stacked(group, NET), strict=True):
        assert isinstance(member.ask, Sweep)
        assert_close({"": got}, {"": answers.sweep(member.ask, NET, member.key)}, gather)


# --- what can't be answered together is answered alone, and said ---------------------------------------------------------------


def forgetful(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    return Loss(curve(params["shared"]["w"], params["shared"]["b"], batch["local"]["x"]))


def by_length(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    """Zero on padded rows, but divided by how many rows there are."""
    local = batch["local"]
    return Loss((local["x"][:, 0] * local["mask"]).sum() / len(local["x"]) * params["shared"]["b"])


def rounded(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    return Loss(curved(params, buffers, refs, batch, net).value, {"seen": {"rows": batch["local"]["mask"].sum()}})


def test_a_buffer_of_another_kind_than_before_is_not_cast_in_silence() -> None:
    with pytest.raises(ValueError, match="it gives a buffer another shape or dtype than it had; keep both"):
        train_stacked(members(ask(loss=rounded)), NET, ROUND)


def test_a_loss_that_forgets_its_mask_is_found() -> None:
    assert not padding_matters(members(ask(loss=curved))[0], NET)
    for loss in (forgetful, by_length):
        assert padding_matters(members(ask(loss=loss))[0], NET)


def test_a_gradient_that_is_rounding_alone_is_no_sign_of_padding() -> None:
    """A bias before a batch norm has none; and one client that diverged says nothing of the others."""
    torch.manual_seed(1)
    layer = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
    net = Module(EncoderHead(nn.Sequential(OrderedDict(layer1=layer)), nn.Linear(5, 3), 5), CrossEntropy()).to("cpu", F64)
    data = {"x": torch.randn(20, 6, dtype=F64), "y": torch.arange(20) % 3}
    train = ask(params={"shared": net.params}, buffers={"buffers": net.buffers}, loss=task, streams={"local": data})
    lost = replace(train, params={"shared": {name: value * torch.nan for name, value in net.params.items()}})
    assert not any(padding_matters(Member(one, Key(1)), net) for one in (train, lost))


@dataclass(frozen=True)
class Changed(FedAvg):
    """FedAvg with another loss."""

    kind: str = "forgetful"

    def client(self, mine: Groups, down: Any, site: Site) -> Any:
        if self.kind == "forgetful later":
            ramp = {"r": torch.tensor(float(site.round.index), dtype=F64)}
            return (yield from editing(super().client(mine, down, site), lambda ask: ask.adding(late, ramp=ramp), moves="shared"))
        loss = {
            "forgetful": Forgetful(), "branching": Branching(), "failing": Failing(site.client == 1),
            "holding a tensor": Scaled(torch.ones(3, dtype=F64) * (1 + site.client)), "holding a list": Listed([2.0]),
        }[self.kind]  # fmt: skip
        return (yield from editing(super().client(mine, down, site), lambda ask: replace(ask, loss=loss), moves="shared"))


def late(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Any:
    """A term that forgets its mask, and weighs nothing in the first round."""
    return refs["ramp"]["r"] * net.apply(params["shared"], {}, batch["local"], train=True)[0].square().mean()


@dataclass(frozen=True)
class Scaled:
    scale: Any

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        outputs, _ = net.apply(params["shared"], {}, batch["local"], train=True)
        return Loss(masked_mean((outputs * self.scale).square().sum(1), batch["local"]["mask"]))


@dataclass(frozen=True)
class Listed:
    scale: list[float]

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        return Scaled(self.scale[0])(params, buffers, refs, batch, net)


@dataclass(frozen=True)
class Forgetful:
    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        outputs, after = net.apply(params["shared"], buffers.get("buffers", {}), batch["local"], train=True)
        return Loss(outputs.square().mean(), {"buffers": after} if buffers else {})


@dataclass(frozen=True)
class Branching:
    """A Python branch on a tensor, which a stacked computation can't take."""

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        outputs, _ = net.apply(params["shared"], {}, batch["local"], train=True)
        value = masked_mean(outputs.square().sum(1), batch["local"]["mask"])
        return Loss(value * (2.0 if float(value.detach()) > 0.1 else 1.0))


@dataclass(frozen=True)
class Failing:
    broken: bool

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
        if self.broken:
            raise RuntimeError("a broken client")
        outputs, _ = net.apply(params["shared"], {}, batch["local"], train=True)
        return Loss(masked_mean(outputs.square().sum(1), batch["local"]["mask"]))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("forgetful", "it reads padded rows"), ("forgetful later", "it reads padded rows"), ("branching", "vmap"),
        ("failing", None), ("holding a tensor", None), ("holding a list", "unhashable"),
    ],
)  # fmt: skip
def test_what_cannot_stand_beside_others_is_answered_alone_and_said(kind: str, reason: str | None, tmp_path: Path) -> None:
    plan = (Phase("train", 3, Changed(training=TRAINING, kind=kind), ROTA),)
    told: list[str] = []

    class Listening(stacking.Stacked):
        def remarks(self) -> list[str]:
            told.extend(new := super().remarks())
            return new

    loop = Toy().run(plan, tmp_path / "loop", precision="fp64")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coterie.engine.switch.Stacked", Listening)
        found = Toy().run(plan, tmp_path / "stacked", precision="fp64", backend="stacked", width=4)
    assert_close({"": tensors_of(found)}, {"": tensors_of(loop)}, kind)
    assert (found.path / "wire.jsonl").read_bytes() == (loop.path / "wire.jsonl").read_bytes()
    assert len(told) == (reason is not None) and all(reason in text and "'train'" in text for text in told if reason)


# --- whole runs -----------------------------------------------------------------------------------------------------------------


def test_a_result_does_not_depend_on_who_is_stacked_with_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    train = train_stacked
    monkeypatch.setattr(stacking, "train_stacked", lambda group, *rest, **more: (widths.append(len(group)), train(group, *rest, **more))[1])
    plan = (Phase("train", 3, FedAvg(training=TRAINING, buffers="local"), ROTA),)
    runs = [
        Toy(net=norm_net).run(plan, tmp_path / str(width), precision="fp64", backend="stacked", width=width) for width in (1, 2, 4)
    ]
    assert widths == [2, 2, 2, 2, 3, 2]  # cohorts of 2, 3 and 2; two at once leave one of the three alone; width 1 stacks nobody
    for found in runs[1:]:
        assert_close({"": tensors_of(found)}, {"": tensors_of(runs[0])}, "width")


class Notes(Silent):
    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


def test_where_memory_does_not_hold_so_many_it_goes_on_with_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Toy().run((Phase("train", 2, FedAvg(training=TRAINING)),), tmp_path / "loop", precision="fp64", backend="loop")
    sizes: list[int] = []
    train = train_stacked

    def small(group: Any, *rest: Any, **more: Any) -> Any:
        sizes.append(len(group))
        if len(group) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return train(group, *rest, **more)

    monkeypatch.setattr(stacking, "train_stacked", small)
    notes = Notes()
    finish = Toy().run(
        (Phase("train", 2, FedAvg(training=TRAINING)),), tmp_path / "run", precision="fp64", backend="stacked", width=4, watcher=notes
    )
    assert sizes == [4, 2, 2, 2, 2]
    assert [note for note in notes.told if "memory" in note] == ["The device's memory holds 2 clients at once, not twice as many; from here on it is 2."]
    assert_close(finish.state.shared, loop.state.shared, "state")


def test_runs_that_parted_meet_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the clients ask something more first: once that is known, the others wait and all train at once."""
    groups: list[tuple[str, int]] = []
    train, sweep = train_stacked, sweep_stacked
    monkeypatch.setattr(stacking, "train_stacked", lambda g, *rest, **more: (groups.append((g[0].ask.name, len(g))), train(g, *rest, **more))[1])
    monkeypatch.setattr(stacking, "sweep_stacked", lambda g, *rest: (groups.append((g[0].ask.name, len(g))), sweep(g, *rest))[1])
    Toy().run((Phase("train", 2, Curious(training=TRAINING)),), tmp_path / "run", backend="stacked", width=4, eval_every=2)
    assert groups[:5] == [("train", 2), ("look", 2), ("train", 2), ("look", 2), ("train", 4)]


class Curious(FedAvg):
    def client(self, mine: Groups, down: Any, site: Site) -> Any:
        if not site.client % 2:
            yield from Sweep(fn=features, params={}, streams={"local": site.data.train}, gather="mean", name="look")
        return (yield from super().client(mine, down, site))


def features(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    return {"x": masked_mean(batch["local"]["x"][:, 0], batch["local"]["mask"])}


def test_exchanges_are_answered_as_in_the_loop(tmp_path: Path) -> None:
    plan = (Phase("poll", 2, Poll(twice=True)),)
    loop, stacked = (
        Toy().run(plan, tmp_path / backend, precision="fp64", backend=backend, width=3) for backend in ("loop", "stacked")
    )
    assert_close({"": tensors_of(stacked)}, {"": tensors_of(loop)}, "exchange")
    assert (stacked.path / "wire.jsonl").read_bytes() == (loop.path / "wire.jsonl").read_bytes()


def test_a_last_batch_of_one_row_is_normalised_as_in_the_loop(tmp_path: Path) -> None:
    """One value has no variance: running statistics are used and kept, which masks must not hide."""
    plan = (Phase("train", 2, FedAvg(training=TRAINING, buffers="local")),)
    loop, stacked = (
        Toy(net=norm_net, population=lone_rows).run(plan, tmp_path / backend, precision="fp64", backend=backend, width=4)
        for backend in ("loop", "stacked")
    )
    assert_close({"": tensors_of(stacked)}, {"": tensors_of(loop)}, "one row")


def lone_rows() -> Any:
    return population((20, 11, 9, 24))


def test_a_width_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="width must be at least 1, found 0"):
        Toy().run((Phase("train", 1, FedAvg()),), Path("unused"), backend="stacked", width=0)


def test_trained_values_are_tensors_of_their_own() -> None:
    """Nothing of a group is kept alive, or changed, by somebody who got a part of it."""
    got = train_stacked(members(ask(loss=curved)), NET, ROUND)
    assert all(isinstance(one, Trained) for one in got)
    got[0].params["shared"]["w"].fill_(7)
    assert not (got[1].params["shared"]["w"] == 7).any()
    assert got[1].params["shared"]["w"].untyped_storage().nbytes() == 2 * 8


