"""`coterie data ...`: look at data and its partition before anything is trained."""

from __future__ import annotations

import json as json_module
import re
from pathlib import Path

from coterie.cli.show import console
from coterie.data import SOURCES, Inspection
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
    name, found = _inspected(data, clients, partition, beta, classes_per_client, column, data_dir, size, limit, seed, check)
    path = out or Path(re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{name}-{partition}.svg"))
    try:
        path.write_text(partition_svg(found.counts.tolist(), found.names, found.classes), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"Can't write the picture to '{path}' ({error.strerror}). Choose another --out.") from None
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
    findings = _inspected(data, clients, partition, beta, classes_per_client, column, data_dir, size, limit, seed, True)[1].findings
    for finding in findings:
        console.print(f"{finding.level}: {finding.text}", markup=False)
    console.print("Nothing found." if not findings else f"{len(findings)} finding(s).")
    return 0


def _inspected(
    data: str, clients: int, partition: Partition, beta: float, classes_per_client: int, column: str,
    data_dir: str | None, size: int | None, limit: int | None, seed: int, check: bool,
) -> tuple[str, Inspection]:  # fmt: skip
    """The name of the data set, and its population in numbers."""
    if data not in SOURCES and data_dir is not None:
        raise ValueError(f"--data-dir goes with the name of a data set, found the folder '{data}' as well. Give one of them.")
    name, folder = (data, data_dir) if data in SOURCES else (named_by(Path(data)), data)
    population = build_population(
        name, clients=clients, partition=partition, beta=beta, classes_per_client=classes_per_client, column=column,
        data_dir=folder, seed=seed, check=check, limit=limit, options={} if size is None else {"size": size},
    )  # fmt: skip
    return name, inspection(population)


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
