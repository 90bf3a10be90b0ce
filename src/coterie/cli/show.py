"""What the commands print: texts about keys, tables, and where results lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from coterie.options import Option, options_of, options_of_fields, paragraphs_of, table_of

console = Console(highlight=False)

KEY_HELP = {
    "rounds": "rounds of the main training phase",
    "clients": "number of clients",
    "cohort": "clients per round (default: all)",
    "data": "data set (coterie list)",
    "partition": "how examples go to clients",
    "classes_per_client": "of pathological clients",
    "column": "whose values are the clients",
    "data_dir": "folder of the data set (default: $COTERIE_DATA)",
    "size": "pictures are resized to a square of so many pixels (default: as they are)",
    "limit": "use that many examples only (default: all)",
    "beta": "label skew of Dirichlet clients: 0.1 strong, 100 nearly none",
    "lr": "learning rate",
    "epochs": "local epochs per round",
    "batch_size": "examples per step",
    "buffers": "batch-norm statistics are averaged, each client's own, or the server's",
    "anchors": "FABLE's anchors per client",
    "momentum": "of SGD",
    "weight_decay": "of SGD",
    "methods": "which ones (coterie list)",
}

SETTING_HELP = {
    "seed": "all random numbers of the run follow from it",
    "backend": "one client after another, many processes, recorded steps, or many clients at once",
    "workers": "processes of the pool (default: one per core)",
    "width": "clients that backend stacked computes at once (default: 10; auto tries several)",
    "threads": "threads of the loop; 1 gives the same bits as the pool",
    "devices": "auto, cpu, cuda, cuda:0, or several with commas: a worker for each",
    "precision": "fp32 is true fp32 (TF32 off); bf16: the net computes in bfloat16, parameters stay fp32",
    "order": "order of computation; changes no number",
    "eval_every": "evaluate every so many rounds, and after the last",
    "eval_clients": "all (up to 200, then a fixed 200), cohort, or a number",
    "checkpoint_every": "rounds between checkpoints",
    "row_memory_mb": "client rows beyond this many MB wait on disk",
    "min_cohort": "a round with fewer returning clients is repeated",
    "max_attempts": "so many times, then the run stops",
    "norm_ratio": "an update this many times longer than the model is refused",
    "record_messages": "keep what the server sees of so many first rounds, or of rounds 1,50, for coterie attack",
    "quiet": "no progress display",
}


def setting_options() -> dict[str, Option]:
    from coterie.engine.settings import Settings

    return options_of_fields(Settings, SETTING_HELP)


def finish(out: Path, table: RenderableType | None = None) -> None:
    """A table of what came out, and where to look."""
    from coterie.report.page import write_report
    from coterie.report.table import final_table

    table = table or final_table(out)
    console.print(table or "No results: no client has test examples. Use fewer clients or more data.")
    console.print(Text(f"Report: {write_report(out)}"), soft_wrap=True)


def wants_help(words: Sequence[str]) -> bool:
    return "--help" in words or "-h" in words


def print_doc(title: str, function: Callable[..., Any], *instead: str) -> None:
    console.print(Text(f"{title}\n", style="bold"))
    print_paragraphs(function, *instead)


def print_paragraphs(function: Callable[..., Any], *instead: str) -> None:
    for paragraph in instead or paragraphs_of(function):
        console.print(Text(f"{paragraph}\n"))


def print_rows(rows: Mapping[str, str]) -> None:
    """Names and texts in two columns."""
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(no_wrap=True)
    for name, text in rows.items():
        table.add_row(Text(f"  {name}"), Text(text))
    console.print(table)


def first_line(function: Callable[..., Any]) -> str:
    return next(iter(paragraphs_of(function)), "")


def function_help(title: str, function: Callable[..., Any]) -> int:
    print_doc(f"coterie {title}", function)
    options = options_of(function, KEY_HELP).values()
    if options:
        console.print(table_of(options))
    return 0
