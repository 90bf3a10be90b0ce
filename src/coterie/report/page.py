"""report.html: one file that says what ran, what came out and what it cost, and opens without a network."""

from __future__ import annotations

from pathlib import Path

from coterie.report.overview import overview_page
from coterie.report.read import find_runs, read_run
from coterie.report.single import run_page


def write_report(folder: Path | str) -> Path:
    """Write `report.html` into a run folder, or into a folder of runs and each of its runs."""
    path = Path(folder)
    paths = find_runs(path)
    if paths == [path]:
        return _write(path, run_page(read_run(path)))
    runs = [read_run(each) for each in paths]
    for run in runs:
        up = "../" * len(run.path.relative_to(path).parts)
        _write(run.path, run_page(run, above=f"{up}report.html"))
    return _write(path, overview_page(path, runs))


def _write(folder: Path, page: str) -> Path:
    """The whole file or the old one: a reader never opens half a page."""
    target, partial = folder / "report.html", folder / ".report.html.partial"
    try:
        partial.write_text(page, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        raise ValueError(f"The report cannot be written to '{target}' ({error.strerror}). Make the folder writable.") from error
    return target
