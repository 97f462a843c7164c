"""The pages that teach: commands are understood as typed, settings exist, and every page shows a curve."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.cli.main import build_parser
from stepwell.config.loading import load_config

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    path for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))] if "```bash\n" in path.read_text()
]


def read_commands(page: Path) -> Iterator[list[str]]:
    """The command lines of `stepwell` on a page, without comments; continued lines are joined."""
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=" #" in line)
            if words and words[0] == "stepwell":
                yield words[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_is_understood(page: Path) -> None:
    for words in read_commands(page):
        args, rest = build_parser().parse_known_args(words)
        assert all("=" in word and not word.startswith("-") for word in rest), words
        if words[0] == "train" and not (args.resume or args.env) and not words[1].endswith(".toml"):
            settings = [word for word in words[2:] if re.match(r"[a-z_]+(\.[a-z_0-9]+)*=", word)]
            assert load_config(words[1], settings).env.name


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
