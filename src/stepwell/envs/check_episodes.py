"""Episodes that the checker plays: at random, and with the oracle."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from stepwell.core import ConfigError, Observation, Task
from stepwell.envs.base import Env
from stepwell.envs.baselines import draw_random_turn

Answer = tuple[Observation, float, bool, bool, dict[str, Any]]


def play_randomly(env: Env, task: Task, rng: random.Random, seed: int | None = None) -> Iterator[Answer]:
    """Turns of random length (at least one action) until the end, or one past the limit."""
    env.reset(seed=rng.getrandbits(32) if seed is None else seed, options={"task": task})
    actions = env.description.actions
    is_known = has_random_play(env)
    for _ in range(env.description.max_turns + 1):
        count = rng.randint(1, actions.max_per_turn)
        turn = env.step(
            draw_random_turn(env, rng, count) if is_known else rng.choices(("a", "b", "c"), k=count)
        )
        yield turn
        if turn[2] or turn[3]:
            return


def solves_randomly(env: Env, task: Task, rng: random.Random) -> bool:
    """Whether one random episode solves a task."""
    return bool(list(play_randomly(env, task, rng))[-1][4]["success"])


def has_random_play(env: Env) -> bool:
    """Whether there is a random action now; most environments of free text have none."""
    try:
        env.random_action(random.Random(0))
    except ConfigError:
        return False
    return True


def follow_oracle(env: Env, task: Task) -> tuple[bool, int]:
    """Whether as many of the oracle's actions per turn as are allowed solve a task, and the turns it took."""
    env.reset(options={"task": task})
    for number in range(1, env.description.max_turns + 1):
        _, _, terminated, truncated, info = env.step(env.description.actions.first_turn(env.oracle()))
        if terminated or truncated:
            return bool(info["success"]), number
    return False, env.description.max_turns
