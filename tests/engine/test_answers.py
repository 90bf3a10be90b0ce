"""The reference answers to Train and Sweep: rates, turns, the order of a step, frozen things, random numbers by address."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from asking import DATA, F64, ask, context, order_of, pull_to_zero, ramp, trained
from cases import norm_net

from coterie.data.examples import whole
from coterie.engine.answers import answer, conclude, conduct
from coterie.method import SGD, Adam, Batch, Loss, Net, Optimizer, Sweep, Train, Trained, Turn
from coterie.randomness import Draw, Key, draw
from coterie.tensors import Groups, Tensors

# --- schedules ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.2] * 7),
        ("cosine_step", [0.1 * (1 + math.cos(math.pi * s / 7)) for s in range(7)]),
        ("cosine_round", [0.1 * (1 + math.cos(math.pi * 2 / 8))] * 7),  # phase_index 2 of 8 rounds
    ],
)
def test_rates_follow_their_schedule_and_are_summed(schedule: Any, rates: list[float]) -> None:
    params = {"slow": {"a": torch.zeros(2, dtype=F64)}, "fast": {"b": torch.zeros(2, dtype=F64)}}
    optim = {"slow": SGD(lr=0.2, schedule=schedule), "fast": SGD(lr=1.0)}
    got = trained(ask(params=params, optim=optim, loss=ramp, steps=7))
    assert got.num_steps == 7 and got.lr_sum == {"slow": pytest.approx(sum(rates)), "fast": pytest.approx(7.0)}
    assert float(got.params["slow"]["a"][0]) == pytest.approx(-sum(rates)) and float(got.params["fast"]["b"][0]) == pytest.approx(-7)


# --- turns ------------------------------------------------------------------------------------------------------------------------


def first_turn(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    """Moves f towards the batch's mean; counts itself in a buffer."""
    loss = (params["f"]["w"] - batch["local"]["x"].mean(0)).square().sum() / 2
    return Loss(loss, {"seen": {"ids": buffers["seen"]["ids"] + batch["local"]["id"].sum()}}, {"first": loss.detach()})


def second_turn(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    """Moves q towards the f that the first turn has just left; f must not move, though it is in the loss."""
    loss = (params["q"]["w"] - params["f"]["w"]).square().sum() / 2 + 0 * buffers["seen"]["ids"]
    return Loss(loss, {}, {"second": loss.detach()})


def test_turns_see_the_same_batch_and_each_others_result() -> None:
    params = {"f": {"w": torch.zeros(2, dtype=F64)}, "q": {"w": torch.zeros(2, dtype=F64)}}
    turns = (Turn(loss=first_turn, moves=frozenset({"f"})), Turn(loss=second_turn, moves=frozenset({"q"})))
    seen = {"seen": {"ids": torch.zeros((), dtype=F64)}}
    got = trained(ask(params=params, loss=None, turns=turns, buffers=seen, optim=SGD(lr=0.5), steps=None, epochs=2))
    f, q, ids = np.zeros(2), np.zeros(2), 0
    for _, rows in zip(range(6), order_of("train", 0), strict=False):
        f = f + 0.5 * (DATA["x"].numpy()[rows].mean(0) - f)
        q = q + 0.5 * (f - q)
        ids += int(rows.sum())
    np.testing.assert_allclose(got.params["f"]["w"].numpy(), f, rtol=1e-13)
    np.testing.assert_allclose(got.params["q"]["w"].numpy(), q, rtol=1e-13)
    assert got.num_steps == 6 and float(got.buffers["seen"]["ids"]) == ids == 2 * 55
    assert got.lr_sum == {"f": pytest.approx(3.0), "q": pytest.approx(3.0)}
    assert got.metrics["objective"] == pytest.approx(got.metrics["first"] + got.metrics["second"])


# --- order of a step: gradient -> adjusts -> clip -> optimiser -> project -> frozen -----------------------------------------------


def tenfold(grads: Groups, refs: Groups) -> Groups:
    return {g: {n: 10 * v + refs["shift"]["s"] for n, v in t.items()} for g, t in grads.items()}


def halved(params: Groups, refs: Groups) -> Groups:
    return {g: {n: v / 2 for n, v in t.items()} for g, t in params.items()}


@dataclass(frozen=True)
class Twice:
    """A gradient taken at the point where a first gradient leads (FedSAM without its norm)."""

    rho: float = 0.1

    def __call__(self, gradient: Any, params: Groups, buffers: Groups, refs: Groups) -> tuple[Groups, Loss]:
        first, _ = gradient(params, buffers)
        there = {g: {n: v + self.rho * first[g][n] for n, v in t.items()} for g, t in params.items()}
        result: tuple[Groups, Loss] = gradient(there, buffers)
        return result


def test_a_step_goes_in_its_stated_order() -> None:
    """w = 3, loss sum w + w^2, gradient taken at w + 0.1 (1 + 2w) = 3.7: 8.4; ten times plus 16: 100; clipped to 4; lr 0.5; halved."""
    train = ask(
        params={"shared": {"w": torch.tensor([3.0], dtype=F64)}}, loss=ramp, terms=(pull_to_zero,), adjusts=(tenfold,),
        refs={"shift": {"s": torch.tensor(16.0, dtype=F64)}}, gradient=Twice(), clip_norm=4.0, optim=SGD(lr=0.5), project=halved, steps=1,
    )  # fmt: skip
    assert float(trained(train).params["shared"]["w"]) == pytest.approx((3.0 - 0.5 * 4.0) / 2, rel=1e-11)
    unclipped = trained(replace(train, clip_norm=None))
    assert float(unclipped.params["shared"]["w"]) == pytest.approx((3.0 - 0.5 * 100.0) / 2, rel=1e-12)
    assert unclipped.metrics["objective"] == pytest.approx(3.7 + 3.7**2)


@pytest.mark.parametrize("optim", [SGD(lr=0.1, momentum=0.9, weight_decay=0.3), Adam(lr=0.1, weight_decay=0.3)])
def test_what_is_frozen_keeps_value_memory_and_statistics_bit_for_bit(optim: Optimizer) -> None:
    """A frozen layer with batch norm, by decay, momentum, projection and all; the rest moves as if it were alone."""
    net = norm_net().to("cpu", F64)
    own = [n for n in net.params if n.startswith("encoder.layer1.")]
    generator = torch.Generator().manual_seed(0)
    data = {"x": torch.randn(20, 6, generator=generator, dtype=F64), "y": torch.arange(20) % 3}
    shared = {n: torch.randn(v.shape, generator=generator, dtype=F64) for n, v in net.params.items()}
    statistics = {n: torch.rand(v.shape, generator=generator, dtype=F64) + 0.5 for n, v in net.buffers.items()}
    first = ask(
        params={"shared": shared}, buffers={"buffers": statistics}, loss=task, streams={"local": data}, batch_size=8, steps=4, optim=optim
    )
    warm = trained(first, net=net)
    frozen = {n: torch.tensor(n in own) for n in net.params}
    second = replace(first, params=warm.params, buffers=warm.buffers, memory=warm.memory, frozen=frozen, project=halved)
    got = trained(second, net=net)
    assert own and all(torch.equal(got.params["shared"][n], warm.params["shared"][n]) for n in own)
    assert all(torch.equal(v, warm.buffers["buffers"][n]) for n, v in got.buffers["buffers"].items())
    for kind in ("momentum", "first", "second"):
        for n, v in got.memory.get(f"shared/{kind}", {}).items():
            assert torch.equal(v, warm.memory[f"shared/{kind}"][n]) == (n in own)
    assert not any(torch.equal(got.params["shared"][n], warm.params["shared"][n]) for n in net.params if n not in own)


def task(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    outputs, after = net.apply(params["shared"], buffers["buffers"], batch["local"], train=True)
    return Loss(net.loss(outputs, batch["local"])[0], {"buffers": after})


def test_frozen_entries_do_not_take_part_in_the_clip() -> None:
    """Gradients (1, 1) and 1; with the pair frozen the length that is clipped is 1."""
    got = trained(ask(loss=ramp, clip_norm=0.5, steps=1, frozen={"w": torch.tensor(True)}))
    assert float(got.params["shared"]["b"]) == pytest.approx(0.5 - 0.1 * 0.5)


# --- streams and random numbers by address ---------------------------------------------------------------------------------------------


def record(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    """Writes down which rows and which noise a step has seen: place by place in a buffer."""
    step = int(buffers["log"]["step"])
    log = dict(buffers["log"], step=buffers["log"]["step"] + 1)
    for name in sorted(set(batch) - {"noise"}):
        log[f"{step}/{name}"] = batch[name]["id"].clone()
        assert batch[name]["mask"].all()
    log |= {f"{step}/noise/{n}": v.clone() for n, v in batch["noise"].items()}
    return Loss(params["shared"]["w"].sum(), {"log": log})


def seen(train: Train, ordinal: int = 0) -> Tensors:
    got = answer(replace(train, loss=record, buffers={"log": {"step": torch.zeros(())}}), context(), ordinal)
    assert isinstance(got, Trained)
    return got.buffers["log"]


def test_streams_are_shuffled_passes_and_a_short_one_is_cycled() -> None:
    pool = {"id": torch.arange(3)}
    log = seen(ask(streams={"local": DATA, "pool": whole(pool)}, steps=None, epochs=2))
    assert [len(log[f"{s}/local"]) for s in range(6)] == [4, 4, 3, 4, 4, 3]
    for start in (0, 3):
        assert sorted(torch.cat([log[f"{s}/local"] for s in range(start, start + 3)]).tolist()) == list(range(11))
    assert not torch.equal(log["0/local"], log["3/local"])
    assert all(sorted(log[f"{s}/pool"].tolist()) == [0, 1, 2] for s in range(6))
    for step, rows in zip(range(6), order_of("train", 0), strict=False):
        assert log[f"{step}/local"].tolist() == rows.tolist()


def test_a_train_without_streams_lives_on_noise() -> None:
    """The normal numbers are those of the key (here, train, 0, noise, z), one draw per step, as many as a batch."""
    log = seen(ask(streams={}, steps=2, noise={"z": Draw("normal", ("batch", 2)), "flag": Draw("bernoulli", (3,), (0.5,))}))
    for step in range(2):
        expected = draw(Key(5, ("here", "train", 0, "noise", "z")), step, Draw("normal", ("batch", 2)), 4, torch.device("cpu"), F64)
        assert torch.equal(log[f"{step}/noise/z"], expected) and log[f"{step}/noise/flag"].shape == (3,)
    assert not torch.isclose(log["0/noise/z"], log["1/noise/z"]).any()


@pytest.mark.parametrize("kind", ["normal", "uniform", "beta"])
def test_noise_of_a_short_batch_is_the_beginning_of_a_padded_ones(kind: Any) -> None:
    """So that a backend which pads the last batch gives its real rows the reference's numbers."""
    spec = Draw(kind, ("batch", 3), (2.0, 3.0) if kind == "beta" else ())
    short, padded = (draw(Key(1), 4, spec, size, torch.device("cpu"), F64) for size in (5, 8))
    assert torch.equal(padded[:5], short)


def test_two_asks_of_one_name_get_other_batches_and_an_inserted_ask_shifts_nobody() -> None:
    def plain() -> Generator[Any, Any, list[list[int]]]:
        one = yield from logged("train")
        two = yield from logged("train")
        return [one, two]

    def inserted() -> Generator[Any, Any, list[list[int]]]:
        one = yield from logged("train")
        yield from Sweep(fn=first_column, params={}, streams={"local": DATA}, name="look")
        yield from logged("other")
        two = yield from logged("train")
        return [one, two]

    def logged(name: str) -> Generator[Any, Any, list[int]]:
        got = yield from ask(loss=record, buffers={"log": {"step": torch.zeros(())}}, steps=3, name=name)
        return [i for s in range(3) for i in got.buffers["log"][f"{s}/local"].tolist()]

    results = [conclude(conduct(run, context(), (Train, Sweep), [])) for run in (plain(), inserted())]
    assert results[0] == results[1] and results[0][0] != results[0][1]
    for ordinal, found in enumerate(results[0]):
        assert found == [int(i) for _, rows in zip(range(3), order_of("train", ordinal), strict=False) for i in rows]


def first_column(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    return {"x": batch["local"]["x"][:, 0]}


# --- sweeps -----------------------------------------------------------------------------------------------------------------------------


def look(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    x = batch["local"]["x"] * params["p"]["scale"]
    return {"rows": x + batch["noise"]["z"], "constant": batch["noise"]["c"].expand(len(x), 1)}


def look_sum(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    return {"sum": batch["local"]["x"].sum(0), "batches": torch.ones((), dtype=F64)}


def look_mean(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    return {"mean": batch["local"]["x"].mean(0)}


def sweep(fn: Any, **more: Any) -> Tensors:
    got = answer(Sweep(fn=fn, params={"p": {"scale": torch.tensor(2.0, dtype=F64)}}, streams={"local": DATA}, **more), context())
    assert isinstance(got, dict)
    return got


@pytest.mark.parametrize("size", [1, 4, 11, 100])
def test_rows_come_in_the_order_of_the_data_and_an_examples_noise_is_its_own(size: int) -> None:
    noise = {"z": Draw("normal", ("batch", 2)), "c": Draw("uniform", (1,))}
    found = sweep(look, batch_size=size, noise=noise)
    z = draw(Key(5, ("here", "sweep", 0, "noise", "z")), 0, noise["z"], 11, torch.device("cpu"), F64)
    torch.testing.assert_close(found["rows"], 2 * DATA["x"] + z, rtol=0, atol=0)
    assert len(found["constant"].unique()) == 1


@pytest.mark.parametrize("size", [1, 4, 11])
def test_sums_and_means_over_a_ragged_last_batch(size: int) -> None:
    """Rows 0, .2, ... 2.0 and .1, ... 2.1: sums 11 and 12.1, means 1 and 1.1, whatever the batches are."""
    total = sweep(look_sum, gather="sum", batch_size=size)
    np.testing.assert_allclose(total["sum"].numpy(), [11.0, 12.1], rtol=1e-14)
    assert float(total["batches"]) == -(-11 // size)
    np.testing.assert_allclose(sweep(look_mean, gather="mean", batch_size=size)["mean"].numpy(), [1.0, 1.1], rtol=1e-14)


def test_sweeps_that_cannot_be_answered_say_why() -> None:
    with pytest.raises(ValueError, match=r"given a stream without examples\. Leave this client out"):
        answer(Sweep(fn=look_sum, params={}, streams={"local": {"x": torch.zeros(0, 2)}}), context())
    with pytest.raises(ValueError, match=r"go side by side, found the lengths \{'a': 11, 'b': 3\}\. Sweep over one after"):
        answer(Sweep(fn=look_sum, params={}, streams={"a": DATA, "b": {"x": torch.zeros(3, 2)}}), context())
