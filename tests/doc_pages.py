"""Code blocks of the documentation, and the command lines in them, as a shell would read them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
_SHELLS = ("bash", "sh")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, and its text."""

    language: str
    text: str

    @property
    def is_shell(self) -> bool:
        return self.language in _SHELLS


def read_blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    return [Block(*found) for found in _FENCE.findall(page.read_text())]


def list_pages() -> list[Path]:
    """The README and every page of the documentation that has commands: tutorials first."""
    tutorials = sorted((DOCS / "tutorials").glob("*.md"))
    others = [path for path in sorted(DOCS.rglob("*.md")) if path not in tutorials]
    pages = [*tutorials, ROOT / "README.md", *others]
    return [page for page in pages if any(block.is_shell for block in read_blocks(page))]


def split_commands(block: str) -> Iterator[list[str]]:
    """The words of every command of a block: without comments, continued lines joined, `&&` apart."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(_drop_comment(line))
        while "&&" in words:
            place = words.index("&&")
            yield words[:place]
            words = words[place + 1 :]
        if words:
            yield words


def _drop_comment(line: str) -> str:
    """What stands before a `#` that begins a word outside quotes."""
    quote = ""
    for place, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (place == 0 or line[place - 1] == " "):
            return line[:place]
    return line
