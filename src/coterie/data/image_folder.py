"""Pictures in a folder with an index: a csv with the columns path and label, and whatever else is known of each file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch

from coterie.data.examples import Pixels
from coterie.data.files import csv_rows
from coterie.data.images import decode_images, inside
from coterie.data.labels import numbered
from coterie.data.table import Column, Table, known_or_alone

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
    if not rows:
        raise ValueError(f"No picture is left of the index of '{folder}'. Check the index and the filters.")
    labels, found = numbered([row["label"] for row in rows], classes, f"the index of '{folder}'")
    pictures = decode_images(inside(folder, [row["path"] for row in rows]), size)
    meta: dict[str, Column] = {c: known_or_alone(c, [row[c] for row in rows]) for c in rows[0] if c != "label"}
    return Table(name, {"x": pictures, "y": torch.from_numpy(labels)}, found, meta, Pixels())


def _read_index(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        raise ValueError(f"The index '{path}' does not exist. Write a csv with the columns path and label, or give index=NAME.")
    rows = csv_rows(path, skipinitialspace=True)
    columns = [name.strip() for name in rows[0][1]] if rows else []
    if not {"path", "label"} <= set(columns):
        raise ValueError(f"The index '{path}' has the columns {columns}. Give it at least 'path' and 'label'.")
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise ValueError(f"The index '{path}' has the columns {twice} more than once. Give each column its own name.")
    for line, row in rows[1:]:
        if len(row) != len(columns):
            raise ValueError(f"Line {line} of '{path}' does not have {len(columns)} fields as its header, but {len(row)}. Correct that line.")
    return [{name: field.strip() for name, field in zip(columns, row, strict=True)} for _, row in rows[1:]]


def _keep(rows: list[dict[str, str]], column: str, wanted: tuple[str, ...], path: Path) -> list[dict[str, str]]:
    if rows and column not in rows[0]:
        raise ValueError(f"The index '{path}' has no column '{column}', only {list(rows[0])}. Filter by one of these.")
    present = sorted({row[column] for row in rows})
    unknown = [value for value in wanted if value not in present]
    if unknown:
        raise ValueError(f"No row of '{path}' has {column} {unknown}, only {present}. Use some of these.")
    return [row for row in rows if row[column] in wanted]
