"""The images of the documentation show what the committed results say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_docs", ROOT / "scripts" / "draw_docs.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_image_is_what_the_results_give(drawing: ModuleType) -> None:
    drawn = drawing.draw_all()
    assert {path.name for path in IMAGES.glob("*.svg")} == set(drawn)
    for name, svg in drawn.items():
        assert (IMAGES / name).read_text() == svg, f"{name} is old: run python scripts/draw_docs.py"


def test_every_image_is_valid_xml_and_shown_on_a_page(drawing: ModuleType) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {name for page in pages for name in re.findall(r"images/(\w+\.svg)\)", page.read_text())}
    assert shown == {path.name for path in IMAGES.glob("*.svg")}
    for path in IMAGES.glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_every_screenshot_is_made_by_the_browser_tests_or_a_script_and_shown_on_a_page() -> None:
    tests = (ROOT / "tests" / "view" / "test_browser.py").read_text()
    made = {f"view-{name}.png" for name in re.findall(r'take_shot\(page, "(\w+)"\)', tests)}
    script = (ROOT / "scripts" / "shoot_sites.py").read_text()
    made |= {f"site-{name}.png" for name in re.findall(r'^    "(\w+)": "/', script, re.MULTILINE)}
    shown = {
        name
        for page in (ROOT / "docs").rglob("*.md")
        for name in re.findall(r"images/([\w-]+\.png)\)", page.read_text())
    }
    assert {path.name for path in IMAGES.glob("*.png")} == made == shown


@pytest.mark.parametrize("name", ["text_agent", "courier"])
def test_the_animation_ends_at_the_goal_only_after_training(drawing: ModuleType, name: str) -> None:
    record = drawing.read_recorded(name)
    assert record["episodes"]["before"]["task"] == record["episodes"]["after"]["task"]
    final = {
        stage: drawing.read_board(episode["final_board"]) for stage, episode in record["episodes"].items()
    }
    assert "*" in "".join(final["after"]) and "*" not in "".join(final["before"])
