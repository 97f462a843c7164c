"""A model behind a chat API writes the tasks of a phase: asked over a real socket, screened as all are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.rollout.chat_server import Body, chatting, refusal

from stepwell.config.curriculum import TaskEndpointConfig
from stepwell.config.loading import load_config
from stepwell.core import ConfigError
from stepwell.curriculum import PhaseFiles
from stepwell.runs.loop.task_endpoint import TaskEndpoint
from stepwell.runs.run import train

HOUSE = (
    "env.name=household",
    'env.options={size="tiny", families=["place"]}',
    "agent.guide=false",
    "agent.context=observation",
    "policy.model=tiny-0.3m",
    "sampling.max_tokens=4",
    "recipe.name=webrl",
    "curriculum.num_phases=2",
    "curriculum.min_value=0",
    "curriculum.max_value=1",
    "curriculum.max_tries=3",
    "curriculum.generator=endpoint",
    "curriculum.endpoint.model=writer",
    "train.num_updates=2",
    "train.tasks_per_update=8",
    "train.group_size=1",
    "train.num_tasks=16",
    "eval.num_tasks=0",
    "monitor.console=false",
    "monitor.tensorboard=false",
    "monitor.report=false",
    "num_threads=1",
)


def write_by_rule(body: Body) -> Body:
    """Things and places of the listed tasks, put together anew; feasible unless it is about a moon."""
    system, user = (message["content"] for message in body["messages"])
    if "<answer>" in system:
        return {"content": f"<answer>{'NO' if 'moon' in user else 'YES'}</answer>"}
    listed = re.findall(r"put (\w+) in (\w+)", user)
    swapped = [f"put {thing} in {place}" for thing, _ in listed for _, place in reversed(listed)]
    return {
        "content": "\n".join(f"<task>{text}</task>" for text in (*swapped, "go to the moon", "put x in y"))
    }


def test_a_phase_has_tasks_that_a_model_wrote(tmp_path: Path) -> None:
    with chatting() as server:
        server.say = write_by_rule
        where = (f"folder={tmp_path}", "name=run", f"curriculum.endpoint.url={server.url}")
        folder = train(load_config(None, [*HOUSE, *where]))
    files = PhaseFiles(folder / "tasks")
    made = [each for each in files.read_phase(2) if each.parents]
    earlier = {each.task.id for each in files.read_phase(1)}
    assert made and {(each.generator, each.relation) for each in made} == {("endpoint", "breadth-1")}
    assert all(set(each.parents) <= earlier and each.num_turns for each in made)
    reasons = {each.reason for each in files.read_dropped(2)}
    assert {"infeasible (by the model)", "no checker"} <= reasons


def test_a_refusal_of_the_api_names_the_settings_to_check() -> None:
    with chatting() as server:
        server.failures = [refusal(401, "no such key")]
        endpoint = TaskEndpoint(TaskEndpointConfig(url=server.url, model="writer"))
        with pytest.raises(ConfigError, match=r"check curriculum\.endpoint"):
            endpoint([[{"role": "user", "content": "hello"}]])


def test_an_endpoint_needs_an_address_and_an_environment_that_reads_instructions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs endpoint\.url and endpoint\.model"):
        load_config(None, ["curriculum.generator=endpoint"])
    where = (f"folder={tmp_path}", "curriculum.endpoint.url=http://localhost:9/v1", "env.name=frozenlake")
    with pytest.raises(ConfigError, match="cannot make a task from an instruction"):
        train(load_config(None, [*HOUSE[2:], *where]))
