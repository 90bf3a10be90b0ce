"""Layer-wise relevance propagation: the true class's logit, handed back layer by layer to the pixels.

Bach et al., "On Pixel-Wise Explanations for Non-Linear Classifier Decisions by Layer-Wise Relevance Propagation",
PLoS ONE 2015. The rules are those of FedXDS (zennit's EpsilonPlusFlat): Flat for the first layer, ZPlus for other
convolutions, Epsilon 1e-6 for linear layers, activations pass, pooling and residual sums share in proportion to
their inputs. Batch norms are folded into the convolutions before them, for which LRP has rules:

    w' = w gamma / sqrt(var + eps),   b' = beta + (b - mean) gamma / sqrt(var + eps).

Relevance starts as the true class's logit. A start of 1 would differ by the factor 1 / logit, so for an example whose
logit is negative it turns the map upside down; with the logit a map always says what raised it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.attribution.gradient import pull_back

_LINEAR = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_STABILIZER = 1e-6


@dataclass(frozen=True)
class Layers:
    """Which classes of a net play a part that LRP must know by name.

    `norms` have weight, bias, running_mean, running_var and eps; `sums` add their two inputs;
    `pools` average without weights.
    """

    norms: tuple[type[nn.Module], ...] = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    sums: tuple[type[nn.Module], ...] = ()
    pools: tuple[type[nn.Module], ...] = ()


def lrp(module: nn.Module, x: Tensor, y: Tensor, layers: Layers = Layers(), *, batch_size: int = 128) -> Tensor:
    """A signed map [N, H, W] for images `x` [N, C, H, W] and their labels; the module itself stays as it is."""
    check_lrp(module)
    zennit = _Zennit.load()
    if len(x) == 0:
        return x.new_zeros(0, *x.shape[2:])
    prepared = fold_batch_norms(module, x[:1], layers.norms).requires_grad_(False)
    for name, part in list(prepared.named_modules()):
        if isinstance(part, layers.sums):
            _put(prepared, name, _StackedSum(zennit.sum()))
    pools = [(layers.pools, zennit.norm(stabilizer=_STABILIZER))]
    composite = zennit.composite(epsilon=_STABILIZER, stabilizer=_STABILIZER, layer_map=pools)
    with composite.context(prepared):
        return pull_back(prepared, x, y, _logit, batch_size).sum(1)


def check_lrp(module: nn.Module) -> None:
    """Find before the run what LRP can't do."""
    _Zennit.load()
    first = next((part for part in module.modules() if isinstance(part, _LINEAR)), None)
    if not isinstance(first, nn.Conv2d):
        raise ValueError(
            f"LRP with the Flat rule needs a convolution first, found {type(first).__name__}: every pixel that feeds a linear "
            "layer would be equally relevant. Use a convolutional net, or relevance='gradient'."
        )


def fold_batch_norms(module: nn.Module, example: Tensor, norms: tuple[type[nn.Module], ...]) -> nn.Module:
    """A copy in evaluation mode whose batch norms are merged into the layers before them, with the same outputs.

    `example` is one input, to see which layer feeds which norm.
    """
    folded = copy.deepcopy(module).eval()
    before, fed_by = _trace(folded, example, norms)
    for norm_name, layer_name in fed_by.items():
        norm: Any = folded.get_submodule(norm_name)
        layer: Any = folded.get_submodule(layer_name)
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        bias = torch.zeros_like(norm.bias) if layer.bias is None else layer.bias
        shape = (-1,) + (1,) * (layer.weight.dim() - 1)
        layer.weight = nn.Parameter((layer.weight * scale.view(shape)).detach())
        layer.bias = nn.Parameter((norm.bias + (bias - norm.running_mean) * scale).detach())
        _put(folded, norm_name, nn.Identity())
    with torch.no_grad():
        change = float((folded(example) - before).abs().max())
    if not change <= 1e-3 * max(1.0, float(before.abs().max())):
        raise ValueError(
            f"Folding the batch norms changed the outputs by {change:.2g}. A layer before a batch norm must feed nothing else; "
            "build the net that way, or use relevance='gradient'."
        )
    return folded


def _trace(module: nn.Module, example: Tensor, norms: tuple[type[nn.Module], ...]) -> tuple[Tensor, dict[str, str]]:
    """The outputs, and for every norm the layer that feeds it, seen from one forward pass."""
    outputs: list[tuple[str, Tensor]] = []  # holds the tensors, so that "is" can't meet a reused address
    fed_by: dict[str, str] = {}
    handles = []

    def watch(name: str, part: nn.Module) -> Any:
        def saw(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if isinstance(part, norms):
                feeding = [layer for layer, value in outputs if value is inputs[0]]
                if not feeding:
                    raise ValueError(
                        f"LRP has no rule for the batch norm '{name}': no convolution or linear layer comes right before it. "
                        "Put one there, or use relevance='gradient'."
                    )
                fed_by[name] = feeding[0]
            elif isinstance(part, _LINEAR):
                outputs.append((name, output))

        return saw

    for name, part in module.named_modules():
        handles.append(part.register_forward_hook(watch(name, part)))
    try:
        with torch.no_grad():
            out: Tensor = module(example)
    finally:
        for handle in handles:
            handle.remove()
    return out, fed_by


class _StackedSum(nn.Module):
    """x + y as a sum over one stacked tensor, because a zennit rule sees a module's first input only."""

    def __init__(self, total: nn.Module) -> None:
        super().__init__()
        self.total = total

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.total(torch.stack([x, y], dim=-1))
        return out


def _logit(logits: Tensor) -> Tensor:
    return logits


def _put(module: nn.Module, name: str, new: nn.Module) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, new)


@dataclass(frozen=True)
class _Zennit:
    """The three names that we use of zennit, which is an extra."""

    composite: Any
    norm: Any
    sum: Any

    @classmethod
    def load(cls) -> _Zennit:
        try:
            from zennit.composites import EpsilonPlusFlat
            from zennit.layer import Sum
            from zennit.rules import Norm
        except ImportError:
            raise ValueError("LRP relevance needs zennit. Install it with: pip install 'coterie[xai]'") from None
        return cls(EpsilonPlusFlat, Norm, Sum)
