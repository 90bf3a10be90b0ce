"""Data sets by name: `load("cifar10")` looks in the folder that COTERIE_DATA names."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.data.ag_news import ag_news
from coterie.data.digits import digits
from coterie.data.femnist import femnist
from coterie.data.idx import fashion_mnist, mnist
from coterie.data.image_folder import faces, image_folder
from coterie.data.leaf import leaf
from coterie.data.parquet import cifar10, cifar100, picture_table, tiny_imagenet
from coterie.data.sogou_news import sogou_news
from coterie.data.table import Table


@dataclass(frozen=True)
class Source:
    """One data set: how it is read, where it lies under COTERIE_DATA (None: nothing to download), one line about it."""

    read: Callable[..., Table]
    folder: str | None
    about: str

    def __str__(self) -> str:
        return self.about


SOURCES: dict[str, Source] = {
    "digits": Source(digits, None, "1,797 handwritten digits 8x8, ships with scikit-learn (no download)"),
    "fashion_mnist": Source(fashion_mnist, "fashion_mnist", "70,000 grey pictures of clothes 28x28, idx files"),
    "mnist": Source(mnist, "mnist", "70,000 handwritten digits 28x28, idx files"),
    "cifar10": Source(cifar10, "cifar10", "60,000 colour pictures 32x32 of 10 classes, parquet or one .npz"),
    "cifar100": Source(cifar100, "cifar100", "60,000 colour pictures 32x32 of 100 classes, parquet or one .npz"),
    "tiny_imagenet": Source(tiny_imagenet, "tiny_imagenet", "colour pictures 64x64 of 200 classes, parquet"),
    "faces": Source(faces, "faces", "real and generated faces by method and domain, pictures with an index"),
    "femnist": Source(femnist, "femnist", "handwritten characters 28x28 of 62 classes by writer, one .npz"),
    "ag_news": Source(ag_news, "ag_news", "news articles of 4 classes, csv or parquet; hashed bags of words or token numbers"),
    "sogou_news": Source(sogou_news, "sogou_news", "news articles of 5 classes in Pinyin, csv or parquet; token numbers"),
    "leaf": Source(leaf, "leaf", "any data set in LEAF's JSON, by user"),
    "image_folder": Source(image_folder, "image_folder", "any folder of pictures with an index.csv (path, label, ...)"),
    "parquet": Source(picture_table, "parquet", "any picture data set in Hugging Face's parquet layout"),
}


def load(name: str, folder: str | os.PathLike[str] | None = None, **options: Any) -> Table:
    """The data set of this name. `folder` is its own folder, or one that contains it under its usual name."""
    if name not in SOURCES:
        near = difflib.get_close_matches(name, SOURCES, 1)
        hint = f"Did you mean '{near[0]}'?" if near else f"Use one of {', '.join(SOURCES)}."
        raise ValueError(f"Unknown data set '{name}'. {hint}")
    source = SOURCES[name]
    known = [option for option in inspect.signature(source.read).parameters if option != "folder"]
    for option in options:
        if option not in known:
            raise ValueError(f"Data set '{name}' has no option '{option}'. Its options: {', '.join(known) or 'none'}.")
    if source.folder is None:
        return source.read(**options)
    return source.read(find_folder(source.folder, folder), **options)


def find_folder(usual: str, folder: str | os.PathLike[str] | None) -> Path:
    """The folder (or file) of a data set, or an error that says where it was looked for."""
    given = folder if folder is not None else os.environ.get("COTERIE_DATA")
    if given is None:
        raise ValueError(
            f"The data set needs the folder '{usual}', but no data folder is known (COTERIE_DATA is not set). "
            "Set COTERIE_DATA or give --data-dir DIR."
        )
    inside = Path(given) / usual
    if inside.exists():
        return inside
    if folder is not None and Path(folder).exists():
        return Path(folder)
    looked = f"{inside}" if folder is None else f"{folder} and {inside}"
    raise ValueError(
        f"Data folder '{inside if folder is None else folder}' does not exist (looked for {looked}). "
        "Set COTERIE_DATA or give --data-dir DIR."
    )
