"""Environments that still describe themselves as `world` work, with a warning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.policies.vla.point_env import PointEnv

from stepwell.agents import Agent
from stepwell.config.run import AgentConfig
from stepwell.core import EnvDescription
from stepwell.envs import make_env
from stepwell.envs.base import Env
from stepwell.envs.frozenlake.env import FrozenLake


def test_an_env_that_overrides_the_old_name_is_described_by_it() -> None:
    with pytest.warns(DeprecationWarning, match=r"OldLake\.world is now called description: rename it"):

        class OldLake(FrozenLake):
            @property
            def world(self) -> EnvDescription:
                return replace(super().world, guide="An old guide.")  # type: ignore[misc]

    with pytest.warns(DeprecationWarning, match=r"FrozenLake\.world is now FrozenLake\.description"):
        described = OldLake().description
    assert described == replace(FrozenLake().description, guide="An old guide.")


def test_an_old_class_attribute_makes_an_env_complete() -> None:
    described = FrozenLake().description
    members: dict[str, Any] = {
        name: getattr(FrozenLake, name) for name in ("name", "make_task", "begin", "act", "observe", "oracle")
    }
    with pytest.warns(DeprecationWarning, match=r"is now called description"):
        old = type("Old", (Env,), {**members, "world": described})
    assert old().description is described


def test_env_and_agent_are_still_read_by_the_old_name() -> None:
    env = make_env("frozenlake")
    with pytest.warns(DeprecationWarning, match=r"FrozenLake\.world is now FrozenLake\.description"):
        assert env.world == env.description  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match=r"Agent\.__init__\(world=\) is now description="):
        agent = Agent(world=env.description, config=AgentConfig())  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match=r"Agent\.world is now Agent\.description"):
        assert agent.world is agent.description  # type: ignore[attr-defined]


def test_a_robot_env_that_draws_by_the_old_name_is_complete() -> None:
    with pytest.warns(DeprecationWarning, match=r"is now called image: rename it"):

        class Old(PointEnv):
            def picture(self, camera: str) -> Any:
                return super().picture(camera) // 2  # type: ignore[misc]

    env = Old()
    env.reset(seed=0)
    with pytest.warns(DeprecationWarning, match=r"PointEnv\.picture is now PointEnv\.image"):
        assert env.render().max() <= 127
