"""Files that others wrote, opened so that every error names the file: bytes, text, csv, JSON and npz."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LONGEST_FIELD = 1 << 24  # csv stops at 131,072 characters, which some articles exceed


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"'{path}' cannot be read ({error.strerror}). Give a readable file.") from error


def read_text(path: Path) -> str:
    """A text file in UTF-8, with or without the mark that spreadsheets put in front."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"'{path}' is no text in UTF-8: byte {error.start} is {error.object[error.start]:#x}. Save it as UTF-8.") from error


def read_json(path: Path) -> Any:
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"'{path}' is no JSON file ({error}). Write it again.") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or lists in lists in lists ...
        raise ValueError(f"'{path}' cannot be read as data ({first_line(error)}). Write it again.") from error


def csv_rows(path: Path, *, skipinitialspace: bool = False) -> list[tuple[int, list[str]]]:
    """(line number, fields) of every line that is not empty; a field may hold commas and line breaks in quotes."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    reader = csv.reader(io.StringIO(read_text(path), newline=""), skipinitialspace=skipinitialspace)
    rows = []
    try:
        for row in reader:
            if row:
                rows.append((reader.line_num, row))
    except csv.Error as error:
        raise ValueError(f"Line {reader.line_num} of '{path}' is no csv ({error}). Correct that line.") from error
    return rows


def the_npz(folder: Path, advice: str) -> Path:
    """The one `.npz` file of a folder, or the file itself."""
    if folder.is_file():
        return folder
    found = sorted(folder.glob("*.npz"))
    if len(found) > 1:
        raise ValueError(f"Folder '{folder}' has {len(found)} .npz files: {', '.join(path.name for path in found)}. Give one of them.")
    if not found:
        raise ValueError(f"Folder '{folder}' has no .npz file. {advice}")
    return found[0]


def npz_arrays(path: Path, required: Sequence[str], advice: str, optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The named arrays of an `.npz` file; pickled objects are never opened."""
    present = names_in_npz(path, advice)
    missing = [name for name in required if name not in present]
    if missing:
        raise ValueError(f"'{path}' has no array {missing}, only {sorted(present)}. {advice}")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in (*required, *optional) if name in present}
    except Exception as error:  # as above, and numpy's header is read by Python's own parser
        raise ValueError(f"An array of '{path}' cannot be read ({first_line(error)}). {advice}") from error
    loose = [name for name, array in found.items() if not isinstance(array, np.ndarray)]
    if loose:
        raise ValueError(f"'{path}' holds {loose} as bytes, not as arrays. {advice}")
    return found


def names_in_npz(path: Path, advice: str = "Write it again.") -> set[str]:
    """The arrays that an `.npz` file names; none is opened."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except Exception as error:  # damage gives whatever the reader of zip files happens to stumble over
        raise ValueError(f"'{path}' is no .npz file ({first_line(error)}). {advice}") from error


def first_line(error: Exception) -> str:
    """What another library said, short enough for a sentence of ours."""
    lines = str(error).strip().splitlines()
    return lines[0][:200].rstrip(". ") if lines else type(error).__name__
