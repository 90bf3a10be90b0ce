"""`coterie data ...`: look at data and its partition before anything is trained."""

from __future__ import annotations

import json as json_module
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.data import Population
from coterie.data.inspect import inspection
from coterie.recipes.population import build_population
from coterie.report.partition_picture import partition_svg

console = Console(highlight=False)


def inspect_data(
    *, data: str = "digits", clients: int = 10, partition: str = "dirichlet", beta: float = 0.1, classes_per_client: int = 2,
    column: str = "writer", data_dir: str | None = None, limit: int | None = None, seed: int = 0, check: bool = True,
    out: Path | None = None, json: bool = False,
) -> int:  # fmt: skip
    """Sizes, classes per client, label skew and leaks of a partition, with a clients-by-classes picture.

    The picture goes to --out (default <data>-<partition>.svg here). --no-check leaves out the leak check.
    """
    population = build_population(
        data, clients=clients, partition=partition, beta=beta, classes_per_client=classes_per_client, column=column,
        data_dir=data_dir, seed=seed, check=check, limit=limit,
    )  # fmt: skip
    found = inspection(population)
    if json:
        print(json_module.dumps(found.as_json(), indent=2))
    else:
        console.print(found.rendered())
    path = out or Path(re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{data}-{partition}.svg"))
    try:
        path.write_text(partition_svg(found.counts.tolist(), found.names, found.classes))
    except OSError as error:
        raise ValueError(f"Can't write the picture to '{path}' ({error.strerror}). Choose another --out.") from None
    if not json:
        console.print(f"Picture: {path}")
    return 0


def check_data(
    *, data: str = "digits", clients: int = 10, partition: str = "dirichlet", beta: float = 0.1, classes_per_client: int = 2,
    column: str = "writer", data_dir: str | None = None, limit: int | None = None, seed: int = 0,
) -> int:  # fmt: skip
    """Only the leak check: what a partition would share between clients or between training and test."""
    population: Population = build_population(
        data, clients=clients, partition=partition, beta=beta, classes_per_client=classes_per_client, column=column,
        data_dir=data_dir, seed=seed, check=True, limit=limit,
    )  # fmt: skip
    findings: tuple[Any, ...] = inspection(population).findings
    for finding in findings:
        console.print(f"{finding.level}: {finding.text}")
    console.print("Nothing found." if not findings else f"{len(findings)} finding(s).")
    return 0
