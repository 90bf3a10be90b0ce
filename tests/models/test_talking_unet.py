"""The denoiser's attention, time features and frames."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.models.talking.unet import CrossAttention, UNet, time_features

F64 = torch.float64


def attention(width: int = 16, context: int = 5) -> CrossAttention:
    torch.manual_seed(0)
    return CrossAttention(width, context).double()


def test_attention_equals_plain_loops() -> None:
    """Heads of eight channels; for each place a softmax over the tokens of its own frame."""
    layer, g = attention(), torch.Generator().manual_seed(1)
    h, tokens = torch.randn(2, 3, 16, 2, 2, generator=g, dtype=F64), torch.randn(2, 3, 4, 5, generator=g, dtype=F64)
    found = layer(h, tokens)
    w = {name: value.detach() for name, value in layer.named_parameters()}
    for clip in range(2):
        for frame in range(3):
            x = h[clip, frame]
            normal = (x - x.mean()) / (x.var(unbiased=False) + layer.norm.eps).sqrt()
            normal = normal * w["norm.weight"][:, None, None] + w["norm.bias"][:, None, None]
            for i in range(2):
                for j in range(2):
                    q, seen = w["q.weight"] @ normal[:, i, j], []
                    for head in range(2):
                        own = slice(8 * head, 8 * head + 8)
                        asked = [float(q[own] @ (w["k.weight"] @ token)[own]) / math.sqrt(8) for token in tokens[clip, frame]]
                        share = [math.exp(a) / sum(math.exp(b) for b in asked) for a in asked]
                        seen.append(sum(s * (w["v.weight"] @ token)[own] for s, token in zip(share, tokens[clip, frame], strict=True)))
                    expected = x[:, i, j] + w["out.weight"] @ torch.cat(seen) + w["out.bias"]
                    torch.testing.assert_close(found[clip, frame, :, i, j], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("side", [2, 16])
def test_what_a_place_sees_does_not_shrink_with_the_number_of_places(side: int) -> None:
    """With equal tokens every place sees exactly their value; normalised over places it would see 1/N of it."""
    layer, g = attention(), torch.Generator().manual_seed(1)
    token = torch.randn(5, generator=g, dtype=F64)
    h = torch.randn(1, 1, 16, side, side, generator=g, dtype=F64)
    seen = layer(h, token.expand(1, 1, 3, 5)) - h
    value = layer.out(layer.v(token))
    torch.testing.assert_close(seen, value.view(1, 1, 16, 1, 1).expand_as(seen), rtol=1e-10, atol=1e-10)


def test_time_features_are_sines_and_cosines_of_a_geometric_row_of_rates() -> None:
    found = time_features(torch.tensor([0, 3]), 4, F64)
    rates = [1.0, 1000.0**-0.5]
    expected = [[math.sin(t * r) for r in rates] + [math.cos(t * r) for r in rates] for t in (0, 3)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=F64), rtol=1e-12, atol=1e-12)


def test_in_half_precision_neighbouring_times_still_differ() -> None:
    found = time_features(torch.arange(1000), 32, torch.bfloat16).float()
    assert len(torch.unique(found, dim=0)) == 1000


def test_a_frame_is_told_by_its_own_sound() -> None:
    """Changing one frame's sound changes that frame most: the conditions do not get mixed up between frames."""
    torch.manual_seed(0)
    net, g = UNet(2, 8, 8, 4).double(), torch.Generator().manual_seed(1)
    z, sound = torch.randn(1, 5, 2, 4, 4, generator=g, dtype=F64), torch.randn(1, 5, 8, generator=g, dtype=F64)
    identity = torch.randn(1, 17, 8, generator=g, dtype=F64)
    other = sound.clone()
    other[0, 3] += torch.randn(8, generator=g, dtype=F64)
    with torch.no_grad():
        moved = (net(z, torch.tensor([2]), other, identity) - net(z, torch.tensor([2]), sound, identity)).flatten(2).norm(dim=2)[0]
    assert int(moved.argmax()) == 3 and float(moved[3]) > 3 * float(moved[[0, 1, 2, 4]].max())
