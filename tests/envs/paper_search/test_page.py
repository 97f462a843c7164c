"""The page about paper search: its code runs, its table names the options there are, its counts are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepwell.agents import Agent
from stepwell.config.run import AgentConfig
from stepwell.core import ConfigError, Split
from stepwell.envs import draw_tasks, make_env, read_options

PAGE = (Path(__file__).parents[3] / "docs" / "paper_search.md").read_text()


def test_the_code_of_the_page_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(code, {"__name__": "page"})


def test_the_option_table_is_complete_and_its_defaults_true() -> None:
    table = PAGE.split("| option | default | |\n|---|---|---|\n")[1].split("\n\n")[0]
    shown = {}
    for row in table.splitlines():
        names, default = (row.split("|")[column] for column in (1, 2))
        shown |= dict.fromkeys(re.findall(r"`(\w+)`", names), default.strip().strip('`"'))
    real = read_options("paper_search").model_dump()
    told = {name: "none" if value is None else str(value) for name, value in real.items()}
    assert shown == told


def test_the_number_of_tiny_tasks_is_true() -> None:
    count = int(re.findall(r"There are ([\d,]+) tasks", PAGE)[0].replace(",", ""))
    with pytest.raises(ConfigError) as refused:
        draw_tasks("paper_search", {"size": "tiny"}, Split.TRAIN, 10_000, 0, held_out_share=0.0)
    assert f"has {count} train tasks" in str(refused.value)


def test_tiny_prompts_are_as_short_as_told() -> None:
    limit = int(re.findall(r"stay below ([\d,]+) characters", PAGE)[0].replace(",", ""))
    env = make_env("paper_search", {"size": "tiny"})
    agent = Agent(env.description, AgentConfig(context="observation", strategy="no_think"))
    longest = 0
    for seed in range(40):
        observation, _ = env.reset(seed=seed)
        for _ in range(env.description.max_turns):
            longest = max(longest, len(agent.system_prompt()) + len(observation.text))
            observation, *_ = env.step(env.oracle())
    assert limit / 2 < longest < limit
