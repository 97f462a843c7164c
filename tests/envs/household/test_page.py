"""The page about the household: its code runs, its tables are true."""

from __future__ import annotations

import json
import re
from pathlib import Path

from stepwell.envs import read_options
from stepwell.envs.household.catalogue import FAMILIES, FULL, TINY
from stepwell.envs.scienceworld_env import VARIATIONS
from stepwell.envs.textworld_express_env import SEEDS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "household.md").read_text()


def test_the_code_of_the_page_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(block, {"__name__": "page"})


def test_the_option_table_is_complete_and_its_defaults_are_true() -> None:
    table = PAGE.split("| option | default | |\n|---|---|---|\n")[1].split("\n\n")[0]
    shown = {row.split("|")[1].strip(" `"): row.split("|")[2].strip(' `"') for row in table.splitlines()}
    real = read_options("household").model_dump()
    assert set(shown) == set(real)
    assert shown.pop("families") == "all six" and real.pop("families") == FAMILIES
    for option, value in real.items():
        assert shown[option] == ("none" if value is None else str(value)), option


def test_limits_and_counts_are_those_there_are() -> None:
    assert f"{FULL.max_turns}, tiny {TINY.max_turns}" in PAGE
    assert f"{FULL.spare_turns}, tiny {TINY.spare_turns}" in PAGE
    assert f"{len(VARIATIONS)} kinds of experiments, {sum(VARIATIONS.values()):,} variations" in PAGE
    assert f"{sum(map(len, SEEDS.values())):,} seeds each" in PAGE


def test_figures_are_those_of_the_benchmark() -> None:
    result = json.loads((ROOT / "benchmarks" / "results" / "household.json").read_text())
    for row in result["play"]:
        told = PAGE.split(f"| {row['size']}, {row['side']} |")[1].split("\n")[0]
        steps = [int(count) for count in row["golden_steps"]]
        assert f" {row['oracle']:.3f} | {row['explorer']:.3f} | {row['explorer_turns_mean']:.1f} |" in told
        assert f"| {row['golden_mean']:.1f} ({min(steps)} to {max(steps)}) | {row['random']:.3f} |" in told
