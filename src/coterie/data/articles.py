"""News articles of a few classes in the layouts that they are published in, as one table.

csv        class 1, 2, ... , title, text without a header (Zhang et al. 2015, arXiv 1509.01626; a header of "Class Index" is skipped),
           or a header with a column label (0, 1, ...) and columns of text
parquet    Hugging Face's: a column label (0, 1, ...), and text or title, content, description

`train*` is the table and `test*` (or part.csv, rows of AG News's official test file) its central test set; a folder with one
split only has no central test set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from coterie.data.examples import Finding
from coterie.data.files import csv_rows
from coterie.data.labels import whole_numbers
from coterie.data.parquet import named_errors, pyarrow_parquet, split_files
from coterie.data.table import Table
from coterie.data.text import UnitCounts, Vocabulary, hashed_bags, is_public, token_numbers

Form = Literal["bag", "tokens"]

_FILES = (("train*.csv",), ("test*.csv", "part.csv"))
_TEXT_COLUMNS = ("text", "title", "content", "description")  # in the order in which they are read


@dataclass(frozen=True)
class Kind:
    """A data set of articles: its name in errors, that of its table, and its classes."""

    title: str
    name: str
    classes: tuple[str, ...]

    @property
    def advice(self) -> str:
        count = len(self.classes)
        return f"Use rows of class 1-{count}, title, description, or a header text,label with labels 0-{count - 1}."


@dataclass(frozen=True)
class Articles:
    """One split, as it is written."""

    texts: list[str]
    labels: list[int]

    def where(self, keep: Callable[[str], bool]) -> Articles:
        kept = [place for place, text in enumerate(self.texts) if keep(text)]
        return Articles([self.texts[place] for place in kept], [self.labels[place] for place in kept])


def article_table(
    train: Articles, test: Articles | None, kind: Kind, form: Form, vocab: int, length: int, public_share: float
) -> Table:
    """x is a bag of hashed words [vocab], or with "tokens" the first `length` token numbers (int64).

    With a `public_share` about that share of the training articles becomes the public source that the vocabulary is learned
    from, and leaves the table: no client holds one of them.
    """
    if form not in ("bag", "tokens"):
        raise ValueError(f"form must be 'bag' or 'tokens', found '{form}'. Use one of these.")
    if vocab < 3 or length < 1:
        raise ValueError(f"vocab must be at least 3 and length at least 1, found {vocab} and {length}. Use 1024 and 64.")
    if not 0 <= public_share < 1 or (public_share and form != "tokens"):
        raise ValueError(
            f"public_share must be at least 0, below 1, and goes with form='tokens', found {public_share} and '{form}'. Use 0.05, or 0."
        )
    vocabulary = None
    findings: tuple[Finding, ...] = ()
    if public_share:
        public = train.where(lambda text: is_public(text, public_share))
        train = train.where(lambda text: not is_public(text, public_share))
        vocabulary = Vocabulary.learned(public.texts, vocab)
        told = f"{len(vocabulary.words)} words were learned from {len(public.texts)} public articles, which no client holds"
        findings = (Finding("note", "vocabulary", len(vocabulary.words), told),)

    def table(articles: Articles) -> Table:
        y = torch.tensor(articles.labels, dtype=torch.int64)
        if form == "bag":
            return Table(kind.name, {"x": hashed_bags(articles.texts, vocab), "y": y}, kind.classes, decode=UnitCounts())
        x, cut = token_numbers(articles.texts, vocab, length, vocabulary)
        told = f"{cut} of {len(x)} texts are longer than {length} words and were cut there"
        return Table(kind.name, {"x": x, "y": y}, kind.classes, findings=(Finding("note", "truncated", cut, told),) if cut else ())

    whole = table(train)
    return replace(whole, findings=findings + whole.findings, central_test=None if test is None else table(test))


def read_splits(folder: Path, kind: Kind) -> tuple[Articles, Articles | None]:
    """The articles of the table, and those of its central test set where there are any."""
    if folder.is_file():
        return (read_parquet([folder], kind) if folder.suffix == ".parquet" else read_csv(folder, kind)), None
    parquet = [files for files in (split_files(folder, "train"), split_files(folder, "test")) if files]
    if parquet:
        found = [read_parquet(files, kind) for files in parquet]
        return found[0], found[1] if len(found) > 1 else None
    splits = [[path for pattern in patterns for path in sorted(folder.glob(pattern))] for patterns in _FILES]
    for paths in splits:
        if len(paths) > 1:
            names = ", ".join(path.name for path in paths)
            raise ValueError(f"Folder '{folder}' has {len(paths)} files for one split: {names}. Leave one of them there.")
    found = [read_csv(paths[0], kind) for paths in splits if paths]
    if not found:
        raise ValueError(f"Folder '{folder}' has no train*.csv, test*.csv or part.csv. Put {kind.title} there as csv or parquet.")
    return found[0], found[1] if len(found) > 1 else None


def read_csv(path: Path, kind: Kind) -> Articles:
    """Texts and labels from 0 on, from either layout."""
    rows = csv_rows(path)
    head = [name.strip().lower() for name in rows[0][1]] if rows else []
    if head and head[0] == "class index":  # as on Kaggle; the original has no header
        rows = rows[1:]
    if not rows:
        raise ValueError(f"'{path}' has no articles. Download it again.")
    columns = [head.index(name) for name in _TEXT_COLUMNS if name in head]
    if "label" in head and columns:
        first, label = 0, head.index("label")
        rows = of_width(rows[1:], len(head), path, kind)
    else:
        first, label, columns = 1, 0, [1, 2]
        rows = of_width(rows, 3, path, kind)
    known = {str(first + number): number for number in range(len(kind.classes))}
    for line, row in rows:
        if row[label].strip() not in known:
            raise ValueError(f"'{path}' is no {kind.title} file: line {line} has the class '{row[label]}'. {kind.advice}")
    return Articles([" ".join(row[c] for c in columns) for _, row in rows], [known[row[label].strip()] for _, row in rows])


def of_width(rows: list[tuple[int, list[str]]], width: int, path: Path, kind: Kind) -> list[tuple[int, list[str]]]:
    for line, row in rows:
        if len(row) != width:
            raise ValueError(f"'{path}' is no {kind.title} file: line {line} has {len(row)} fields, not {width}. {kind.advice}")
    return rows


def read_parquet(paths: list[Path], kind: Kind) -> Articles:
    """All shards of one split."""
    parquet, texts, labels = pyarrow_parquet(), list[str](), list[int]()
    for path in paths:
        with named_errors(path):
            names = list(parquet.read_schema(path).names)
        columns = [name for name in _TEXT_COLUMNS if name in names]
        if "label" not in names or not columns:
            raise ValueError(f"'{path}' needs a column label and one of {', '.join(_TEXT_COLUMNS)}, found {names}. Rename them.")
        with named_errors(path):
            found = parquet.read_table(path, columns=["label", *columns]).to_pydict()
        numbers = whole_numbers(found["label"], f"'{path}'").tolist()
        wrong = [number for number in numbers if not 0 <= number < len(kind.classes)]
        if wrong:
            raise ValueError(f"'{path}' is no {kind.title} file: it has the label {wrong[0]}. Number the {len(kind.classes)} classes from 0.")
        labels += numbers
        texts += [" ".join(part or "" for part in parts) for parts in zip(*(found[name] for name in columns), strict=True)]
    return Articles(texts, labels)
