"""Baselines that do not look at the observation: random play, and the best fixed plan.

A blind plan is one list of actions, the same for every task. A beam search finds a good one on the training
tasks: it extends all prefixes of one length at once, on tables of the tasks, and ranks them by the tasks they
solve and by the distance of the other tasks to the goal. The plan is then scored on other tasks. An agent
that scores no more than this has not learnt to use its observations.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepwell.config.base import Settings
from stepwell.core import ConfigError, InputError, Task
from stepwell.envs.base import Env
from stepwell.envs.registry import make_env
from stepwell.envs.tables import TableBatch

Options = Mapping[str, Any] | Settings | None


@dataclass(frozen=True, slots=True)
class BlindPlan:
    """A fixed plan, and the share of tasks it solves: where it was sought, and elsewhere."""

    actions: tuple[str, ...]
    train_success: float
    success: float


def measure_random_play(name: str, options: Options, tasks: Sequence[Task], seed: int) -> float:
    """Share of tasks solved by turns full of uniformly random actions."""
    _check_tasks(tasks)
    rng = random.Random(seed)
    with make_env(name, options) as env:
        return sum(_play_random_episode(env, task, rng) for task in tasks) / len(tasks)


def find_blind_plan(
    name: str,
    options: Options,
    train_tasks: Sequence[Task],
    tasks: Sequence[Task],
    *,
    beam_width: int = 2000,
) -> BlindPlan:
    """The best plan found on `train_tasks`, scored on `tasks`."""
    _check_tasks(train_tasks)
    _check_tasks(tasks)
    with make_env(name, options) as env:
        train, test = _build_tables(env, train_tasks), _build_tables(env, tasks)
        names = env.description.actions.names
        length = env.description.max_turns * env.description.actions.max_per_turn
    plan = _search_plan(train, length, beam_width)
    actions = tuple(names[number] for number in plan)
    return BlindPlan(actions, score_plan(train, plan), score_plan(test, plan))


def score_plan(tables: TableBatch, plan: Sequence[int]) -> float:
    """Share of tasks that a plan (action numbers) solves."""
    rows = np.arange(tables.next_states.shape[0])
    states = np.zeros_like(rows)
    for action in plan:
        states = tables.next_states[rows, states, action]
    return float(tables.solved[rows, states].mean())


def _search_plan(tables: TableBatch, length: int, beam_width: int) -> tuple[int, ...]:
    """Extend the `beam_width` best prefixes by every action, and repeat."""
    num_tasks, _, num_actions = tables.next_states.shape
    rows = np.arange(num_tasks)
    close = tables.compute_closeness(length)
    states = np.zeros((1, num_tasks), np.int32)
    plans = np.zeros((1, 0), np.int8)
    for _ in range(length):
        states = tables.next_states[rows, states].transpose(0, 2, 1).reshape(-1, num_tasks)
        last = np.tile(np.arange(num_actions, dtype=np.int8), len(plans))[:, None]
        plans = np.concatenate([np.repeat(plans, num_actions, axis=0), last], axis=1)
        scores = close[rows, states].sum(axis=1)
        if len(scores) > beam_width:
            kept = np.argsort(-scores, kind="stable")[:beam_width]
            states, plans = states[kept], plans[kept]
    best = int(tables.solved[rows, states].sum(axis=1).argmax())
    return tuple(int(action) for action in plans[best])


def _build_tables(env: Env, tasks: Sequence[Task]) -> TableBatch:
    tables = []
    for task in tasks:
        env.reset(options={"task": task})
        table = env.table()
        if table is None:
            raise ConfigError(f"{env.name} with these options has no table of states to search plans in")
        tables.append(table)
    return TableBatch.of(tables)


def _play_random_episode(env: Env, task: Task, rng: random.Random) -> bool:
    env.reset(seed=rng.getrandbits(32), options={"task": task})
    num_actions = env.description.actions.max_per_turn
    while True:
        _, _, terminated, truncated, info = env.step(draw_random_turn(env, rng, num_actions))
        if terminated or truncated:
            return bool(info["success"])


def draw_random_turn(env: Env, rng: random.Random, num_actions: int) -> list[str]:
    """So many random actions: all names alike, or what the environment itself takes for random play."""
    names = env.description.actions.names
    return (
        rng.choices(names, k=num_actions) if names else [env.random_action(rng) for _ in range(num_actions)]
    )


def _check_tasks(tasks: Sequence[Task]) -> None:
    if not tasks:
        raise InputError("a baseline needs at least one task")
