"""Checks of robot environments: they play an environment to test the contract of `RobotEnv`.

As in `envs.check_text`, every check is one function named for the fact it tests. It returns its evidence or
raises `ContractError`. Simulators are slow, so the checks share one copy of the environment unless a
fresh copy would prove more.
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
from stepwell.core.errors import ContractError
from stepwell.envs.check_probe import HELD_OUT_SHARE, Probe, require_that
from stepwell.envs.check_text import tasks_are_pure
from stepwell.envs.robots.base import FloatArray, RobotEnv

CHUNK = 8
NUM_SEEDS = 200  # both splits must get some of them


def description_is_complete(probe: Probe) -> str:
    """The environment has arrays and an action, and every task an instruction."""
    description = open_shared(probe).description
    require_that(
        isinstance(description, RobotEnvDescription),
        f"description is a {type(description).__name__}, not a RobotEnvDescription",
    )
    for task in probe.tasks:
        require_that(bool(task.instruction.strip()), f"task {task.id} has no instruction")
    shapes = ", ".join(f"{name} {list(spec.shape)}" for name, spec in description.arrays.items())
    return f"{shapes}; action [{description.action_dim}], at most {description.max_actions}"


def arrays_are_as_described(probe: Probe) -> str:
    """Reset and step return the described arrays, finite; rewards and info have the right types."""
    env = open_shared(probe)
    rng = np.random.default_rng(0)
    for task in probe.tasks[:3]:
        observation, info = env.reset(options={"task": task})
        require_that(isinstance(info, dict), f"reset gave info of type {type(info).__name__}")
        _require_arrays(env.description, observation)
        require_that(bool(observation.instruction.strip()), "the observation has no instruction")
        for turn in play_chunks(env, lambda: draw_random_chunk(env, rng)):
            _require_arrays(env.description, turn[0])
            require_that(isinstance(turn[1], float) and math.isfinite(turn[1]), f"reward is {turn[1]!r}")
            require_that(
                turn[2] in (True, False) and turn[3] is False, f"ends are {turn[2:4]}; never truncated"
            )
            require_that(
                isinstance(turn[4].get("success"), bool), f"info['success'] is {turn[4].get('success')!r}"
            )
            require_that(isinstance(turn[4].get("num_actions"), int), "info['num_actions'] is missing")
            require_that(
                ("process" in turn[4]) == env.has_process, "info['process'] does not fit has_process"
            )
            json.dumps(turn[4], allow_nan=False)
    return "as description.arrays says"


def content_decides_the_task(probe: Probe) -> str:
    """A task starts the same after pickling or with another seed: its content determines everything."""
    env = open_shared(probe)
    for task in probe.tasks[:3]:
        first = _start_episode(env, task)
        for copy in (pickle.loads(pickle.dumps(task)), replace(task, seed=task.seed + 1)):
            require_that(_start_episode(env, copy) == first, f"task {task.id} starts differently as a copy")
    return "equal first arrays after pickling and under other seeds"


def same_actions_give_the_same_episode(probe: Probe) -> str:
    """A copy that has played other tasks and a fresh one agree on every array."""
    used = open_shared(probe)
    for number, task in enumerate(probe.tasks[:2]):
        episodes = []
        for env in (used, probe.env()):
            rng = np.random.default_rng(number)
            first = _start_episode(env, task)
            episodes.append([first, *play_chunks(env, lambda env=env, rng=rng: draw_random_chunk(env, rng))])  # type: ignore[misc]
            if env is not used:
                env.close()
        require_that(episodes[0] == episodes[1], f"task {task.id}: two copies did the same and disagree")
    return "a used copy and a fresh one agree"


def a_chunk_is_its_actions_one_by_one(probe: Probe) -> str:
    """A chunk of C has the same effect as C chunks of 1."""
    env, task = open_shared(probe), probe.tasks[0]
    rng = np.random.default_rng(0)
    _start_episode(env, task)
    chunk = draw_random_chunk(env, rng)[: env.description.max_actions]
    together = env.step(chunk)
    _start_episode(env, task)
    num_actions: Any = together[4]["num_actions"]
    apart = [env.step(chunk[number : number + 1]) for number in range(num_actions)]
    require_that(apart[-1][0] == together[0], "the last observations differ")
    require_that(bool(np.isclose(sum(turn[1] for turn in apart), together[1])), "rewards do not add up")
    require_that(apart[-1][2:4] == together[2:4], "they end differently")
    return f"equal after {len(apart)} actions"


def episodes_end_by_the_rules(probe: Probe) -> str:
    """The limit cuts a chunk and terminates as a failure; no action follows; success comes at the end."""
    env = open_shared(probe)
    limit = env.description.max_actions
    _start_episode(env, probe.tasks[0])
    still = np.zeros((limit + 3, env.description.action_dim), dtype=np.float32)
    _, _, terminated, truncated, info = env.step(still)
    require_that(terminated and not truncated, f"{limit + 3} actions did not terminate")
    if not info["success"]:
        require_that(info["num_actions"] == limit, f"{info['num_actions']} actions of {limit} were executed")
    require_that(_is_refused(env, still[:1]), "an action after the end was accepted")
    return f"cut and terminated after {info['num_actions']} of {limit + 3} actions"


def wrong_chunks_are_refused(probe: Probe) -> str:
    """Chunks of a wrong shape, empty chunks and nan are InputErrors that do not change the episode."""
    env = open_shared(probe)
    first = _start_episode(env, probe.tasks[0])
    dim = env.description.action_dim
    for chunk in (np.zeros(dim), np.zeros((2, dim + 1)), np.zeros((0, dim)), np.full((1, dim), np.nan)):
        require_that(
            _is_refused(env, chunk), f"a chunk of shape {chunk.shape} ({chunk.ravel()[:1]}) was accepted"
        )
    require_that(env.observe() == first, "a refused chunk changed the observation")
    return "wrong shapes, empty chunks, nan"


def oracle_solves_the_tasks(probe: Probe) -> str:
    """The oracle solves the declared share of tasks, and success ends the episode."""
    env = open_shared(probe)
    if not env.has_oracle:
        return "none"
    solved, num_actions = 0, 0
    for task in probe.tasks:
        env.reset(options={"task": task})
        turns = list(play_chunks(env, lambda: env.oracle()[None]))
        require_that(
            not any(turn[4]["success"] for turn in turns[:-1]), "success was reported before the end"
        )
        solved += turns[-1][4]["success"]
        num_actions += len(turns) * turns[-1][4]["success"]
    share = solved / probe.num_tasks
    require_that(
        share >= env.oracle_share,
        f"solved {share:.2f} of {probe.num_tasks} tasks, not {env.oracle_share}; more max_actions may help",
    )
    return f"solved {share:.2f} of {probe.num_tasks} tasks, {num_actions / max(1, solved):.0f} actions each"


def random_play_does_not_suffice(probe: Probe) -> str:
    """There is something to learn: random chunks solve less than half of the tasks."""
    env = open_shared(probe)
    rng = np.random.default_rng(1)
    solved = 0
    for task in probe.tasks:
        env.reset(options={"task": task})
        solved += list(play_chunks(env, lambda: draw_random_chunk(env, rng)))[-1][4]["success"]
    share = solved / probe.num_tasks
    require_that(share < 0.5, f"random chunks solved {share:.2f} of {probe.num_tasks} tasks")
    return f"solved {share:.2f} of {probe.num_tasks} tasks"


def splits_are_disjoint_and_both_filled(probe: Probe) -> str:
    """There is enough variety for two splits, and different tasks start differently."""
    tasks = {}
    for seed in range(NUM_SEEDS):
        task = probe.kind.make_task(probe.options, seed)
        tasks[task.id] = task
    sides = {split: {t.id for t in tasks.values() if t.split(HELD_OUT_SHARE) == split} for split in Split}
    counts = f"{len(sides[Split.TRAIN])} train, {len(sides[Split.HELD_OUT])} held out"
    require_that(all(sides.values()), f"{len(tasks)} distinct tasks leave a split empty ({counts})")
    env = open_shared(probe)
    starts: dict[str, str] = {}
    for task in probe.tasks:
        env.reset(options={"task": task})
        truth = env.state()[StateForm.STRUCTURED]
        require_that(
            starts.setdefault(truth, task.id) == task.id, "two tasks of different content start alike"
        )
    return counts


def state_has_its_forms(probe: Probe) -> str:
    """The true state exists as sentences and JSON; reading it, the oracle and the image changes nothing."""
    env = open_shared(probe)
    for task in probe.tasks[:3]:
        first = _start_episode(env, task)
        state = env.state()
        require_that(
            {StateForm.NATURAL_LANGUAGE, StateForm.STRUCTURED} <= set(state), f"state() has {list(state)}"
        )
        require_that(
            isinstance(json.loads(state[StateForm.STRUCTURED]), dict), "the structured form is not an object"
        )
        if env.has_oracle:
            action = env.oracle()
            require_that(action.shape == (env.description.action_dim,), f"oracle() gave shape {action.shape}")
            require_that(bool((np.abs(action) <= 1).all()), f"oracle() gave {action}, outside [-1, 1]")
        require_that(
            env.state() == state and env.observe() == first, "state() or oracle() changed the environment"
        )
    return ", ".join(form.value for form in state)


def render_gives_an_image(probe: Probe) -> str:
    """uint8 RGB, [H, W, 3]; may fail without a GL library if no image is requested."""
    env = open_shared(probe)
    _start_episode(env, probe.tasks[0])
    try:
        image = np.asarray(env.render())
    except ConfigError as error:
        require_that(not env.description.images, str(error))
        return f"none here: {error}"
    good = image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
    require_that(good, f"render() gave {image.dtype} {image.shape}")
    require_that(len(np.unique(image)) > 8, "the image is nearly of one colour")
    return f"{image.shape[1]} x {image.shape[0]} pixels"


def actions_are_fast_enough(probe: Probe) -> str:
    """Actions per second of random play, resets included."""
    env = open_shared(probe)
    rng = np.random.default_rng(2)
    num_actions, start = 0, time.perf_counter()
    for task in probe.tasks:
        env.reset(options={"task": task})
        num_actions += sum(
            turn[4]["num_actions"] for turn in play_chunks(env, lambda: draw_random_chunk(env, rng))
        )
        if time.perf_counter() - start > 2.0:
            break
    speed = num_actions / (time.perf_counter() - start)
    env.close()
    env.close()
    require_that(speed >= probe.min_turns_per_s, f"{speed:.1f} actions/s, asked for {probe.min_turns_per_s}")
    return f"{speed:,.0f} actions/s"


ROBOT_CHECKS: tuple[Callable[[Probe], str], ...] = (
    description_is_complete,
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
    render_gives_an_image,
    actions_are_fast_enough,
)

Answer = tuple[ArrayState, float, bool, bool, dict[str, Any]]


def play_chunks(env: RobotEnv, chunk: Callable[[], FloatArray]) -> Iterator[Answer]:
    """Play chunks until the episode ends, or until the limit is exceeded."""
    for _ in range(env.description.max_actions + 1):
        turn = env.step(chunk())
        yield turn
        if turn[2] or turn[3]:
            return
    raise ContractError(f"no end after {env.description.max_actions + 1} chunks")


def draw_random_chunk(env: RobotEnv, rng: np.random.Generator, size: int = CHUNK) -> FloatArray:
    """Actions drawn uniformly from [-1, 1]."""
    return rng.uniform(-1.0, 1.0, (size, env.description.action_dim)).astype(np.float32)


def open_shared(probe: Probe) -> RobotEnv:
    """The one copy that most checks share."""
    shared: RobotEnv = probe.shared_env
    return shared


def _require_arrays(description: RobotEnvDescription, observation: ArrayState) -> None:
    require_that(isinstance(observation, ArrayState), f"shown was a {type(observation).__name__}")
    require_that(
        list(observation.arrays) == list(description.arrays), f"shown was {list(observation.arrays)}"
    )
    for name, spec in description.arrays.items():
        array = observation.arrays[name]
        require_that(
            array.shape == spec.shape and str(array.dtype) == spec.dtype,
            f"{name}: {array.dtype} {array.shape}",
        )
        require_that(bool(np.isfinite(array).all()), f"{name} is not finite")


def _start_episode(env: RobotEnv, task: Task) -> ArrayState:
    return env.reset(options={"task": task})[0]


def _is_refused(env: RobotEnv, chunk: Any) -> bool:
    try:
        env.step(chunk)
    except InputError:
        return True
    return False
