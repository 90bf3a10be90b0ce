"""`coterie data ...`: look at data and its partition before anything is trained."""

from __future__ import annotations

import contextlib
import csv
import json as json_module
import re
from collections.abc import Iterator
from pathlib import Path

from coterie.cli.show import console
from coterie.data import SOURCES, Population, write_leaf
from coterie.data.files import names_in_npz
from coterie.data.inspect import inspection
from coterie.options import nearest
from coterie.recipes.population import Partition, build_population
from coterie.report.partition_picture import partition_svg


def inspect_data(
    *, data: str = "digits", clients: int = 10, partition: Partition = "dirichlet", beta: float = 0.1,
    classes_per_client: int = 2, column: str = "writer", data_dir: str | None = None, size: int | None = None,
    limit: int | None = None, seed: int = 0, check: bool = True, out: Path | None = None, json: bool = False,
) -> int:  # fmt: skip
    """Sizes, classes per client, label skew and leaks of a partition, with a clients-by-classes picture.

    DATA is the name of a data set (coterie list), a folder or a file: coterie data inspect femnist, coterie data inspect my/pictures.

    --check   look for leaks between clients and parts
    --out     the picture (default: DATA-PARTITION.svg)
    --json    numbers as JSON instead of a table
    """
    name, population = _population(data, clients, partition, beta, classes_per_client, column, data_dir, size, limit, seed, check)
    found = inspection(population)
    path = out or _file_name(f"{name}-{partition}.svg")
    with _writing("the picture", path):
        path.write_text(partition_svg(found.counts.tolist(), found.names, found.classes), encoding="utf-8")
    if json:
        print(json_module.dumps(found.as_json(), indent=2))
        return 0
    console.print(found.rendered())
    console.print(f"Picture: {path}", soft_wrap=True, markup=False)
    return 0


def check_data(
    *, data: str = "digits", clients: int = 10, partition: Partition = "dirichlet", beta: float = 0.1,
    classes_per_client: int = 2, column: str = "writer", data_dir: str | None = None, size: int | None = None,
    limit: int | None = None, seed: int = 0,
) -> int:  # fmt: skip
    """Only the leak check: what a partition would share between clients or between training and test.

    DATA is the name of a data set (coterie list), a folder or a file.
    """
    findings = _population(data, clients, partition, beta, classes_per_client, column, data_dir, size, limit, seed, True)[1].findings
    for finding in findings:
        console.print(f"{finding.level}: {finding.text}", markup=False)
    console.print("Nothing found." if not findings else f"{len(findings)} finding(s).")
    return 0


def partition_data(
    *, data: str = "digits", clients: int = 10, partition: Partition = "dirichlet", beta: float = 0.1,
    classes_per_client: int = 2, column: str = "writer", data_dir: str | None = None, size: int | None = None, seed: int = 0,
    check: bool = True, out: Path | None = None,
) -> int:  # fmt: skip
    """Write who holds which rows, and in which part, as a csv: row, client, part (train, validation, test), label.

    DATA is the name of a data set (coterie list), a folder or a file. Rows are counted from 0 in the data set's order.

    --check   look for leaks between clients and parts
    --out     the csv (default: DATA-PARTITION.csv)
    """
    name, population = _population(data, clients, partition, beta, classes_per_client, column, data_dir, size, None, seed, check)
    path = out or _file_name(f"{name}-{partition}.csv")
    lines = sorted(
        (row, client, part, label)
        for client, own in zip(population.names, population.parts, strict=True)
        for part, view in (("train", own.train), ("validation", own.validation), ("test", own.test))
        for row, label in zip(view.index.tolist(), view.column("y").tolist(), strict=True)
    )
    with _writing("the partition", path), path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([("row", "client", "part", "label"), *lines])
    console.print(f"{len(lines):,} rows of {len(population):,} clients: {path}", soft_wrap=True, markup=False)
    return 0


def build_data(
    *, data: str = "digits", clients: int = 10, partition: Partition = "dirichlet", beta: float = 0.1,
    classes_per_client: int = 2, column: str = "writer", data_dir: str | None = None, size: int | None = None,
    limit: int | None = None, seed: int = 0, check: bool = True, parts: bool = True, out: Path | None = None,
) -> int:  # fmt: skip
    """Write a partitioned data set as LEAF JSON, a user for each client: coterie data build leaf DATA.

    DATA is the name of a data set (coterie list), a folder or a file.

    --check   look for leaks between clients and parts
    --parts   keep train, validation and test apart; without, each user has one list
    --out     a new folder, or a file that ends in .json (default: DATA-PARTITION.json)
    """
    name, population = _population(data, clients, partition, beta, classes_per_client, column, data_dir, size, limit, seed, check)
    path = out or _file_name(f"{name}-{partition}.json")
    if path.is_dir() and any(path.iterdir()):
        raise ValueError(f"The folder '{path}' is not empty. Choose another --out: old users would mix with the new ones.")
    with _writing("the users", path):
        write_leaf(population, path, parts=parts)
    console.print(f"{len(population):,} users: {path}", soft_wrap=True, markup=False)
    return 0


@contextlib.contextmanager
def _writing(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(f"Can't write {what} to '{path}' ({error.strerror}). Choose another --out.") from None


def _file_name(text: str) -> Path:
    return Path(re.sub(r"[^A-Za-z0-9_.-]+", "-", text))


def _population(
    data: str, clients: int, partition: Partition, beta: float, classes_per_client: int, column: str,
    data_dir: str | None, size: int | None, limit: int | None, seed: int, check: bool,
) -> tuple[str, Population]:  # fmt: skip
    """The name of the data set, and its population."""
    if data not in SOURCES and data_dir is not None:
        raise ValueError(f"--data-dir goes with the name of a data set, found the folder '{data}' as well. Give one of them.")
    name, folder = (data, data_dir) if data in SOURCES else (named_by(Path(data)), data)
    population = build_population(
        name, clients=clients, partition=partition, beta=beta, classes_per_client=classes_per_client, column=column,
        data_dir=folder, seed=seed, check=check, limit=limit, options={} if size is None else {"size": size},
    )  # fmt: skip
    return name, population


def named_by(path: Path) -> str:
    """The data set that lies in a folder (or file): by the folder's name, else by what is in it."""
    if not path.exists():
        raise ValueError(f"There is no data set and no folder '{path}'. {nearest(str(path), list(SOURCES))}")
    usual = {source.folder: name for name, source in SOURCES.items() if source.folder}
    own = path.resolve()
    named = (own.parent if own.is_file() else own).name.lower().replace("-", "_")
    if named in usual:
        return usual[named]
    files = [path] if path.is_file() else [file for pattern in ("*", "*/*") for file in sorted(path.glob(pattern))]
    if any(file.name == "index.csv" and file.parent == path for file in files):
        return "image_folder"
    for ending, name in ((".parquet", "parquet"), (".json", "leaf"), (".npz", "parquet"), (".csv", "ag_news")):
        found = [file for file in files if file.suffix == ending]
        if found:
            return "femnist" if ending == ".npz" and "writer" in names_in_npz(found[0]) else name
    if any("-idx3-" in file.name or ".idx3-" in file.name for file in files):
        raise ValueError(f"'{path}' holds idx files, which do not say what is in them. Name it: coterie data inspect mnist --data-dir {path}")
    shown = ", ".join(file.name for file in files[:3]) or "nothing"
    raise ValueError(
        f"'{path}' is no known kind of data, found {shown}. It needs an index.csv, .parquet or .npz files, LEAF's .json or AG News as "
        ".csv; or give a name and --data-dir."
    )
