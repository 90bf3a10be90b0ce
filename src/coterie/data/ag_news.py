"""AG News (Zhang et al. 2015, arXiv 1509.01626): articles of four classes as token numbers or as bags of words."""

from __future__ import annotations

from pathlib import Path

from coterie.data.articles import Form, Kind, article_table, read_splits
from coterie.data.table import Table

_KIND = Kind("AG News", "ag_news", ("World", "Sports", "Business", "Sci/Tech"))


def ag_news(folder: Path, form: Form = "bag", vocab: int = 1024, length: int = 64, public_share: float = 0.0) -> Table:
    """x is a bag of hashed words [vocab], or with `form="tokens"` the first `length` token numbers (int64, 0 = padding).

    `public_share` of the training articles leaves the table and becomes the source that the vocabulary is learned from;
    without, words are hashed.
    """
    train, test = read_splits(folder, _KIND)
    return article_table(train, test, _KIND, form, vocab, length, public_share)
