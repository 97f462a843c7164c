"""Tool and text environments behind the service: calls, mistakes and golden steps cross the wire."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.core import ToolCall
from stepwell.envs import make_env
from stepwell.envs.adversarial_actions import list_adversarial_actions


def play_episode(env: Any, task: Any) -> list[Any]:
    """The oracle's episode, including what reset returned."""
    told: list[Any] = [env.reset(options={"task": task})]
    while True:
        told.append(env.step(env.description.actions.first_turn(env.oracle())))
        if told[-1][2]:
            return told


@pytest.mark.parametrize("name", ["multihop_qa", "household"])
def test_a_remote_environment_is_solved_like_the_local_one(url: str, name: str) -> None:
    local, remote = (make_env(where, {"size": "tiny"}) for where in (name, f"remote:{url}#{name}"))
    assert remote.description == local.description
    for seed in range(3):
        task = local.make_task(local.options, seed)
        told = play_episode(remote, task)
        assert told == play_episode(local, task)
        assert told[0][1]["golden"] == len(told) - 1
        assert told[-1][4]["success"]
    remote.close()


def test_mistakes_are_observations_remotely_too(url: str) -> None:
    remote = make_env(f"remote:{url}#multihop_qa", {"size": "tiny"})
    task = remote.make_task(remote.options, 0)
    first, _ = remote.reset(options={"task": task})
    turn = remote.step([ToolCall("no_such_tool", {}).text])
    assert "no_such_tool" in turn[0].text and turn[0].text != first.text
    odd = [
        odd.action
        for odd in list_adversarial_actions(remote.description.actions)
        if not odd.is_call and len(odd.action) < 10**5
    ]
    for action in odd:
        remote.reset(options={"task": task})
        assert remote.step([action])[0].text != first.text
    remote.close()
