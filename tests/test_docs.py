"""The code in the documentation runs, and does what the text says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def code_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run(code: str, cwd: Path) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.slow
def test_the_tour_of_the_core_learns_what_it_promises(tmp_path: Path) -> None:
    (code,) = code_of("docs/index.md")
    success = float(run(code, tmp_path).split(":")[1])
    assert success > 0.85


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/agents.md",
        "docs/agents_as_they_are.md",
        "docs/configuration.md",
        "docs/engine.md",
        "docs/gateway.md",
        "docs/maths.md",
        "docs/models.md",
        "docs/packing.md",
        "docs/pool.md",
        "docs/report.md",
        "docs/vision.md",
        "docs/worlds_with_tools.md",
    ],
)
def test_the_examples_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    blocks = code_of(page)
    assert blocks
    run("\n".join(blocks), tmp_path)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
