"""The page about robots: its code runs, its options are those there are, its figures those measured."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from stepwell.envs.registry import ROBOT_ENVS
from stepwell.envs.robots import RobotOptions

pytest.importorskip("metaworld")
ROOT = Path(__file__).parent.parent.parent.parent
PAGE = (ROOT / "docs" / "robots.md").read_text()
MEASURED = json.loads((ROOT / "benchmarks" / "results" / "robot_envs.json").read_text())


def test_the_code_of_the_page_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for code in blocks:
            exec(code, {"__name__": "page"})
    lines = printed.getvalue().splitlines()
    assert lines[0] == "push the puck to the goal" and lines[2].startswith("True ")
    assert len(blocks) == 2 and 0.0 < float(lines[-1]) < 1.0


def test_every_env_and_common_option_is_on_the_page() -> None:
    for name in ROBOT_ENVS:
        assert f"| `{name}` |" in PAGE and f"stepwell[{name}]" in PAGE
    table = PAGE.split("## Common options")[1].split("\n\n")[1]
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == set(RobotOptions.model_fields)


def test_figures_of_the_page_are_those_measured() -> None:
    for row in MEASURED["rows"]:
        assert f"| {row['name']} | {row['open_s']} | {row['next_copy_s']} | {row['reset_ms']} |" in PAGE
        assert f"| {row['actions_per_s']:,.0f} | {row['with_camera_64_per_s']:,.0f} |" in PAGE
    for row in MEASURED["experts"]:
        solved = f"{row['within_100']} / {row['within_200']} / {row['within_300']}"
        assert f"| `{row['task']}` | {solved} | {row['actions']} |" in PAGE
    assert f"how many of {MEASURED['num_tasks']} tasks" in PAGE
