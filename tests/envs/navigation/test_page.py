"""The page about environments that are seen: its code runs, its tables name the options there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepwell.envs import make_env, read_options
from stepwell.envs.navigation.things import KINDS

PAGE = (Path(__file__).parents[3] / "docs" / "visual_environments.md").read_text()


def test_the_code_of_the_page_runs_in_order() -> None:
    pytest.importorskip("resvg_py")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec("\n".join(blocks), {"__name__": "page"})
    assert len(blocks) == 2


@pytest.mark.parametrize(("title", "name"), [("SVG reconstruction", "svg"), ("Navigation", "navigation")])
def test_option_tables_are_complete_and_their_defaults_true(title: str, name: str) -> None:
    section = PAGE.split(f"## {title}\n")[1]
    table = section.split("| option | default | |\n|---|---|---|\n")[1].split("\n\n")[0]
    shown = {}
    for row in table.splitlines():
        names, defaults = (row.split("|")[column] for column in (1, 2))
        options, values = re.findall(r"`(\w+)`", names), [value.strip() for value in defaults.split(",")]
        shown |= dict(zip(options, values * (len(options) if len(values) == 1 else 1), strict=True))
    real = read_options(name).model_dump()
    assert set(shown) == set(real)
    for option, value in real.items():
        told = shown[option].strip('`"')
        assert told == (
            "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value).lower()
        )


def test_actions_and_furniture_are_those_there_are() -> None:
    assert f"{len(KINDS)} kinds of furniture" in PAGE
    assert all(f"`{action}`" in PAGE for action in make_env("navigation").description.actions.names)
