"""Sogou News (Zhang et al. 2015, arXiv 1509.01626): articles of five classes, Mandarin written in Pinyin.

The public set has 450,000 + 60,000 articles; the 90,000 and 12,000 that FABLE names are its counts per class (FB-D3). So by
default a class-balanced subset of that size is read, 18,000 and 2,400 of each class, the same on every machine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coterie.data.articles import Articles, Form, Kind, article_table, read_splits
from coterie.data.table import Table
from coterie.randomness import Key

_KIND = Kind("Sogou News", "sogou_news", ("sports", "finance", "entertainment", "automobile", "technology"))
_OF_EACH_CLASS = (18_000, 2_400)


def sogou_news(
    folder: Path, form: Form = "tokens", vocab: int = 32_000, length: int = 200, public_share: float = 0.0, subset: bool = True
) -> Table:
    """x as of AG News. `subset=False` reads all articles; of a smaller file the subset is as large as balance allows."""
    train, test = read_splits(folder, _KIND)
    if subset:
        train = balanced(train, _OF_EACH_CLASS[0])
        test = None if test is None else balanced(test, _OF_EACH_CLASS[1])
    return article_table(train, test, _KIND, form, vocab, length, public_share)


def balanced(articles: Articles, of_each: int) -> Articles:
    """Equally many articles of every class that occurs, at most `of_each`, in their old order."""
    labels = np.array(articles.labels)
    classes, counts = np.unique(labels, return_counts=True)
    size = min(of_each, int(counts.min()))
    rng = Key(0, ("sogou_news", "subset")).numpy()
    kept = np.sort(np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:size] for c in classes]))
    return Articles([articles.texts[place] for place in kept], [articles.labels[place] for place in kept])
