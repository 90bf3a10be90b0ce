"""Pictures in Hugging Face's parquet layout, and the same as one `.npz` that opens without pyarrow.

A parquet folder holds `train*.parquet` and `test*`, `val*` or `validation*.parquet` (in subfolders too), with one
picture column, struct{bytes, path}, and one label column; both are recognised by the feature metadata that
`datasets` writes into the schema, or else by their types. The `path` often contains the class: it is never read.

The `.npz` holds, for each split: `{split}_stream` (uint8, all files one after another), `{split}_offsets`
(int64, N + 1 places) and `{split}_labels` (int64), and `classes`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.examples import Pixels
from coterie.data.images import decode_images
from coterie.data.table import Table

_TEST_FILES = ("test", "val")


@dataclass(frozen=True, eq=False)
class _Split:
    files: Sequence[bytes]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


def cifar10(folder: Path, size: int | None = None) -> Table:
    """50,000 + 10,000 pictures of ten classes, 32x32 (Krizhevsky 2009): a parquet folder, or one `.npz`."""
    return picture_table(folder, "cifar10", size)


def tiny_imagenet(folder: Path, size: int | None = None) -> Table:
    """Pictures of 200 classes, 64x64 (Stanford CS231N), as a parquet folder; its `val` split becomes the central test set."""
    return picture_table(folder, "tiny_imagenet", size)


def picture_table(folder: Path, name: str = "parquet", size: int | None = None) -> Table:
    """Train split as a table, test or validation split as its central test set; x are bytes [N, 3, H, W]."""
    packed = [folder] if folder.suffix == ".npz" else sorted(folder.glob("*.npz"))
    only_packed = bool(packed) and not list(folder.rglob("train*.parquet"))
    splits = _read_npz(packed[0]) if only_packed else _read_parquet_folder(folder)
    tables = {
        split: Table(
            name,
            {"x": decode_images(found.files, size), "y": torch.from_numpy(found.labels)},
            found.classes,
            decode=Pixels(),
        )
        for split, found in splits.items()
    }
    train = tables["train"]
    return Table(name, train.columns, train.classes, decode=train.decode, central_test=tables.get("test"))


def pack_parquet_as_npz(folder: Path, out: Path) -> Path:
    """Write the pictures of a parquet folder, still compressed, as one `.npz` for machines without pyarrow."""
    arrays: dict[str, NDArray[Any]] = {}
    for split, found in _read_parquet_folder(folder).items():
        arrays[f"{split}_stream"] = np.frombuffer(b"".join(found.files), dtype=np.uint8)
        arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, found.files)], dtype=np.int64)
        arrays[f"{split}_labels"] = found.labels
        arrays["classes"] = np.array(found.classes)
    with out.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)  # JPEG headers repeat: CIFAR-10 is 56 MB without
    return out


def _read_npz(path: Path) -> dict[str, _Split]:
    with np.load(path, allow_pickle=False) as arrays:
        splits = [split for split in ("train", "test") if f"{split}_labels" in arrays]
        wanted = [f"{split}_{part}" for split in splits or ["train"] for part in ("stream", "offsets", "labels")]
        missing = [name for name in wanted if name not in arrays]
        if missing:
            raise ValueError(
                f"'{path}' has no array {missing}, only {sorted(arrays)}. Make it with coterie.data.pack_parquet_as_npz."
            )
        classes = tuple(map(str, arrays["classes"])) if "classes" in arrays else ()
        found = {}
        for split in splits:
            stream, offsets = arrays[f"{split}_stream"].tobytes(), arrays[f"{split}_offsets"]
            files = [stream[a:b] for a, b in pairwise(offsets)]
            found[split] = _Split(files, arrays[f"{split}_labels"].astype(np.int64), classes)
        return found


def _read_parquet_folder(folder: Path) -> dict[str, _Split]:
    train = sorted(folder.rglob("train*.parquet"))
    if not train:
        raise ValueError(f"Folder '{folder}' has no 'train*.parquet'. Put a data set in Hugging Face's parquet layout there.")
    names = _class_file(folder)
    splits = {"train": _read_parquet(train, names)}
    for stem in _TEST_FILES:
        files = sorted(folder.rglob(f"{stem}*.parquet"))
        if files:
            splits["test"] = _read_parquet(files, names)
            break
    return splits


def _read_parquet(paths: Sequence[Path], names: tuple[str, ...]) -> _Split:
    parquet = _pyarrow()
    schema = parquet.read_schema(paths[0])
    features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    image, label = _columns(schema, features, paths[0])
    files: list[bytes] = []
    labels = []
    for path in paths:
        table = parquet.read_table(path, columns=[image, label])
        pictures = table.column(image).combine_chunks()
        files += (pictures if str(pictures.type) == "binary" else pictures.field("bytes")).to_pylist()
        labels.append(table.column(label).to_numpy().astype(np.int64))
    absent = [place for place, data in enumerate(files) if not data]
    if absent:
        raise ValueError(
            f"{len(absent)} pictures in '{paths[0].parent}' have no bytes, the first in row {absent[0]}. "
            "Save the data set with its pictures embedded."
        )
    return _Split(files, np.concatenate(labels), names or tuple(features.get(label, {}).get("names", ())))


def _columns(schema: Any, features: dict[str, Any], path: Path) -> tuple[str, str]:
    """The picture column and the label column."""
    kinds = {name: str(schema.field(name).type) for name in schema.names}
    told = {name: feature.get("_type") for name, feature in features.items() if isinstance(feature, dict)}
    images = [n for n in kinds if told.get(n) == "Image"] or [n for n, kind in kinds.items() if "bytes: binary" in kind]
    labels = [n for n in kinds if told.get(n) == "ClassLabel"] or [n for n, kind in kinds.items() if "int" in kind]
    if not images or not labels:
        raise ValueError(f"'{path}' needs a picture column and a label column, found {kinds}. Use Hugging Face's image layout.")
    return images[0], labels[0]


def _class_file(folder: Path) -> tuple[str, ...]:
    """Class names from `classes.csv` (columns label and words or name), which reads better than WordNet ids."""
    path = folder / "classes.csv"
    if not path.exists():
        return ()
    with path.open(newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["label"]))
    column = next((name for name in ("words", "name") if rows and name in rows[0]), None)
    return () if column is None else tuple(row[column].split(",")[0] for row in rows)


def _pyarrow() -> ModuleType:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError("Reading parquet needs pyarrow. Install it with: pip install 'coterie[vision]'") from error
    module: ModuleType = pyarrow.parquet
    return module
