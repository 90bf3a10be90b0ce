"""Adapters: nothing at first, merged or beside the weight the same, as many numbers as published (PT-T3)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from coterie.models.talking.lora import adapted_weights, fresh_adapter, merged, split_factors
from coterie.randomness import Draw, Key, draw

F64 = torch.float64
KEY = Key(0, ("adapter",))


def attention(width: int, context: int) -> dict[str, Tensor]:
    """The four adapted matrices of one cross-attention, [d_out, d_in], and what is no matrix."""
    g = torch.Generator().manual_seed(0)
    shapes = {"q": (width, width), "k": (width, context), "v": (width, context), "out": (width, width)}
    weights = {f"unet.attn.{name}.weight": torch.randn(*shape, generator=g, dtype=F64) for name, shape in shapes.items()}
    return {**weights, "unet.attn.out.bias": torch.zeros(width, dtype=F64), "unet.conv.weight": torch.zeros(2, 2, 3, 3, dtype=F64)}


PARAMS = attention(6, 10)
NAMES = ("unet.attn.q.weight", "unet.attn.k.weight")


def trained(params: dict[str, Tensor], rank: int = 3) -> dict[str, Tensor]:
    """An adapter whose B is no longer 0."""
    g = torch.Generator().manual_seed(1)
    fresh = fresh_adapter(params, NAMES, rank, KEY)
    return {name: torch.randn(value.shape, generator=g, dtype=F64) if name.endswith(".B") else value for name, value in fresh.items()}


@pytest.mark.parametrize(
    ("base", "condition", "rank", "count"), [(64, 256, 16, 28_672), (64, 256, 8, 14_336), (32, 128, 8, 7_168)]
)
def test_t3_counts_of_the_official_code(base: int, condition: int, rank: int, count: int) -> None:
    """Its one attention is 2 base wide and looks at [c; e], two conditions side by side (spec/privfedtalk.md, 4 and 4b)."""
    params = attention(2 * base, 2 * condition)
    adapter = fresh_adapter(params, adapted_weights(params, ("q", "k", "v", "out")), rank, KEY)
    assert sum(value.numel() for value in adapter.values()) == count
    assert adapter["unet.attn.k.A"].shape == (rank, 2 * condition) and adapter["unet.attn.k.B"].shape == (2 * base, rank)


def test_t3_a_fresh_adapter_changes_nothing() -> None:
    adapter = fresh_adapter(PARAMS, NAMES, 3, KEY)
    changed = merged(PARAMS, adapter, 1000.0)
    assert changed.keys() == PARAMS.keys() and all(torch.equal(changed[name], PARAMS[name]) for name in PARAMS)
    assert all((float(value.abs().max()) == 0) == name.endswith(".B") for name, value in adapter.items())  # A is not 0


def test_t3_merged_equals_beside_the_weight() -> None:
    """W x + scale B (A x), place by place; the weight it came from stays as it was."""
    adapter, scale, before = trained(PARAMS), 2.5, {name: value.clone() for name, value in PARAMS.items()}
    changed, g = merged(PARAMS, adapter, scale), torch.Generator().manual_seed(2)
    for name in NAMES:
        weight, layer = PARAMS[name].tolist(), name.removesuffix(".weight")
        down, up = adapter[f"{layer}.A"].tolist(), adapter[f"{layer}.B"].tolist()
        x = torch.randn(len(weight[0]), generator=g, dtype=F64).tolist()
        inner = [sum(a * b for a, b in zip(row, x, strict=True)) for row in down]
        beside = [
            sum(w * b for w, b in zip(row, x, strict=True)) + scale * sum(u * b for u, b in zip(own, inner, strict=True))
            for row, own in zip(weight, up, strict=True)
        ]
        torch.testing.assert_close(changed[name] @ torch.tensor(x, dtype=F64), torch.tensor(beside, dtype=F64), rtol=1e-12, atol=1e-12)
    assert all(torch.equal(PARAMS[name], before[name]) for name in PARAMS)
    assert all(torch.equal(changed[name], PARAMS[name]) for name in PARAMS.keys() - set(NAMES))


def test_what_an_adapter_adds_has_its_rank() -> None:
    added = merged(PARAMS, trained(PARAMS), 1.0)[NAMES[1]] - PARAMS[NAMES[1]]
    assert int(torch.linalg.matrix_rank(added, tol=1e-9)) == 3


@pytest.mark.parametrize("d_in", [16, 400])
def test_a_is_kaiming_uniform(d_in: int) -> None:
    """With a = sqrt(5) the bound sqrt(6 / ((1 + a^2) d_in)) is 1 / sqrt(d_in): variance 1 / (3 d_in)."""
    params = {"q.weight": torch.zeros(4, d_in, dtype=F64)}
    a, bound = fresh_adapter(params, ["q.weight"], 4000, KEY)["q.A"], math.sqrt(6 / (6 * d_in))
    assert 0.999 * bound < float(a.max()) <= bound and -bound <= float(a.min()) < -0.999 * bound
    count = a.numel()
    assert abs(float(a.mean())) < 5 * bound / math.sqrt(3 * count)
    assert float(a.var()) == pytest.approx(bound**2 / 3, rel=5 * math.sqrt(0.8 / count))  # kurtosis 9/5 of a uniform number


def test_an_adapter_depends_on_key_and_layer_alone() -> None:
    """So that whoever freezes A need not send it; in float32 it is the same one, rounded."""
    one, again = (fresh_adapter(PARAMS, NAMES, 3, KEY) for _ in range(2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    alone = fresh_adapter({**PARAMS, "other.q.weight": PARAMS[NAMES[0]]}, NAMES[:1], 3, KEY)
    assert torch.equal(alone["unet.attn.q.A"], one["unet.attn.q.A"])
    single = fresh_adapter({name: value.float() for name, value in PARAMS.items()}, NAMES, 3, KEY)
    assert all(torch.equal(value, one[name].float()) for name, value in single.items())
    u = draw(Key(0, ("adapter", "unet.attn.q")), 0, Draw("uniform", (3, 6)), 0, torch.device("cpu"), F64)
    torch.testing.assert_close(one["unet.attn.q.A"], (2 * u - 1) / math.sqrt(6), rtol=1e-14, atol=0)
    other = fresh_adapter(PARAMS, NAMES, 3, Key(1, ("adapter",)))
    assert not torch.equal(other["unet.attn.q.A"], one["unet.attn.q.A"])
    q, k = (one[f"unet.attn.{layer}.A"].flatten()[:18] * math.sqrt(d_in) for layer, d_in in (("q", 6), ("k", 10)))
    assert float((q - k).abs().min()) > 1e-6  # layers have numbers of their own


def test_factors_are_split_by_what_is_trained_where_a_is_frozen() -> None:
    adapter = trained(PARAMS)
    down, up = split_factors(adapter)
    assert set(down) == {"unet.attn.q.A", "unet.attn.k.A"} and set(up) == {"unet.attn.q.B", "unet.attn.k.B"}
    assert all(adapter[name] is value for name, value in {**down, **up}.items())


def test_layers_are_found_by_their_last_name_wherever_they_are() -> None:
    params = {**PARAMS, "unet.mid.q.weight": PARAMS[NAMES[0]], "unet.q.other.weight": PARAMS[NAMES[0]]}
    assert adapted_weights(params, ("q",)) == ("unet.attn.q.weight", "unet.mid.q.weight")
    assert adapted_weights(PARAMS, ("k", "q")) == NAMES  # in the order of the net, so that everybody has the same one


@pytest.mark.parametrize(
    ("layers", "missing"), [(("q", "query"), r"\['query'\]"), (("conv",), r"\['conv'\]"), ((), "anything")]
)
def test_layers_that_are_no_matrices_are_refused_and_the_others_named(layers: tuple[str, ...], missing: str) -> None:
    with pytest.raises(ValueError, match=rf"found none called {missing}\. Choose from \['k', 'out', 'q', 'v'\]"):
        adapted_weights(PARAMS, layers)
