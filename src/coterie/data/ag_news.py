"""AG News (Zhang et al. 2015, arXiv 1509.01626): articles of four classes as token numbers or as bags of words.

No vocabulary is learned or downloaded: a word is a run of letters and digits in lower case, its number is
1 + crc32(word) mod (vocab - 1), and 0 is padding. That is the same on every client and tells nobody's words.
"""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coterie.data.table import Table
from coterie.tensors import Tensors

_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
_LEFTOVERS = ((" #39;", "'"), ("#39;", "'"), ("quot;", '"'), ("&lt;", "<"), ("&gt;", ">"), ("\\", " "))
_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True)
class UnitCounts:
    """Counts of words (bytes) become float rows of length 1, so that long and short texts weigh the same."""

    def __call__(self, columns: Tensors) -> Tensors:
        counts = columns["x"].float()
        return {**columns, "x": counts / counts.norm(dim=1, keepdim=True).clamp(min=1.0)}


def ag_news(folder: Path, form: Literal["bag", "tokens"] = "bag", vocab: int = 1024, length: int = 64) -> Table:
    """x is a bag of hashed words [vocab], or with `form="tokens"` the first `length` token numbers (int64, 0 = padding).

    `train*.csv` is the table and `test*.csv` or `part.csv` (rows of the official test file) its central test set; a
    folder with one file only has no central test set. Both layouts are read: class 1-4, title, description without
    a header, and a header with text and label 0-3.
    """
    if form not in ("bag", "tokens"):
        raise ValueError(f"form must be 'bag' or 'tokens', found '{form}'. Use one of these.")
    if vocab < 2 or length < 1:
        raise ValueError(f"vocab must be at least 2 and length at least 1, found {vocab} and {length}. Use 1024 and 64.")
    files = sorted(folder.glob("train*.csv")) + sorted(folder.glob("test*.csv")) + sorted(folder.glob("part.csv"))
    if not files:
        raise ValueError(f"Folder '{folder}' has no train*.csv, test*.csv or part.csv. Put AG News there as csv.")
    test = None
    if len(files) > 1 and not files[-1].name.startswith("train"):
        test = _table(files.pop(), form, vocab, length, None)
    return _table(files[0], form, vocab, length, test)


def _table(path: Path, form: str, vocab: int, length: int, test: Table | None) -> Table:
    texts, labels = read_articles(path)
    decode: Callable[[Tensors], Tensors] | None = UnitCounts() if form == "bag" else None
    x = hashed_bags(texts, vocab) if form == "bag" else token_numbers(texts, vocab, length)
    return Table("ag_news", {"x": x, "y": torch.tensor(labels)}, _CLASSES, decode=decode, central_test=test)


def read_articles(path: Path) -> tuple[list[str], list[int]]:
    """Texts and labels 0-3 from either layout."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if row]
    if not rows:
        raise ValueError(f"'{path}' is empty. Download it again.")
    if sorted(rows[0]) == ["label", "text"]:
        text, label = rows[0].index("text"), rows[0].index("label")
        pairs = [(row[text], row[label]) for row in rows[1:] if len(row) == 2]
        first, expected = 0, len(rows) - 1
    else:
        pairs = [(f"{row[1]} {row[2]}", row[0]) for row in rows if len(row) == 3]
        first, expected = 1, len(rows)
    wrong = next((label for _, label in pairs if label not in {str(first + c) for c in range(4)}), None)
    if len(pairs) != expected or wrong is not None:
        found = f"a class '{wrong}'" if wrong is not None else f"{expected - len(pairs)} rows with another number of fields"
        raise ValueError(
            f"'{path}' is no AG News file: found {found}. Use rows of class 1-4, title, description, "
            "or a header text,label with labels 0-3."
        )
    return [text for text, _ in pairs], [int(label) - first for _, label in pairs]


def words(text: str) -> list[str]:
    """Words in lower case, without the HTML leftovers of the original files."""
    for leftover, meant in _LEFTOVERS:
        text = text.replace(leftover, meant)
    return _WORD.findall(text.lower())


def word_number(word: str, vocab: int) -> int:
    return 1 + zlib.crc32(word.encode()) % (vocab - 1)


def token_numbers(texts: Sequence[str], vocab: int, length: int) -> Tensor:
    """The numbers of the first `length` words of each text, padded with 0."""
    out = np.zeros((len(texts), length), dtype=np.int64)
    for place, text in enumerate(texts):
        numbers = [word_number(word, vocab) for word in words(text)[:length]]
        out[place, : len(numbers)] = numbers
    return torch.from_numpy(out)


def hashed_bags(texts: Sequence[str], vocab: int) -> Tensor:
    """How often each word number occurs in each text, at most 255 times."""
    out = np.zeros((len(texts), vocab), dtype=np.uint8)
    for place, text in enumerate(texts):
        counts = np.bincount([word_number(word, vocab) for word in words(text)], minlength=vocab)
        out[place] = counts.clip(max=255)
    return torch.from_numpy(out)
