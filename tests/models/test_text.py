"""The text transformer against torch's own layers, its padding, its window, its dropout, and many clients at once."""

import math

import pytest
import torch
from torch import nn

from coterie.models.text import places, small_transformer, text_transformer, word_mean


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return text_transformer(3, vocab=50, length=9, dim=16, heads=4, layers=2, hidden=24, dropout=0.0).to("cpu", torch.float64)


def tokens(count=5, length=9, seed=1):
    found = torch.randint(1, 50, (count, length), generator=torch.Generator().manual_seed(seed))
    for row in range(count):
        found[row, length - row :] = 0  # row r has r words of padding
    return found


def torchs_own(net, x):
    """nn.TransformerEncoderLayer with the same values, and positions by their formula."""
    p, dim = net.params, 16
    x = torch.cat([torch.zeros(len(x), 1, dtype=torch.long), x], 1)
    hidden = p["encoder.embedding.weight"][x] * math.sqrt(dim)
    for place in range(x.shape[1]):
        for i in range(0, dim, 2):
            angle = place / 10_000 ** (i / dim)
            hidden[:, place, i] += math.sin(angle)
            hidden[:, place, i + 1] += math.cos(angle)
    padding = x == 0
    padding[:, 0] = False
    for number in range(2):
        layer = nn.TransformerEncoderLayer(dim, 4, 24, 0.0, batch_first=True).double()
        own = f"encoder.layers.{number}."
        layer.load_state_dict(
            {
                "self_attn.in_proj_weight": p[f"{own}attention.qkv.weight"], "self_attn.in_proj_bias": p[f"{own}attention.qkv.bias"],
                "self_attn.out_proj.weight": p[f"{own}attention.out.weight"], "self_attn.out_proj.bias": p[f"{own}attention.out.bias"],
                **{f"{name}.{leaf}": p[f"{own}{name}.{leaf}"] for name in ("norm1", "norm2", "linear1", "linear2") for leaf in ("weight", "bias")},
            }
        )  # fmt: skip
        hidden = layer.train()(hidden, src_key_padding_mask=padding)
    return hidden[:, 0]


def test_layers_are_torchs(net):
    x = tokens()
    z, _ = net.encode(net.params, {}, {"x": x}, train=True)
    assert (z - torchs_own(net, x)).abs().max() < 1e-6  # its own kernel may round positions in float32


def test_padding_counts_for_nothing(net):
    x = tokens()[3:4]  # six words
    z = [net.encode(net.params, {}, {"x": rows}, train=False)[0] for rows in (x, x[:, :6])]
    assert (z[0] - z[1]).abs().max() < 1e-9
    other = x.clone()
    other[0, 2] = 1 + other[0, 2] % 49
    assert (net.encode(net.params, {}, {"x": other}, train=False)[0] - z[0]).abs().max() > 1e-3


def test_a_text_without_words_has_a_feature(net):
    z, _ = net.encode(net.params, {}, {"x": torch.zeros(2, 9, dtype=torch.long)}, train=False)
    assert torch.isfinite(z).all() and torch.equal(z[0], z[1])


def test_positions_matter(net):
    x = tokens()[:1]
    z = [net.encode(net.params, {}, {"x": rows}, train=False)[0] for rows in (x, x.flip(1))]
    assert (z[0] - z[1]).abs().max() > 1e-3 and places(4, 6).shape == (4, 6)


def test_many_clients_at_once_equal_one_at_a_time(net):
    """What the stacked backend needs of a net without dropout."""
    xs = torch.stack([tokens(seed=s) for s in range(3)])

    def gradient(p, x):
        return torch.func.grad(lambda q: net.apply(q, {}, {"x": x}, train=True)[0].square().sum())(p)

    stacked = torch.func.vmap(gradient, in_dims=(None, 0))(net.params, xs)
    for i, x in enumerate(xs):
        for name, value in gradient(net.params, x).items():
            assert (stacked[name][i] - value).abs().max() < 1e-9


def test_dropout_draws_in_training_only():
    torch.manual_seed(0)
    net = text_transformer(3, vocab=50, length=9, dim=16, heads=4, layers=1, hidden=24, dropout=0.5)
    x = {"x": tokens()}
    first, second = (net.apply(net.params, {}, x, train=True)[0] for _ in range(2))
    assert not torch.equal(first, second)
    first, second = (net.apply(net.params, {}, x, train=False)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_longer_texts_and_floats_are_refused_with_a_cure(net):
    with pytest.raises(ValueError, match=r"reads 9 words, found texts of 12\. Load them with length=9"):
        net.encode(net.params, {}, {"x": torch.ones(1, 12, dtype=torch.long)}, train=False)
    with pytest.raises(ValueError, match=r"A text model reads token numbers \[N, length\], found torch\.float32 .* form='tokens'"):
        net.encode(net.params, {}, {"x": torch.ones(1, 9)}, train=False)
    with pytest.raises(ValueError, match=r"multiple of heads, found dim 10 and 4 heads"):
        text_transformer(2, 20, 5, dim=10, heads=4)


def test_a_mean_of_words_by_hand():
    """Sum of embeddings over the root of how many there are, one hidden layer with ReLU."""
    net = word_mean(3, 30).to("cpu", torch.float64)
    p = net.params
    x = torch.tensor([[4, 7, 4, 0], [9, 0, 0, 0], [0, 0, 0, 0]])
    z, _ = net.encode(p, {}, {"x": x}, train=True)
    for row, text in enumerate(([4, 7, 4], [9], [])):
        total = sum((p["encoder.embedding.weight"][word] for word in text), torch.zeros(64, dtype=torch.float64))
        hidden = total / max(len(text), 1) ** 0.5 @ p["encoder.hidden.weight"].T + p["encoder.hidden.bias"]
        assert (z[row] - hidden.clamp(min=0)).abs().max() < 1e-12


def test_the_small_one_draws_nothing():
    net = small_transformer(4, 30, 8)
    assert not any(isinstance(part, nn.Dropout) and part.p for part in net.bind(net.params, {}).modules())
