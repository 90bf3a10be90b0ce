"""The page around the pictures: style, script, tables, and nothing that needs a network."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources


def escape(text: str) -> str:
    """Names come from data and methods; none of them may become markup."""
    return html.escape(text, quote=True)


@dataclass(frozen=True)
class Cell:
    """A table cell: `text` is escaped, `markup` (made here, never read from a file) is not."""

    text: str = ""
    markup: str = ""
    word: bool = False
    strong: bool = False
    wrap: bool = False

    def render(self) -> str:
        kinds = [name for name, on in (("word", self.word or self.wrap), ("top", self.strong), ("wrap", self.wrap)) if on]
        attribute = f' class="{" ".join(kinds)}"' if kinds else ""
        return f"<td{attribute}>{self.markup or escape(self.text)}</td>"


def word(text: str) -> Cell:
    return Cell(text, word=True)


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], *, words: int = 1) -> str:
    """A table whose first `words` columns are words (left) and whose others are numbers (right)."""
    titles = "".join(f"<th{' class=word' if index < words else ''}>{escape(title)}</th>" for index, title in enumerate(head))
    body = "".join(f"<tr>{''.join(cell.render() for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


def section(title: str, *parts: str) -> str:
    """A heading and what stands under it; nothing at all where every part is empty."""
    body = "".join(part for part in parts if part)
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{f' class={kind}' if kind else ''}>{escape(text)}</p>"


def figure(picture: str, caption: str = "", *, wide: bool = False) -> str:
    legend = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure{' class=wide' if wide else ''}>{picture}{legend}</figure>"


def grid(figures: Iterable[str]) -> str:
    joined = "".join(figures)
    return f'<div class="charts">{joined}</div>' if joined else ""


def tiles(entries: Iterable[tuple[str, str, str, int | None]]) -> str:
    """(big number, its name, a remark, colour of the series or None)."""
    parts = []
    for value, name, remark, colour in entries:
        dot = f'<i class="s{colour}"></i>' if colour is not None else ""
        words = f"<span>{dot}{escape(name)}</span><b>{escape(value)}</b><span>{escape(remark)}</span>"
        parts.append(f'<div class="tile">{words}</div>')
    return f'<div class="tiles">{"".join(parts)}</div>'


def pairs(entries: Iterable[tuple[str, str]]) -> str:
    """A list of names and values."""
    body = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in entries if value)
    return f"<dl>{body}</dl>" if body else ""


def folded(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>" if body else ""


def box(*paragraphs: str) -> str:
    return f'<div class="box">{"".join(paragraph(text) for text in paragraphs)}</div>'


def link(target: str, text: str) -> str:
    return f'<a href="{escape(target)}">{escape(text)}</a>'


def document(title: str, head: str, body: str) -> str:
    """The whole file."""
    rooms = resources.files("coterie.report")
    style, script = (rooms.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body><main><header>{head}</header>{body}"
        "<footer>Written by coterie from the files of this run folder: run.json, metrics.jsonl, clients.csv, wire.jsonl, "
        'summary.json.</footer></main><div id="readout"></div>'
        f"<script>{script}</script></body></html>\n"
    )
