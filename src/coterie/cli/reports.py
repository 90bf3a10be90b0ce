"""`coterie compare` and `coterie report`: read finished runs again."""

from __future__ import annotations

from pathlib import Path

from coterie.cli.show import console
from coterie.report.compare import compare
from coterie.report.comparison import Correction, Test, Value
from coterie.report.page import write_report


def compare_runs(
    folders: list[Path], *, test: Test = "paired", correct: Correction = "holm", model: str = "personal",
    metric: str | None = None, value: Value = "last", baseline: str | None = None, json: Path | None = None,
) -> int:  # fmt: skip
    """Finished runs side by side: mean and spread over seeds, bytes, and whether differences are more than luck.

    For example: coterie compare RUN... --baseline fedavg --json table.json

    With several seeds the test pairs seeds; with one it pairs clients, and says so.

    --test      pairs of seeds (or clients), or two independent samples
    --correct   of the p-values, for several methods
    --model     personal, global or local
    --metric    what is compared (default: the main one)
    --value     last round, or the round that is best on validation
    --baseline  what every method is tested against (default: the best)
    --json      write all numbers to this file (default: no)
    """
    result = compare(
        folders, test=test, correct=correct, model=model, metric=metric, value=value, baseline=baseline, json_file=json
    )
    console.print(result.table())
    return 0


def report_runs(folders: list[Path]) -> int:
    """Write report.html again for these run folders (also while a run is still going)."""
    for folder in folders:
        console.print(f"Report: {write_report(folder)}", soft_wrap=True, markup=False)
    return 0
