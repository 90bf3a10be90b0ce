"""Pictures in Hugging Face's parquet layout, and the same as one `.npz` that opens without pyarrow.

A parquet folder holds `train*.parquet` and `test*`, `val*` or `validation*.parquet` (in subfolders too, or in
folders of these names), with a picture column, struct{bytes, path} or bytes, and a label column, numbers or names.
Both are recognised by the feature metadata that `datasets` writes into the schema, or else by their names and types.
The `path` often contains the class: it is never read.

The `.npz` holds, for each split: `{split}_stream` (uint8, all files one after another), `{split}_offsets`
(int64, N + 1 places) and `{split}_labels` (int64), and `classes`. A file of one split may leave the `{split}_` out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.examples import Pixels
from coterie.data.files import csv_rows, first_line, names_in_npz, npz_arrays, the_npz
from coterie.data.images import decode_images
from coterie.data.labels import numbered, whole_numbers
from coterie.data.table import Table

_TEST_FILES = ("test", "val")
_PICTURE_NAMES = ("image", "img", "picture", "pixels")
_LABEL_NAMES = ("label", "labels", "fine_label", "class", "target", "y")
_SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)(?:-[0-9a-f]+)?\.parquet")  # the hub once added a hash
_UNLABELLED = -1  # how the hub marks test pictures whose classes are kept secret
_PACK = "Make it with coterie.data.pack_parquet_as_npz."


@dataclass(frozen=True, eq=False)
class _Split:
    files: Sequence[bytes]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Rows:
    """A split as it is written: labels may still be names."""

    files: list[Any]
    labels: list[Any]
    classes: tuple[str, ...]
    where: str


def cifar10(folder: Path, size: int | None = None) -> Table:
    """50,000 + 10,000 pictures of ten classes, 32x32 (Krizhevsky 2009): a parquet folder, or one `.npz`."""
    return picture_table(folder, "cifar10", size)


def cifar100(folder: Path, size: int | None = None, labels: Literal["fine", "coarse"] = "fine") -> Table:
    """50,000 + 10,000 pictures of a hundred classes (or their twenty groups, "coarse"), 32x32, as `cifar10`."""
    if labels not in ("fine", "coarse"):
        raise ValueError(f"labels must be 'fine' or 'coarse', found '{labels}'. Use 'fine' for the hundred classes.")
    return picture_table(folder, "cifar100", size, label="coarse_label" if labels == "coarse" else None)


def tiny_imagenet(folder: Path, size: int | None = None) -> Table:
    """Pictures of 200 classes, 64x64 (Stanford CS231N), as a parquet folder; its `val` split becomes the central test set."""
    return picture_table(folder, "tiny_imagenet", size)


def picture_table(
    folder: Path, name: str = "parquet", size: int | None = None, image: str | None = None, label: str | None = None
) -> Table:
    """Train split as a table, test split as its central test set; x are bytes [N, 3, H, W].

    Where there is no test split, or one without labels (all -1), the validation split is the central test set.

    `image` and `label` name the columns where their metadata, names and types leave a choice.
    """
    packed = folder.is_file() and folder.suffix != ".parquet"
    if folder.is_dir() and not split_files(folder, "train"):
        packed = any(folder.glob("*.npz"))
    splits = _read_npz(the_npz(folder, _PACK)) if packed else _read_parquet_folder(folder, image, label)
    test = None
    for split in ("test", "train"):
        if split in splits:
            found = splits[split]
            columns = {"x": decode_images(found.files, size, f" of the {split} split in '{folder}'"), "y": torch.from_numpy(found.labels)}
            test = Table(name, columns, found.classes, decode=Pixels(), central_test=test)
    assert test is not None
    return test


def pack_parquet_as_npz(folder: Path, out: Path) -> Path:
    """Write the pictures of a parquet folder, still compressed, as one `.npz` for machines without pyarrow."""
    arrays: dict[str, NDArray[Any]] = {}
    for split, found in _read_parquet_folder(folder).items():
        arrays[f"{split}_stream"] = np.frombuffer(b"".join(found.files), dtype=np.uint8)
        arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, found.files)], dtype=np.int64)
        arrays[f"{split}_labels"] = found.labels
        arrays["classes"] = np.array(found.classes)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)  # JPEG headers repeat: CIFAR-10 is 56 MB without
    return out


def _read_npz(path: Path) -> dict[str, _Split]:
    plain = "stream" in names_in_npz(path, _PACK)
    wanted = {split: [f"{'' if plain else f'{split}_'}{part}" for part in ("stream", "offsets", "labels")] for split in ("train", "test")}
    wanted = {"train": wanted["train"]} if plain else wanted
    arrays = npz_arrays(path, wanted["train"], _PACK, (*wanted.get("test", ()), "classes"))
    classes = tuple(map(str, arrays["classes"].ravel())) if "classes" in arrays else ()
    found = {}
    for split, names in wanted.items():
        if names[2] not in arrays:
            continue
        missing = [name for name in names if name not in arrays]
        if missing:
            raise ValueError(f"'{path}' has no array {missing}, only {sorted(arrays)}. {_PACK}")
        stream, offsets = arrays[names[0]], arrays[names[1]]
        labels = whole_numbers(arrays[names[2]], f"'{names[2]}' in '{path}'")
        fits = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) > 1 and stream.dtype == np.uint8
        places = offsets.astype(np.int64) if fits else np.zeros(1, dtype=np.int64)
        if not fits or places[0] != 0 or places[-1] != stream.size or (np.diff(places) <= 0).any():
            raise ValueError(
                f"'{names[1]}' in '{path}' does not cut the {stream.size} bytes of '{names[0]}' into files: it must rise from 0 "
                f"to that number, found {offsets.dtype} of shape {list(offsets.shape)}. {_PACK}"
            )
        if len(labels) != len(places) - 1:
            raise ValueError(f"'{path}' has {len(labels)} labels for {len(places) - 1} pictures in '{split}'. {_PACK}")
        content = stream.tobytes()
        files = [content[a:b] for a, b in pairwise(places.tolist())]
        found[split] = _Split(files, labels, classes)
    return found


def split_files(folder: Path, stem: str) -> list[Path]:
    """`train*.parquet` anywhere below, or every parquet file of folders named `train*`; all shards must be there."""
    if folder.is_file():
        return [folder] if stem == "train" else []
    files = sorted(folder.rglob(f"{stem}*.parquet")) or sorted(folder.rglob(f"{stem}*/*.parquet"))
    places = sorted({str(file.parent) for file in files})
    if len(places) > 1:  # one folder per configuration, such as small and large pictures of the same things
        raise ValueError(f"'{folder}' has '{stem}' parquet files in {len(places)} folders: {places[:3]}. Give one of these folders.")
    shards: dict[tuple[str, str], set[str]] = {}
    for file in files:
        match = _SHARD.fullmatch(file.name)
        if match:
            shards.setdefault((match[1], match[3]), set()).add(match[2])
    for (prefix, total), found in shards.items():
        if len(found) != int(total):
            raise ValueError(
                f"Only {len(found)} of the {int(total)} parts of '{prefix}-*-of-{total}.parquet' are in '{places[0]}'. Add the others."
            )
    return files


def _read_parquet_folder(folder: Path, image: str | None = None, label: str | None = None) -> dict[str, _Split]:
    train = split_files(folder, "train")
    if not train:
        raise ValueError(f"Folder '{folder}' has no 'train*.parquet'. Put a data set in Hugging Face's parquet layout there.")
    names = _class_file(folder)
    rows = {"train": _read_parquet(train, names, image, label)}
    for stem in _TEST_FILES:
        files = split_files(folder, stem)
        found = _read_parquet(files, names, image, label) if files else None
        if found and not all(value == _UNLABELLED for value in found.labels):
            rows["test"] = found
            break
    classes = rows["train"].classes
    others = rows["test"].classes if "test" in rows else ()
    if classes and others and others != classes:
        raise ValueError(
            f"The train and test files in '{folder}' name their classes differently: {list(classes[:5])} and {list(others[:5])}. "
            "Use files of one data set."
        )
    if not any(isinstance(value, str) for found in rows.values() for value in found.labels):
        return {s: _Split(r.files, whole_numbers(r.labels, f"'{r.where}'"), r.classes) for s, r in rows.items()}
    texts = {split: [str(value) for value in found.labels] for split, found in rows.items()}
    classes = classes or tuple(sorted({text for every in texts.values() for text in every}))
    return {s: _Split(r.files, *numbered(texts[s], classes, f"'{r.where}'")) for s, r in rows.items()}


def _read_parquet(paths: Sequence[Path], names: tuple[str, ...], image: str | None, label: str | None) -> _Rows:
    parquet = pyarrow_parquet()
    files: list[Any] = []
    labels: list[Any] = []
    classes = names
    chosen: tuple[str, str] | None = None
    for path in paths:
        with named_errors(path):
            schema = parquet.read_schema(path)
            features = _features(schema.metadata)
            kinds = {name: str(schema.field(name).type) for name in dict.fromkeys(schema.names)}
        chosen = chosen or _columns(kinds, features, path, image, label)
        absent = [name for name in chosen if name not in kinds]
        if absent:
            raise ValueError(f"'{path}' has no column {absent}, as '{paths[0].name}' has. Give all parts the same columns.")
        given = features.get(chosen[1], {}).get("names")
        told = tuple(map(str, given)) if isinstance(given, list) else ()
        if classes and told and not names and told != classes:
            raise ValueError(f"'{path}' names its classes otherwise than '{paths[0].name}'. Use files of one data set.")
        classes = classes or told
        if "binary" not in kinds[chosen[0]]:
            raise ValueError(f"Column '{chosen[0]}' of '{path}' holds {kinds[chosen[0]]}, no picture files. Choose one with image=NAME.")
        with named_errors(path), parquet.ParquetFile(path) as opened:
            table = opened.read(columns=list(chosen), use_threads=False)
            for part in table.column(chosen[0]).chunks:
                files += (part.field("bytes") if kinds[chosen[0]].startswith("struct") else part).to_pylist()
            labels += table.column(chosen[1]).to_pylist()
    where = paths[0].parent
    for what, values in (("pictures", files), ("labels", labels)):
        empty = [place for place, value in enumerate(values) if value is None or value == b""]
        if empty:
            raise ValueError(
                f"{len(empty)} {what} in '{where}' are missing, the first in row {empty[0]}. "
                "Save the data set with its pictures embedded and every label given."
            )
    if not files:
        raise ValueError(f"The parquet files in '{where}' ('{paths[0].name}' ...) have no rows. Download them again.")
    return _Rows(files, labels, classes, str(where))


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Damage gives any of pyarrow's many errors; each becomes one sentence that names the file."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"'{path}' is no parquet file that can be read ({first_line(error)}). Download it again.") from error


def _features(metadata: dict[bytes, bytes] | None) -> dict[str, dict[str, Any]]:
    """What `datasets` says of each column; nothing where it says nothing that can be read."""
    try:
        told = json.loads((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return {name: kind for name, kind in told.items() if isinstance(kind, dict)} if isinstance(told, dict) else {}


def _columns(
    kinds: dict[str, str], features: dict[str, dict[str, Any]], path: Path, image: str | None, label: str | None
) -> tuple[str, str]:
    """The picture column and the label column."""
    told = {name: features.get(name, {}).get("_type") for name in kinds}
    struct = [name for name, kind in kinds.items() if kind.startswith("struct") and re.search(r"\bbytes: (large_)?binary", kind)]
    raw = [name for name, kind in kinds.items() if kind in ("binary", "large_binary")]
    pictures = [n for n in kinds if told[n] == "Image" and n in (*struct, *raw)] or struct or raw
    whole = [name for name, kind in kinds.items() if re.fullmatch(r"u?int\d+|bool", kind)]
    named = [n for n, kind in kinds.items() if n in _LABEL_NAMES and ("string" in kind or kind in ("double", "float"))]
    labels = [n for n in kinds if told[n] == "ClassLabel"] or [n for n in whole if n in _LABEL_NAMES] or named or whole
    return (
        _only("picture", "image", image, pictures, _PICTURE_NAMES, kinds, path),
        _only("label", "label", label, labels, _LABEL_NAMES, kinds, path),
    )


def _only(
    what: str, option: str, given: str | None, found: list[str], usual: Sequence[str], kinds: dict[str, str], path: Path
) -> str:
    if given is not None:
        if given not in kinds:
            raise ValueError(f"'{path}' has no column '{given}', only {sorted(kinds)}. Choose {option} among these.")
        return given
    chosen = found if len(found) == 1 else [name for name in usual if name in found][:1]
    if chosen:
        return chosen[0]
    if found:
        raise ValueError(f"'{path}' has {len(found)} columns that could be the {what}: {found}. Choose one with {option}=NAME.")
    raise ValueError(f"'{path}' needs a picture column and a label column, found {kinds}. Use Hugging Face's image layout.")


def _class_file(folder: Path) -> tuple[str, ...]:
    """Class names from `classes.csv` (columns label and words or name), which reads better than WordNet ids."""
    path = folder / "classes.csv"
    if not path.exists():
        return ()
    rows = [row for _, row in csv_rows(path)]
    header = [name.strip() for name in rows[0]] if rows else []
    column = next((name for name in ("words", "name") if name in header), None)
    numbers = [row[header.index("label")] for row in rows[1:] if len(row) == len(header)] if "label" in header else []
    if column is None or sorted(numbers) != sorted(map(str, range(len(rows) - 1))):
        raise ValueError(
            f"'{path}' needs the columns label and words (or name) and one line for each label from 0 on, found {header} "
            f"and {len(rows[1:])} lines. Correct or remove it."
        )
    named = {int(number): row[header.index(column)].split(",")[0] for number, row in zip(numbers, rows[1:], strict=True)}
    return tuple(named[number] for number in range(len(named)))


def pyarrow_parquet() -> ModuleType:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError("Reading parquet needs pyarrow. Install it with: pip install 'coterie[vision]'") from error
    module: ModuleType = pyarrow.parquet
    return module
