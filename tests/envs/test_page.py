"""The page about environments: its code runs, and its tables name the options there are."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tomllib
from pathlib import Path

from stepwell.envs import make_env, read_options

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "environments.md").read_text()


def test_the_code_of_the_page_runs_in_order() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec("\n".join(blocks), {"__name__": "page"})
    assert "ok      oracle_solves_the_tasks" in printed.getvalue()


def test_the_configuration_of_the_page_opens() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    env = tomllib.loads(text)["env"]
    assert make_env(env["name"], env["options"]).description.actions.names == ("Left", "Down", "Right", "Up")


def test_option_tables_are_complete() -> None:
    sections = dict(re.findall(r"## ([^\n]+)\n(.*?)(?=\n## |\Z)", PAGE, flags=re.DOTALL))
    for title, name in (
        ("FrozenLake", "frozenlake"),
        ("Sokoban", "sokoban"),
        ("Gymnasium environments", "gymnasium:CartPole-v1"),
    ):
        table = sections[title].split("| option | default | |")[1].split("\n\n")[0]
        named = {
            option
            for row in table.splitlines()
            for option in re.findall(r"`(\w+)`", row.split("|")[1:2][0] if row else "")
        }
        assert named == set(type(read_options(name)).model_fields), title


def test_speeds_of_the_page_are_those_measured() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "env_speed.json").read_text())
    table = PAGE.split("## Speed")[1]
    speeds = {row["name"]: row["turns_per_s"] for row in measured["rows"]}
    for name in ("FrozenLake 4x4, text", "Sokoban 6x6, text", "Gymnasium FrozenLake 4x4, no text"):
        assert f"| {speeds[name]:,} |" in table
