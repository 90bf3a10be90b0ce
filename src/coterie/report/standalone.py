"""A picture of the report as a file of its own: the page's colours are written into it."""

from __future__ import annotations

import re
from importlib import resources


def standalone(picture: str) -> str:
    """The SVG with the light page's style inside, for viewers that know no page."""
    css = resources.files("coterie.report").joinpath("page.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]+);", css.partition("@media")[0]))
    rules = [line for line in css.splitlines() if line.startswith(("svg.plot", ".s"))]
    style = re.sub(r"var\(--([a-z0-9-]+)\)", lambda found: colours[found[1]], "\n".join(rules))
    width, height = re.findall(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', picture)[0]
    head, body = re.sub(r' data-lines="[^"]*"', "", picture).split(">", 1)  # what only the page's pointer reads
    head = head.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="system-ui, sans-serif" ')
    return f'{head}><style>{style}</style><rect width="{width}" height="{height}" fill="{colours["paper"]}"/>{body}\n'
