"""Texts as numbers: a word is a run of letters and digits in lower case, whatever the data set.

By default no vocabulary is learned or downloaded: a word's number is 1 + crc32(word) mod (vocab - 1). That is the same on every
client and tells nobody's words. A `Vocabulary` is learned from public texts only, which no client holds. 0 is padding.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from coterie.tensors import Tensors

_LEFTOVERS = ((" #39;", "'"), ("#39;", "'"), ("quot;", '"'), ("&lt;", "<"), ("&gt;", ">"), ("\\", " "))
_WORD = re.compile(r"[a-z0-9]+")
_UNKNOWN = 1


@dataclass(frozen=True)
class UnitCounts:
    """Counts of words (bytes) become float rows of length 1, so that long and short texts weigh the same."""

    def __call__(self, columns: Tensors) -> Tensors:
        counts = columns["x"].float()
        return {**columns, "x": counts / counts.norm(dim=1, keepdim=True).clamp(min=1.0)}


@dataclass(frozen=True)
class Vocabulary:
    """The most frequent words of public texts are numbered from 2 on; all others share the number 1."""

    words: tuple[str, ...]

    @classmethod
    def learned(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """At most `size` numbers, with those of padding and of unknown words; ties go by the alphabet."""
        counts = Counter(word for text in texts for word in words(text))
        return cls(tuple(sorted(counts, key=lambda word: (-counts[word], word))[: max(size - 2, 0)]))

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, 2)}

    def number(self, word: str) -> int:
        return self.numbers.get(word, _UNKNOWN)


def words(text: str) -> list[str]:
    """Words in lower case, without the HTML leftovers of the original files."""
    for leftover, meant in _LEFTOVERS:
        text = text.replace(leftover, meant)
    return _WORD.findall(text.lower())


def word_number(word: str, vocab: int) -> int:
    return 1 + zlib.crc32(word.encode()) % (vocab - 1)


def token_numbers(texts: Sequence[str], vocab: int, length: int, vocabulary: Vocabulary | None = None) -> tuple[Tensor, int]:
    """The numbers of the first `length` words of each text, padded with 0, and how many texts are longer and were cut there."""
    out = np.zeros((len(texts), length), dtype=np.int64)
    cut = 0
    for place, text in enumerate(texts):
        found = words(text)
        cut += len(found) > length
        numbers = [word_number(word, vocab) if vocabulary is None else vocabulary.number(word) for word in found[:length]]
        out[place, : len(numbers)] = numbers
    return torch.from_numpy(out), cut


def hashed_bags(texts: Sequence[str], vocab: int) -> Tensor:
    """How often each word number occurs in each text, at most 255 times."""
    out = np.zeros((len(texts), vocab), dtype=np.uint8)
    for place, text in enumerate(texts):
        counts = np.bincount([word_number(word, vocab) for word in words(text)], minlength=vocab)
        out[place] = counts.clip(max=255)
    return torch.from_numpy(out)


def is_public(text: str, share: float) -> bool:
    """Whether a text belongs to the public `share`, by its own content: the same texts on every machine and for every seed."""
    return zlib.crc32(text.encode()) < share * 2**32
