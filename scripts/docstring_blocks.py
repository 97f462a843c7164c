"""Docstrings as the site shows them: columns become tables, examples become code.

A docstring is written to be read in a terminal. Markdown would run lines of its columns together, and take
`>>>` for a quotation. mkdocstrings calls this extension for every object that it reads (`mkdocs.yml`).
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROW = re.compile(r"\S.*?\s{2,}\S")


class DocstringBlocks(griffe.Extension):
    """Rewrites the docstring of each object, paragraph by paragraph."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            paragraphs = re.split(r"\n{2,}", obj.docstring.value)
            obj.docstring.value = "\n\n".join(map(format_paragraph, paragraphs))


def format_paragraph(text: str) -> str:
    """A table or a block of code as Markdown has them; other paragraphs stay as they are."""
    lines = text.splitlines()
    if text.startswith(">>>"):
        return f"```pycon\n{text}\n```"
    if len(lines) > 1 and _ROW.match(text) and all(_ROW.match(line) or line[:2] == "  " for line in lines):
        return _make_table(lines)
    return text


def _make_table(lines: list[str]) -> str:
    """Names in the first column; a line that is indented continues the row above it."""
    rows: list[list[str]] = []
    for line in lines:
        if line[:2] == "  ":
            rows[-1][-1] += f" {line.strip()}"
        else:
            rows.append(re.split(r"\s{2,}", line.strip()))
    width = max(map(len, rows))
    cells = [[f"`{row[0]}`", *[""] * (width - len(row)), *row[1:]] for row in rows]
    table = [[""] * width, ["---"] * width, *cells]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table)
