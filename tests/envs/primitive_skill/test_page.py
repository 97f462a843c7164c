"""The page about PrimitiveSkill: its code runs, its tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("mujoco")

from stepwell.envs.primitive_skill.options import PrimitiveSkillOptions
from stepwell.envs.primitive_skill.table import NAMES, NUM_STAGES

PAGE = (Path(__file__).parent.parent.parent.parent / "docs" / "primitive_skill.md").read_text()


def test_the_code_of_the_page_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(code, {"__name__": "page"})


def test_the_tables_name_every_option_and_task() -> None:
    options = PAGE.split("| option | default | |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", options, flags=re.MULTILINE)) == set(
        PrimitiveSkillOptions.model_fields
    )
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", PAGE.split("| option")[0], flags=re.MULTILINE)
    assert {name: len(stages.split(";")) for name, stages in rows} == NUM_STAGES
    assert set(NUM_STAGES) == set(NAMES)
