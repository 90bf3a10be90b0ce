"""Optimiser steps against torch.optim, and memory that goes out and comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from asking import DATA, F64, ask, assert_close, context, curve, order_of, trained
from by_hand import batches, farthest, plain_loss
from cases import Toy, clients_of, weights_of
from torch import Tensor, nn

from coterie import methods
from coterie.engine.answers import answer
from coterie.method import SGD, Adam, Batch, Loss, Net, Optimizer, Trained
from coterie.methods.fedavg import Training
from coterie.tensors import Groups, Tensors

OPTIMIZERS: list[tuple[Optimizer, Callable[[list[Tensor]], torch.optim.Optimizer]]] = [
    (SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    (SGD(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    (SGD(lr=0.1, weight_decay=0.05), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05)),
    (
        SGD(lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.05),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.05),
    ),
    (Adam(lr=0.1), lambda p: torch.optim.Adam(p, lr=0.1)),
    (
        Adam(lr=0.1, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
    ),
]
NAMES = ["sgd", "momentum", "decay", "nesterov", "adam", "adamw"]


def by_torch(make: Callable[[list[Tensor]], torch.optim.Optimizer], steps: int = 10, clip: float | None = None) -> Tensors:
    w = torch.tensor([1.0, -2.0], dtype=F64, requires_grad=True)
    b = torch.tensor(0.5, dtype=F64, requires_grad=True)
    optimizer = make([w, b])
    for _, rows in zip(range(steps), order_of("train", 0), strict=False):
        optimizer.zero_grad()
        curve(w, b, DATA["x"][torch.from_numpy(rows)]).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_([w, b], clip)
        optimizer.step()
    return {"w": w.detach(), "b": b.detach()}


@pytest.mark.parametrize(("optim", "make"), OPTIMIZERS, ids=NAMES)
def test_ten_steps_equal_torchs_optimiser(optim: Optimizer, make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> None:
    assert_close(trained(ask(optim=optim)).params["shared"], by_torch(make))


@pytest.mark.parametrize(("optim", "make"), OPTIMIZERS, ids=NAMES)
def test_memory_out_and_in_is_an_uninterrupted_optimiser(
    optim: Optimizer, make: Callable[[list[Tensor]], torch.optim.Optimizer]
) -> None:
    """Ten single asks that hand on params and memory; each takes one step on the rows of its own first batch."""
    params, memory = ask().params, None
    w, b = params["shared"]["w"].clone().requires_grad_(), params["shared"]["b"].clone().requires_grad_()
    optimizer = make([w, b])
    for part in range(10):
        got = answer(ask(optim=optim, params=params, memory=memory, steps=1), context(), ordinal=part)
        assert isinstance(got, Trained)
        params, memory = got.params, got.memory
        optimizer.zero_grad()
        curve(w, b, DATA["x"][torch.from_numpy(next(order_of("train", part)))]).backward()
        optimizer.step()
    assert_close(params["shared"], {"w": w.detach(), "b": b.detach()})


def test_a_fresh_optimiser_is_not_the_remembered_one() -> None:
    got = trained(ask(optim=SGD(lr=0.1, momentum=0.9), steps=3))
    warm = answer(ask(optim=SGD(lr=0.1, momentum=0.9), params=got.params, memory=got.memory, steps=1), context(), 1)
    cold = answer(ask(optim=SGD(lr=0.1, momentum=0.9), params=got.params, steps=1), context(), 1)
    assert isinstance(warm, Trained) and isinstance(cold, Trained)
    velocity = got.memory["shared/momentum"]
    for name in ("w", "b"):  # the difference is exactly lr x momentum x the old velocity
        expected = -0.1 * 0.9 * velocity[name]
        torch.testing.assert_close(warm.params["shared"][name] - cold.params["shared"][name], expected, rtol=0, atol=1e-14)


def test_clip_norm_is_torchs_clip_over_all_groups() -> None:
    split = {"one": {"w": ask().params["shared"]["w"]}, "two": {"b": ask().params["shared"]["b"]}, "none": {}}
    got = trained(ask(params=split, loss=curved_apart, clip_norm=0.05))
    expected = by_torch(lambda p: torch.optim.SGD(p, lr=0.1), clip=0.05)
    # torch adds 1e-6 to the norm before it divides, we 1e-12
    assert_close({**got.params["one"], **got.params["two"]}, expected, atol=2e-6)
    loose = trained(ask(clip_norm=1e9))
    assert_close(loose.params["shared"], trained(ask()).params["shared"], atol=0)


def curved_apart(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Loss:
    return Loss(curve(params["one"]["w"], params["two"]["b"], batch["local"]["x"]))


def test_the_caller_keeps_its_own_tensors() -> None:
    train = ask(optim=Adam(lr=0.1), memory=trained(ask(optim=Adam(lr=0.1), steps=1)).memory)
    before = {name: value.clone() for name, value in {**train.params["shared"], **train.memory["shared/first"]}.items()}  # type: ignore[index]
    trained(train)
    assert all(torch.equal(v, before[n]) for n, v in {**train.params["shared"], **train.memory["shared/first"]}.items())  # type: ignore[index]


def test_keep_memory_makes_rounds_one_long_optimisation(tmp_path: Path) -> None:
    """Local with Adam: 3 rounds of 1 epoch with memory are torch's AdamW that never stopped."""
    training = Training(optim=Adam(lr=0.05, weight_decay=0.1), batch_size=8, keep_memory=True)
    toy = Toy()
    finish = toy.run(methods.local(rounds=3, training=training), tmp_path / "run", precision="fp64")
    for k, (x, y) in enumerate(clients_of(toy.population())):
        weights = {n: v.requires_grad_() for n, v in weights_of(toy.net()).items()}
        optimizer = torch.optim.AdamW(list(weights.values()), lr=0.05, weight_decay=0.1)
        for t in range(3):
            for rows in batches(t, k, len(y), 8, epochs=1):
                optimizer.zero_grad()
                plain_loss(weights, x[rows], y[rows]).backward()
                optimizer.step()
        assert farthest(finish.clients[k]["own"], {n: v.detach() for n, v in weights.items()}) < 1e-11


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SGD(lr=float("inf")), r"learning rate must be a number >= 0, found inf\. Use"),
        (lambda: SGD(lr=0.1, weight_decay=-1.0), r"weight_decay must be a number >= 0, found -1\.0\. Use"),
        (lambda: SGD(lr=0.1, schedule="cosine"), r"schedule must be one of constant, cosine_round, cosine_step, found 'cosine'"),
        (lambda: Adam(lr=0.1, betas=(1.0, 0.9)), r"betas must lie in \[0, 1\), found \(1\.0, 0\.9\)\. Use"),
        (lambda: Training(clip_norm=-1.0), r"clip_norm must be greater than 0, found -1\.0\. Use"),
        (lambda: ask(clip_norm=0.0), r"clip_norm must be greater than 0, found 0\.0\. Use"),
    ],
)  # fmt: skip
def test_a_rule_that_would_not_descend_is_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()
