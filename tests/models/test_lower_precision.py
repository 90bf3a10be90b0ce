"""A net that computes in bfloat16: which numbers are rounded, and which are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import toy
from cases import norm_net
from torch import Tensor

from coterie import methods
from coterie.engine.settings import Settings
from coterie.models.nets import mlp, resnet8

BF16 = torch.bfloat16


def rounded(value: Tensor) -> Tensor:
    return value.to(BF16).double()


def test_a_layer_multiplies_rounded_numbers_and_gives_full_ones() -> None:
    """By hand in float64: a sum of products of rounded numbers, rounded once more by what the layer hands on."""
    torch.manual_seed(0)
    net = mlp(6, 3, hidden=(4,))
    x = torch.randn(5, 6)
    p = net.params
    hidden = rounded(rounded(x) @ rounded(p["encoder.layer1.1.weight"]).T + rounded(p["encoder.layer1.1.bias"])).relu()
    expected = rounded(rounded(hidden) @ rounded(p["head.weight"]).T + rounded(p["head.bias"]))
    out, _ = net.computing_in(BF16).apply(p, {}, {"x": x}, train=True)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, rtol=2**-7, atol=2**-9)  # the last bit of bfloat16
    exact, _ = net.apply(p, {}, {"x": x}, train=True)
    assert (exact - out).abs().max() > 1e-4  # it did round


def test_batch_norms_keep_their_statistics_in_full() -> None:
    net = norm_net()
    x = torch.randn(64, toy.FEATURES)
    _, after = net.computing_in(BF16).apply(net.params, net.buffers, {"x": x}, train=True)
    layer = rounded(rounded(x) @ rounded(net.params["encoder.layer1.0.weight"]).T)
    for name, value in after.items():
        assert value.dtype == torch.float32
        wanted = 0.1 * layer.mean(0) if name.endswith("mean") else 0.9 + 0.1 * layer.var(0)
        torch.testing.assert_close(value.double(), wanted, rtol=1e-4, atol=1e-5)


def test_masked_and_frozen_norms_compute_in_it_too() -> None:
    net = norm_net()
    columns = {"x": torch.randn(8, toy.FEATURES), "mask": torch.arange(8) < 6}
    frozen = {name: torch.tensor(True) for name in net.params}
    for one in (net.masked(), net.freezing(frozen)):
        exact, low = (n.apply(net.params, net.buffers, columns, train=True)[0][:6] for n in (one, one.computing_in(BF16)))
        torch.testing.assert_close(low, exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("backend", ["loop", "graph", "stacked"])
def test_a_run_in_it_learns_as_one_in_full_and_says_what_it_did(backend: str, tmp_path: Path) -> None:
    finishes = {
        precision: toy.go(methods.fedavg(rounds=3), tmp_path / precision, backend=backend, precision=precision)
        for precision in ("fp32", "bf16")
    }
    full, low = (finishes[name].state.shared["shared"] for name in ("fp32", "bf16"))
    assert all(value.dtype == torch.float32 for value in low.values())
    moved = torch.cat([(full[n] - toy.net().params[n]).flatten() for n in full])
    apart = torch.cat([(full[n] - low[n]).flatten() for n in full])
    assert 0 < apart.norm() < 0.1 * moved.norm()
    assert '"precision": "bf16"' in (tmp_path / "bf16" / "run.json").read_text()


def test_convolutions_learn_in_it() -> None:
    torch.manual_seed(0)
    net = resnet8(3, 4).computing_in(BF16)
    columns = {"x": torch.randn(8, 3, 8, 8), "y": torch.arange(8) % 4, "mask": torch.ones(8, dtype=torch.bool)}
    params = {n: v.requires_grad_() for n, v in net.params.items()}
    value, _ = net.loss(net.apply(params, net.buffers, columns, train=True)[0], columns)
    grads = torch.autograd.grad(value, list(params.values()))
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in grads) and value.dtype == torch.float32


def test_it_is_one_of_the_settings() -> None:
    assert Settings(precision="bf16").precision == "bf16"
