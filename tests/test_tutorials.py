"""The pages that teach: settings in the text exist, and every tutorial shows a curve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.config.loading import load_config

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.mark.parametrize("page", sorted((DOCS / "tutorials").glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_ends_with_a_curve(page: Path) -> None:
    last = page.read_text().rpartition("\n## ")[2]
    assert last.startswith("What you should see\n")
    assert re.search(r"!\[[^\]]+\]\(\.\./images/\w+\.svg\)", last)


def read_inline_settings(page: Path) -> Iterator[list[str]]:
    """Settings in the text of a page, as `train.num_updates=60`; those of one code span are one list."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for span in re.findall(r"`([^`\n]+)`", text):
        words = [word for word in span.split() if re.fullmatch(r"[a-z_]+(\.[a-z_0-9]+)+=[\w.:/-]+", word)]
        if words and "NAME" not in span:
            yield words


TEACHING = [DOCS / name for name in ("recipes.md", "pretrained.md", "troubleshooting.md", "figures.md")]


@pytest.mark.parametrize(
    "page", [*TEACHING, *sorted((DOCS / "tutorials").glob("*.md"))], ids=lambda page: page.stem
)
def test_settings_named_in_the_text_exist(page: Path) -> None:
    for settings in read_inline_settings(page):
        load_config("frozenlake", settings)
