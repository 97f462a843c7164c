"""The checks of a robot's world: what `RobotEnv` promises, found by playing.

As in `envs.check_words`, every check is one function named for the fact it holds, which returns what was
seen or raises `Broken`. Simulators are slow, so the copy of the world is one wherever a fresh one
would prove nothing more.
"""

from __future__ import annotations

import json
import math
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from stepwell.core import ArrayState, ConfigError, InputError, RobotEnvDescription, Split, StateForm, Task
from stepwell.envs.check_probe import HELD_OUT_SHARE, Broken, Probe, demand
from stepwell.envs.check_text import tasks_are_pure
from stepwell.envs.robots.base import FloatArray, RobotEnv

CHUNK = 8
NUM_SEEDS = 200  # of which both splits must get some


def world_is_described(probe: Probe) -> str:
    """The world has arrays and an action, and every task an instruction."""
    world = opened(probe).world
    demand(
        isinstance(world, RobotEnvDescription),
        f"world is a {type(world).__name__}, not a RobotEnvDescription",
    )
    for task in probe.tasks:
        demand(bool(task.instruction.strip()), f"task {task.id} has no instruction")
    shapes = ", ".join(f"{name} {list(spec.shape)}" for name, spec in world.arrays.items())
    return f"{shapes}; action [{world.action_dim}], at most {world.max_actions}"


def arrays_are_as_described(probe: Probe) -> str:
    """Reset and step show just the arrays of `world`, finite; rewards and info have the right types."""
    env = opened(probe)
    rng = np.random.default_rng(0)
    for task in probe.tasks[:3]:
        observation, info = env.reset(options={"task": task})
        demand(isinstance(info, dict), f"reset gave info of type {type(info).__name__}")
        _demand_arrays(env.world, observation)
        demand(bool(observation.instruction.strip()), "the observation has no instruction")
        for turn in play(env, lambda: random_chunk(env, rng)):
            _demand_arrays(env.world, turn[0])
            demand(isinstance(turn[1], float) and math.isfinite(turn[1]), f"reward is {turn[1]!r}")
            demand(turn[2] in (True, False) and turn[3] is False, f"ends are {turn[2:4]}; never truncated")
            demand(isinstance(turn[4].get("success"), bool), f"info['success'] is {turn[4].get('success')!r}")
            demand(isinstance(turn[4].get("num_actions"), int), "info['num_actions'] is missing")
            demand(("process" in turn[4]) == env.has_process, "info['process'] does not fit has_process")
            json.dumps(turn[4], allow_nan=False)
    return "as world.arrays says"


def content_decides_the_task(probe: Probe) -> str:
    """A task that went through pickle, or has another seed, starts the same: content is all."""
    env = opened(probe)
    for task in probe.tasks[:3]:
        first = _start(env, task)
        for copy in (pickle.loads(pickle.dumps(task)), replace(task, seed=task.seed + 1)):
            demand(_start(env, copy) == first, f"task {task.id} starts differently as a copy")
    return "equal first arrays after pickling and under other seeds"


def same_actions_give_the_same_episode(probe: Probe) -> str:
    """A copy that has played other tasks and a fresh one agree on every array."""
    used = opened(probe)
    for number, task in enumerate(probe.tasks[:2]):
        episodes = []
        for env in (used, probe.env()):
            rng = np.random.default_rng(number)
            first = _start(env, task)
            episodes.append([first, *play(env, lambda env=env, rng=rng: random_chunk(env, rng))])  # type: ignore[misc]
            if env is not used:
                env.close()
        demand(episodes[0] == episodes[1], f"task {task.id}: two copies did the same and disagree")
    return "a used copy and a fresh one agree"


def a_chunk_is_its_actions_one_by_one(probe: Probe) -> str:
    """A chunk of C does what C chunks of 1 do."""
    env, task = opened(probe), probe.tasks[0]
    rng = np.random.default_rng(0)
    _start(env, task)
    chunk = random_chunk(env, rng)[: env.world.max_actions]
    together = env.step(chunk)
    _start(env, task)
    num_actions: Any = together[4]["num_actions"]
    apart = [env.step(chunk[number : number + 1]) for number in range(num_actions)]
    demand(apart[-1][0] == together[0], "the last observations differ")
    demand(bool(np.isclose(sum(turn[1] for turn in apart), together[1])), "rewards do not add up")
    demand(apart[-1][2:4] == together[2:4], "they end differently")
    return f"equal after {len(apart)} actions"


def episodes_end_by_the_rules(probe: Probe) -> str:
    """The limit cuts a chunk, terminates as a failure, and no action follows; success comes at the end."""
    env = opened(probe)
    limit = env.world.max_actions
    _start(env, probe.tasks[0])
    still = np.zeros((limit + 3, env.world.action_dim), dtype=np.float32)
    _, _, terminated, truncated, info = env.step(still)
    demand(terminated and not truncated, f"{limit + 3} actions did not terminate")
    if not info["success"]:
        demand(info["num_actions"] == limit, f"{info['num_actions']} actions of {limit} were executed")
    demand(_refuses(env, still[:1]), "an action after the end was accepted")
    return f"cut and terminated after {info['num_actions']} of {limit + 3} actions"


def wrong_chunks_are_refused(probe: Probe) -> str:
    """Chunks of another shape, empty ones and nan are InputErrors that leave the episode as it was."""
    env = opened(probe)
    first = _start(env, probe.tasks[0])
    dim = env.world.action_dim
    for chunk in (np.zeros(dim), np.zeros((2, dim + 1)), np.zeros((0, dim)), np.full((1, dim), np.nan)):
        demand(_refuses(env, chunk), f"a chunk of shape {chunk.shape} ({chunk.ravel()[:1]}) was accepted")
    demand(env.observe() == first, "a refused chunk changed the observation")
    return "wrong shapes, empty chunks, nan"


def oracle_solves_the_tasks(probe: Probe) -> str:
    """Following the oracle solves the share of tasks the world states, and success ends the episode."""
    env = opened(probe)
    if not env.has_oracle:
        return "none"
    solved, num_actions = 0, 0
    for task in probe.tasks:
        env.reset(options={"task": task})
        turns = list(play(env, lambda: env.oracle()[None]))
        demand(not any(turn[4]["success"] for turn in turns[:-1]), "success was told before the end")
        solved += turns[-1][4]["success"]
        num_actions += len(turns) * turns[-1][4]["success"]
    share = solved / probe.num_tasks
    demand(
        share >= env.oracle_share,
        f"solved {share:.2f} of {probe.num_tasks} tasks, not {env.oracle_share}; more max_actions may help",
    )
    return f"solved {share:.2f} of {probe.num_tasks} tasks, {num_actions / max(1, solved):.0f} actions each"


def random_play_does_not_suffice(probe: Probe) -> str:
    """There is something to learn: random chunks solve less than half of the tasks."""
    env = opened(probe)
    rng = np.random.default_rng(1)
    solved = 0
    for task in probe.tasks:
        env.reset(options={"task": task})
        solved += list(play(env, lambda: random_chunk(env, rng)))[-1][4]["success"]
    share = solved / probe.num_tasks
    demand(share < 0.5, f"random chunks solved {share:.2f} of {probe.num_tasks} tasks")
    return f"solved {share:.2f} of {probe.num_tasks} tasks"


def splits_are_disjoint_and_both_filled(probe: Probe) -> str:
    """Enough variety for two splits, and tasks that differ start differently."""
    tasks = {}
    for seed in range(NUM_SEEDS):
        task = probe.kind.make_task(probe.options, seed)
        tasks[task.id] = task
    sides = {split: {t.id for t in tasks.values() if t.split(HELD_OUT_SHARE) == split} for split in Split}
    counts = f"{len(sides[Split.TRAIN])} train, {len(sides[Split.HELD_OUT])} held out"
    demand(all(sides.values()), f"{len(tasks)} distinct tasks leave a split empty ({counts})")
    env = opened(probe)
    starts: dict[str, str] = {}
    for task in probe.tasks:
        env.reset(options={"task": task})
        truth = env.state()[StateForm.STRUCTURED]
        demand(starts.setdefault(truth, task.id) == task.id, "two tasks of different content start alike")
    return counts


def state_has_its_forms(probe: Probe) -> str:
    """The truth in sentences and as JSON; reading it, the oracle and the picture changes nothing."""
    env = opened(probe)
    for task in probe.tasks[:3]:
        first = _start(env, task)
        state = env.state()
        demand({StateForm.NATURAL_LANGUAGE, StateForm.STRUCTURED} <= set(state), f"state() has {list(state)}")
        demand(isinstance(json.loads(state[StateForm.STRUCTURED]), dict), "the structured form is no object")
        if env.has_oracle:
            action = env.oracle()
            demand(action.shape == (env.world.action_dim,), f"oracle() gave shape {action.shape}")
            demand(bool((np.abs(action) <= 1).all()), f"oracle() gave {action}, outside [-1, 1]")
        demand(env.state() == state and env.observe() == first, "state() or oracle() changed the world")
    return ", ".join(form.value for form in state)


def render_gives_a_picture(probe: Probe) -> str:
    """uint8 RGB, [H, W, 3]; without a GL library only where no picture is asked for."""
    env = opened(probe)
    _start(env, probe.tasks[0])
    try:
        picture = np.asarray(env.render())
    except ConfigError as error:
        demand(not env.world.images, str(error))
        return f"none here: {error}"
    good = picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
    demand(good, f"render() gave {picture.dtype} {picture.shape}")
    demand(len(np.unique(picture)) > 8, "the picture is nearly of one colour")
    return f"{picture.shape[1]} x {picture.shape[0]} pixels"


def actions_are_fast_enough(probe: Probe) -> str:
    """Actions per second of random play, resets included."""
    env = opened(probe)
    rng = np.random.default_rng(2)
    num_actions, start = 0, time.perf_counter()
    for task in probe.tasks:
        env.reset(options={"task": task})
        num_actions += sum(turn[4]["num_actions"] for turn in play(env, lambda: random_chunk(env, rng)))
        if time.perf_counter() - start > 2.0:
            break
    speed = num_actions / (time.perf_counter() - start)
    env.close()
    env.close()
    demand(speed >= probe.min_turns_per_s, f"{speed:.1f} actions/s, asked for {probe.min_turns_per_s}")
    return f"{speed:,.0f} actions/s"


ROBOT_CHECKS: tuple[Callable[[Probe], str], ...] = (
    world_is_described,
    tasks_are_pure,
    arrays_are_as_described,
    content_decides_the_task,
    same_actions_give_the_same_episode,
    a_chunk_is_its_actions_one_by_one,
    episodes_end_by_the_rules,
    wrong_chunks_are_refused,
    oracle_solves_the_tasks,
    random_play_does_not_suffice,
    splits_are_disjoint_and_both_filled,
    state_has_its_forms,
    render_gives_a_picture,
    actions_are_fast_enough,
)

Answer = tuple[ArrayState, float, bool, bool, dict[str, Any]]


def play(env: RobotEnv, chunk: Callable[[], FloatArray]) -> Iterator[Answer]:
    """Chunks until the end, or until more were played than the limit allows."""
    for _ in range(env.world.max_actions + 1):
        turn = env.step(chunk())
        yield turn
        if turn[2] or turn[3]:
            return
    raise Broken(f"no end after {env.world.max_actions + 1} chunks")


def random_chunk(env: RobotEnv, rng: np.random.Generator, size: int = CHUNK) -> FloatArray:
    """Actions drawn evenly from [-1, 1]."""
    return rng.uniform(-1.0, 1.0, (size, env.world.action_dim)).astype(np.float32)


def opened(probe: Probe) -> RobotEnv:
    """The one copy that most checks share."""
    shared: RobotEnv = probe.shared
    return shared


def _demand_arrays(world: RobotEnvDescription, observation: ArrayState) -> None:
    demand(isinstance(observation, ArrayState), f"shown was a {type(observation).__name__}")
    demand(list(observation.arrays) == list(world.arrays), f"shown was {list(observation.arrays)}")
    for name, spec in world.arrays.items():
        array = observation.arrays[name]
        demand(
            array.shape == spec.shape and str(array.dtype) == spec.dtype,
            f"{name}: {array.dtype} {array.shape}",
        )
        demand(bool(np.isfinite(array).all()), f"{name} is not finite")


def _start(env: RobotEnv, task: Task) -> ArrayState:
    return env.reset(options={"task": task})[0]


def _refuses(env: RobotEnv, chunk: Any) -> bool:
    try:
        env.step(chunk)
    except InputError:
        return True
    return False
