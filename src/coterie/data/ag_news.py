"""AG News (Zhang et al. 2015, arXiv 1509.01626): articles of four classes as token numbers or as bags of words.

No vocabulary is learned or downloaded: a word is a run of letters and digits in lower case, its number is
1 + crc32(word) mod (vocab - 1), and 0 is padding. That is the same on every client and tells nobody's words.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coterie.data.files import csv_rows
from coterie.data.table import Table
from coterie.tensors import Tensors

_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
_LEFTOVERS = ((" #39;", "'"), ("#39;", "'"), ("quot;", '"'), ("&lt;", "<"), ("&gt;", ">"), ("\\", " "))
_FILES = (("train*.csv",), ("test*.csv", "part.csv"))  # part.csv: rows of the official test file
_HEADER_OF_THREE = ["class index", "title", "description"]
_ADVICE = "Use rows of class 1-4, title, description, or a header text,label with labels 0-3."
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
    train, test = _files(folder)
    return _table(train, form, vocab, length, None if test is None else _table(test, form, vocab, length, None))


def _files(folder: Path) -> tuple[Path, Path | None]:
    """The file of the table, and that of its central test set where there is one."""
    if folder.is_file():
        return folder, None
    train, test = ([path for pattern in patterns for path in sorted(folder.glob(pattern))] for patterns in _FILES)
    for found in (train, test):
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise ValueError(f"Folder '{folder}' has {len(found)} files for one split: {names}. Leave one of them there.")
    if not train + test:
        raise ValueError(f"Folder '{folder}' has no train*.csv, test*.csv or part.csv. Put AG News there as csv.")
    return (train[0], test[0] if test else None) if train else (test[0], None)


def _table(path: Path, form: str, vocab: int, length: int, test: Table | None) -> Table:
    texts, labels = read_articles(path)
    decode: Callable[[Tensors], Tensors] | None = UnitCounts() if form == "bag" else None
    x = hashed_bags(texts, vocab) if form == "bag" else token_numbers(texts, vocab, length)
    return Table("ag_news", {"x": x, "y": torch.tensor(labels)}, _CLASSES, decode=decode, central_test=test)


def read_articles(path: Path) -> tuple[list[str], list[int]]:
    """Texts and labels 0-3 from either layout."""
    rows = csv_rows(path)
    head = [name.strip().lower() for name in rows[0][1]] if rows else []
    if head == _HEADER_OF_THREE:  # as on Kaggle; the original has no header
        rows = rows[1:]
    if not rows:
        raise ValueError(f"'{path}' has no articles. Download it again.")
    if sorted(head) == ["label", "text"]:
        text, label, first = head.index("text"), head.index("label"), 0
        cells = [(line, row[text : text + 1], row[label]) for line, row in _of_width(rows[1:], 2, path)]
    else:
        first = 1
        cells = [(line, row[1:], row[0]) for line, row in _of_width(rows, 3, path)]
    known = {str(first + number): number for number in range(len(_CLASSES))}
    for line, _, label_text in cells:
        if label_text.strip() not in known:
            raise ValueError(f"'{path}' is no AG News file: line {line} has the class '{label_text}'. {_ADVICE}")
    return [" ".join(texts) for _, texts, _ in cells], [known[label_text.strip()] for _, _, label_text in cells]


def _of_width(rows: list[tuple[int, list[str]]], width: int, path: Path) -> list[tuple[int, list[str]]]:
    for line, row in rows:
        if len(row) != width:
            raise ValueError(f"'{path}' is no AG News file: line {line} has {len(row)} fields, not {width}. {_ADVICE}")
    return rows


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
