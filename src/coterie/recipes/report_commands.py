"""`coterie compare` and `coterie report`: read finished runs again."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.console import Console

from coterie.report.compare import compare
from coterie.report.page import write_report

console = Console(highlight=False)


def compare_runs(
    folders: list[Path], *, test: Literal["paired", "welch"] = "paired", correct: Literal["holm", "none"] = "holm",
    model: str = "personal", metric: str | None = None, value: Literal["last", "best"] = "last",
    baseline: str | None = None, json: Path | None = None,
) -> int:  # fmt: skip
    """Finished runs side by side: mean and spread over seeds, bytes, and whether differences are more than luck.

    coterie compare RUN... --baseline fedavg --json table.json
    With several seeds the test pairs seeds; with one it pairs clients, and says so.
    """
    result = compare(
        folders, test=test, correct=correct, model=model, metric=metric, value=value, baseline=baseline, json_file=json
    )
    console.print(result.table())
    return 0


def report_runs(folders: list[Path]) -> int:
    """Write report.html again for these run folders (also while a run is still going)."""
    for folder in folders:
        console.print(f"Report: {write_report(folder)}")
    return 0
