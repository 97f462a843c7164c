"""Settings and sessions of pages: TOML blocks load, and a `console` block prints what the page says."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from tests.doc_pages import DOCS, read_blocks

from stepwell.cli.main import main
from stepwell.config.loading import load_config
from stepwell.config.profile import PipelineProfile
from stepwell.config.study import load_study, plan_runs

BLOCKS = [
    pytest.param(page, block.text, id=f"{page.stem}-{number}")
    for page in sorted(DOCS.rglob("*.md"))
    for number, block in enumerate(read_blocks(page))
    if block.language == "toml"
]
ELSEWHERE = ("environments", "extending")  # the first has a test of its own, the second is a pyproject.toml
# Variants that the parts of a study's file name and the page leaves out.
VARIANTS = "".join(
    f'[[variants]]\nname = "{name}"\n' for name in ("ppo", "steppo", "steppo-0.95", "ppo-0.95")
)


@pytest.mark.parametrize(("page", "text"), BLOCKS)
def test_a_toml_block_loads(page: Path, text: str, tmp_path: Path) -> None:
    if page.stem in ELSEWHERE:
        return
    file = tmp_path / "shown.toml"
    file.write_text(text)
    if page.stem == "planner":
        assert PipelineProfile.read_file(file).name
    elif page.stem == "studies":
        is_whole = text.startswith("name = ")
        file.write_text(text if is_whole else f'name = "shown"\n{VARIANTS}{text}')
        study = load_study(file)
        assert plan_runs(study, tmp_path, tmp_path / "runs")
    else:
        assert load_config(str(file), []).seed >= 0


def read_session(page: str) -> tuple[list[str], str]:
    """The command of the page's only session, and what it prints."""
    (block,) = (block for block in read_blocks(DOCS / page) if block.language == "console")
    command, _, shown = block.text.removeprefix("$ stepwell ").partition("\n")
    return shlex.split(command), shown


def test_two_mistakes_are_told_at_once_as_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = next(block.text for block in read_blocks(DOCS / "configuration.md") if block.language == "toml")
    assert "num_updates = " in file
    Path("my.toml").write_text(file.replace("num_updates", "num_update"))
    words, shown = read_session("configuration.md")
    assert main(words) == 2
    assert capsys.readouterr().err == shown


def test_a_wrong_declaration_is_found_as_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_module", raising=False)  # of another page
    tutorial = next(block.text for block in read_blocks(DOCS / "tutorials" / "own_credit.md"))
    text = tutorial.replace("best_of_siblings", "my_credit").replace("compares_siblings=True", "")
    Path("my_module.py").write_text(text)
    words, shown = read_session("extending.md")
    try:
        assert main(words) == 1
    finally:
        sys.modules.pop("my_module", None)
    assert shown in capsys.readouterr().out
