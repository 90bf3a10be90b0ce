"""Pictures and videos that a run wrote, inside the page where they are small."""

from __future__ import annotations

import base64
from pathlib import Path

from coterie.report import markup
from coterie.report.run import Run

EMBEDDED = 8_000_000  # bytes in all; beyond this the page links to the files instead
KINDS = {".png": "image/png", ".mp4": "video/mp4"}


def media_section(run: Run) -> str:
    """What lies in `media`: embedded up to 8 MB, otherwise linked (then the page needs the folder beside it)."""
    files = sorted(path for path in (run.path / "media").glob("*") if path.suffix.lower() in KINDS)
    if not files:
        return ""
    small = sum(path.stat().st_size for path in files) <= EMBEDDED
    note = (
        "" if small else markup.paragraph("These files are too large for this page: keep the folder 'media' beside it.", "note")
    )
    figures = "".join(markup.figure(_tag(path, _source(path, small)), path.stem.replace("_", " ")) for path in files)
    return markup.section("Made by this run", f'<div class="media">{figures}</div>', note)


def _source(path: Path, small: bool) -> str:
    if not small:
        return markup.escape(f"media/{path.name}")
    return f"data:{KINDS[path.suffix.lower()]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _tag(path: Path, source: str) -> str:
    name = markup.escape(path.stem)
    if path.suffix.lower() == ".mp4":
        return f'<video src="{source}" controls loop muted playsinline aria-label="{name}"></video>'
    return f'<img src="{source}" alt="{name}">'
