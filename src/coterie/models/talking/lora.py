"""Low-rank adapters on named weights, as plain tensors: W' = W + (alpha / r) B A.

Hu et al., "LoRA: Low-rank adaptation of large language models", ICLR 2022, arXiv 2106.09685. A is drawn
Kaiming-uniform with a = sqrt(5), that is U(-1/sqrt(d_in), 1/sqrt(d_in)), and B = 0, so a fresh adapter changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from coterie.randomness import Draw, Key, draw
from coterie.tensors import Tensors

_DOWN, _UP = ".A", ".B"


def adapted_weights(params: Mapping[str, Tensor], layers: Iterable[str]) -> tuple[str, ...]:
    """The names of all matrices whose layer is called one of `layers` ("q" finds "unet.attn1.q.weight")."""
    wanted = set(layers)
    found = [n for n, value in params.items() if n.endswith(".weight") and value.dim() == 2 and n.split(".")[-2] in wanted]
    missing = sorted(wanted - {name.split(".")[-2] for name in found})
    if missing or not found:
        known = sorted({n.split(".")[-2] for n, value in params.items() if n.endswith(".weight") and value.dim() == 2})
        raise ValueError(f"Adapters need linear layers, found none called {missing or 'anything'}. Choose from {known}.")
    return tuple(found)


def fresh_adapter(params: Mapping[str, Tensor], names: Iterable[str], rank: int, key: Key) -> Tensors:
    """A [rank, d_in] and B [d_out, rank] for each of these weights; the same for everybody who has the key."""
    adapter: Tensors = {}
    for name in names:
        weight, layer = params[name], name.removesuffix(".weight")
        uniform = draw(key.fold(layer), 0, Draw("uniform", (rank, weight.shape[1])), 0, weight.device, torch.float64)
        adapter[layer + _DOWN] = ((2.0 * uniform - 1.0) / math.sqrt(weight.shape[1])).to(weight.dtype)
        adapter[layer + _UP] = weight.new_zeros(weight.shape[0], rank)
    return adapter


def merged(params: Mapping[str, Tensor], adapter: Mapping[str, Tensor], scale: float) -> Tensors:
    """The weights with the adapter inside; a weight without one stays as it is."""
    changed = {}
    for name, down in adapter.items():
        if name.endswith(_DOWN):
            layer = name.removesuffix(_DOWN)
            changed[f"{layer}.weight"] = params[f"{layer}.weight"] + scale * (adapter[layer + _UP] @ down)  # equation 7
    return {**params, **changed}


def split_factors(adapter: Mapping[str, Tensor]) -> tuple[Tensors, Tensors]:
    """All A, and all B."""
    down = {name: value for name, value in adapter.items() if name.endswith(_DOWN)}
    return down, {name: value for name, value in adapter.items() if name not in down}
