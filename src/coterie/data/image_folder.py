"""Pictures in a folder with an index: a csv with the columns path and label, and whatever else is known of each file."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from coterie.data.examples import Pixels
from coterie.data.images import decode_images, inside
from coterie.data.table import Column, Table

_FAIR = {("stills", "real"), ("stills", "faceapp"), ("video", "real"), ("video", "deepfacelab")}


def image_folder(
    folder: Path,
    index: str = "index.csv",
    size: int | None = None,
    where: Mapping[str, str | Sequence[str]] | None = None,
    classes: Sequence[str] = (),
    name: str = "image_folder",
) -> Table:
    """The pictures that the index names; its further columns (method, domain, group, source_id ...) become `meta`.

    `where` keeps rows by column: {"domain": "stills", "method": ["real", "faceapp"]}. Labels are whole numbers, or
    names (then classes are numbered in alphabetical order). `size` resizes to a square. A path may not leave the folder.
    """
    rows = _read_index(folder / index)
    for column, wanted in (where or {}).items():
        rows = _keep(rows, column, (wanted,) if isinstance(wanted, str) else tuple(wanted), folder / index)
    return _table(folder, rows, size, tuple(classes), name)


def faces(folder: Path, size: int | None = 64, pairs: Literal["fair", "all"] = "fair") -> Table:
    """Real and generated faces (label 1 = fake) with the columns method, domain, source_id and group.

    `pairs="fair"` keeps stills/faceapp and video/deepfacelab with the real faces of their domain: in the others,
    file size, sharpness or colour alone tell real from fake, so results on them say nothing about faces.
    """
    if pairs not in ("fair", "all"):
        raise ValueError(f"pairs must be 'fair' or 'all', found '{pairs}'. Use one of these.")
    rows = _read_index(folder / "index.csv")
    if pairs == "fair":
        rows = [row for row in rows if (row.get("domain"), row.get("method")) in _FAIR]
    return _table(folder, rows, size, ("real", "fake"), "faces")


def _table(folder: Path, rows: Sequence[Mapping[str, str]], size: int | None, classes: tuple[str, ...], name: str) -> Table:
    pictures = decode_images(inside(folder, [row["path"] for row in rows]), size)
    labels, found = _labels([row["label"] for row in rows], classes)
    meta: dict[str, Column] = {c: np.array([row[c] for row in rows]) for c in rows[0] if c != "label"}
    return Table(name, {"x": pictures, "y": labels}, found, meta, Pixels())


def _read_index(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        raise ValueError(f"The index '{path}' does not exist. Write a csv with the columns path and label, or give index=NAME.")
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
        columns = reader.fieldnames or []
    if not {"path", "label"} <= set(columns):
        raise ValueError(f"The index '{path}' has the columns {list(columns)}. Give it at least 'path' and 'label'.")
    ragged = [number for number, row in enumerate(rows, 2) if None in row or None in row.values()]
    if ragged:
        raise ValueError(f"Line {ragged[0]} of '{path}' does not have {len(columns)} fields as its header. Correct that line.")
    return rows


def _keep(rows: list[dict[str, str]], column: str, wanted: tuple[str, ...], path: Path) -> list[dict[str, str]]:
    if rows and column not in rows[0]:
        raise ValueError(f"The index '{path}' has no column '{column}', only {list(rows[0])}. Filter by one of these.")
    present = sorted({row[column] for row in rows})
    unknown = [value for value in wanted if value not in present]
    if unknown:
        raise ValueError(f"No row of '{path}' has {column} {unknown}, only {present}. Use some of these.")
    return [row for row in rows if row[column] in wanted]


def _labels(values: Sequence[str], classes: tuple[str, ...]) -> tuple[torch.Tensor, tuple[str, ...]]:
    if all(value.isdecimal() for value in values):
        numbers = [int(value) for value in values]
        if classes and max(numbers, default=0) >= len(classes):
            raise ValueError(f"Label {max(numbers)} is not among the {len(classes)} named classes. Name every class, or none.")
        return torch.tensor(numbers), classes
    names = classes or tuple(sorted(set(values)))
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise ValueError(f"The labels {unknown[:3]} are not among the classes {list(names)}. Name every class, or none.")
    return torch.tensor([names.index(value) for value in values]), names
