"""Options that name what the host has are declared, and sizes have bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import AnyUrl, Field
from pydantic.fields import FieldInfo

from stepwell.config.base import ObjectName, Settings
from stepwell.core import InputError
from stepwell.envs import make_env
from stepwell.envs.frozenlake.env import FrozenLake
from stepwell.envs.gymnasium_env import GymnasiumOptions
from stepwell.envs.options import declare_host_option, find_undeclared_options, list_host_options
from stepwell.envs.registry import ENVS, find_env_type
from stepwell.envs.remote.openenv import OpenEnvOptions

FOREIGN = {"gymnasium": GymnasiumOptions, "openenv": OpenEnvOptions}
KINDS = {name: find_env_type(name).Options for name in ENVS} | FOREIGN


class Suspect(Settings):
    """Options of the kinds that give a host away, and two that do not."""

    config_path: str = ""
    place: Path = Path()
    address: AnyUrl | None = None
    games: str | None = Field(None, description="folder of games")
    kwargs: dict[str, Any] = Field(default_factory=dict)
    scorer: ObjectName = "math:sin"
    size: int = Field(3, le=9, description="rows of a file")
    text_file: str = declare_host_option("", host_only=False, description="a name, never opened")


@pytest.mark.parametrize("name", KINDS)
def test_an_option_that_looks_like_the_hosts_says_whether_it_is(name: str) -> None:
    assert find_undeclared_options(KINDS[name]) == ()


@pytest.mark.parametrize("name", KINDS)
def test_every_whole_number_of_an_option_has_an_upper_bound(name: str) -> None:
    fields = KINDS[name].model_fields
    counts = [option for option, field in fields.items() if field.annotation in (int, int | None)]
    assert [option for option in counts if not _has_bound(fields[option])] == []


def test_undeclared_options_that_look_like_the_hosts_are_the_hosts() -> None:
    expected = ("config_path", "place", "address", "games", "kwargs", "scorer")
    assert list_host_options(Suspect) == find_undeclared_options(Suspect) == expected


def test_the_known_host_options_are_declared() -> None:
    found = {name: set(list_host_options(kind)) for name, kind in KINDS.items()}
    assert {"url", "webshop_files", "transport"} <= found["shop"]
    assert "dataset" in found["multihop_qa"] and {"snapshot", "requests"} <= found["paper_search"]
    assert "games" in found["household"] and {"icons", "dino_path", "dreamsim_path"} <= found["svg"]
    assert "kwargs" in found["gymnasium"] and found["frozenlake"] == set()


def test_a_gymnasium_id_of_maniskill_imports_no_module() -> None:
    with pytest.raises(ValueError, match="task"):
        KINDS["maniskill"].model_validate({"task": "os:PickCube-v1"})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("frozenlake", {"board": ["_" * 65] * 65, "start": [0, 0], "goal": [1, 1]}),
        ("courier", {"size": [65, 65]}),
        ("sokoban", {"room": ["#" * 65] * 65}),
        ("navigation", {"size": [1e6, 1e6], "step": 1e-3}),
    ],
)
def test_a_task_that_would_take_too_much_memory_is_refused(name: str, content: dict[str, Any]) -> None:
    env = make_env(name)
    task = env.make_task(env.options, 0)
    large = type(task)(name, {**task.content, **content}, task.instruction)
    with pytest.raises(InputError, match="at most"):
        env.reset(options={"task": large})


def test_a_lake_of_the_largest_size_is_played() -> None:
    env = FrozenLake(FrozenLake.Options(size=32, max_turns=99))  # type: ignore[call-arg]
    assert env.reset(seed=0)[0].text.count("\n") >= 31


def _has_bound(field: FieldInfo) -> bool:
    return any(
        getattr(part, "le", None) is not None or getattr(part, "lt", None) is not None
        for part in field.metadata
    )
