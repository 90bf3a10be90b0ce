"""Encoders of text, from token numbers (0 is padding): a transformer with a class token, and a mean of words.

"Attention is all you need" (Vaswani et al. 2017), layers as torch.nn.TransformerEncoderLayer has them by default (norm after
each sum, ReLU), written out because torch's own takes paths that depend on the data and can't be stacked.

The class token is number 0: it stands in front of every text, and padding, which has the same number, is attended to by
nobody. So it costs no weights of its own. Positions are sines and cosines, without weights as well.

Dropout draws by itself, from torch's generator, which every ask seeds: results are repeatable, but clients are then computed
one after another (docs/architecture.md, Backends). The small transformer has none by default.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.models.losses import CrossEntropy
from coterie.models.net import EncoderHead, Net, TaskLoss

_CLASS_TOKEN = 0


class SelfAttention(nn.Module):
    """Every word looks at all words that are no padding."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        count, length, dim = x.shape
        q, k, v = (part.reshape(count, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(dim // self.heads)
        scores = scores.masked_fill(~real[:, None, None, :], torch.finfo(scores.dtype).min)
        mixed = self.dropout(scores.softmax(dim=3)) @ v
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(count, length, dim))
        return out


class TransformerLayer(nn.Module):
    """Attention and two linear layers, each added to its input and normalised."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(dim, heads, dropout)
        self.norm1 = nn.LayerNorm(dim)
        self.linear1 = nn.Linear(dim, hidden)
        self.linear2 = nn.Linear(hidden, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x, real)))
        moved = self.linear2(self.dropout(F.relu(self.linear1(x))))
        out: Tensor = self.norm2(x + self.dropout(moved))
        return out


class TextEncoder(nn.Module):
    """Token numbers [N, L] to the class token's feature [N, dim]."""

    def __init__(self, vocab: int, dim: int, heads: int, layers: int, hidden: int, length: int, dropout: float) -> None:
        super().__init__()
        if dim % heads or dim % 2:
            raise ValueError(f"dim must be even and a multiple of heads, found dim {dim} and {heads} heads. Use for example 64 and 4.")
        self.length = length
        self.embedding = nn.Embedding(vocab, dim)
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)
        self.register_buffer("places", places(length + 1, dim), persistent=False)
        self.places: Tensor
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(TransformerLayer(dim, heads, hidden, dropout) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        check_tokens(tokens)
        if tokens.shape[1] > self.length:
            raise ValueError(
                f"This transformer reads {self.length} words, found texts of {tokens.shape[1]}. "
                f"Load them with length={self.length}, or build it with length={tokens.shape[1]}."
            )
        tokens = F.pad(tokens, (1, 0), value=_CLASS_TOKEN)
        real = F.pad(tokens[:, 1:] != 0, (1, 0), value=True)
        x = self.embedding(tokens) * math.sqrt(self.places.shape[1])
        x = self.dropout(x + self.places[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x, real)
        feature: Tensor = x[:, 0]
        return feature


def places(length: int, dim: int) -> Tensor:
    """sin and cos of the place, over wavelengths from 2 pi to 10,000 * 2 pi."""
    angle = torch.arange(length)[:, None] * torch.exp(torch.arange(0, dim, 2) * (-math.log(10_000.0) / dim))
    return torch.stack([angle.sin(), angle.cos()], dim=2).reshape(length, dim)


class MeanOfWords(nn.Module):
    """The mean of a text's word embeddings, then one hidden layer: order counts for nothing."""

    def __init__(self, vocab: int, dim: int, features: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)
        self.hidden = nn.Linear(dim, features)

    def forward(self, tokens: Tensor) -> Tensor:
        check_tokens(tokens)
        real = (tokens != 0).to(self.embedding.weight.dtype)[:, :, None]
        mean = (self.embedding(tokens) * real).sum(1) / real.sum(1).clamp(min=1).sqrt()  # the root, so that a long text's sum is no shorter
        out: Tensor = F.relu(self.hidden(mean))
        return out


def check_tokens(tokens: Tensor) -> None:
    if tokens.is_floating_point() or tokens.dim() != 2:
        raise ValueError(
            f"A text model reads token numbers [N, length], found {tokens.dtype} of shape {list(tokens.shape)}. "
            "Load the texts with form='tokens'."
        )


def word_mean(num_classes: int, vocab: int = 4096, length: int = 48, loss: TaskLoss = CrossEntropy()) -> Net:
    """64 numbers per word and 64 features: it learns in seconds what the small transformer needs minutes for."""
    return Net(EncoderHead(MeanOfWords(vocab, 64, 64), nn.Linear(64, num_classes), 64), loss)


def text_transformer(
    num_classes: int, vocab: int = 32_000, length: int = 200, *, dim: int = 512, heads: int = 8, layers: int = 2,
    hidden: int = 2048, dropout: float = 0.1, loss: TaskLoss = CrossEntropy(),
) -> Net:  # fmt: skip
    """FABLE's text model: 22,688,768 weights in the encoder. Texts of at most `length` words."""
    encoder = TextEncoder(vocab, dim, heads, layers, hidden, length, dropout)
    return Net(EncoderHead(encoder, nn.Linear(dim, num_classes), dim), loss)


def small_transformer(num_classes: int, vocab: int = 4096, length: int = 48, loss: TaskLoss = CrossEntropy()) -> Net:
    """One layer, 64 numbers per word, 4 heads, no dropout: for minutes on a CPU (295,616 weights in the encoder)."""
    return text_transformer(num_classes, vocab, length, dim=64, heads=4, layers=1, hidden=128, dropout=0.0, loss=loss)
