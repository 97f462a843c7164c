"""Checks of text environments: one function per fact, named for it.

Each returns its evidence, or raises `ContractError` with the problem.
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from stepwell.core import EnvDescription, InputError, Observation, Split, StateForm, Task
from stepwell.core.errors import ContractError
from stepwell.envs.adversarial_actions import MEGABYTE, list_adversarial_actions
from stepwell.envs.base import Env
from stepwell.envs.check_episodes import has_random_play, play_randomly
from stepwell.envs.check_probe import HELD_OUT_SHARE, Probe, require_that

MAX_RANDOM_SHARE = 0.1


def description_is_complete(probe: Probe) -> str:
    """The environment has a name, a guide, actions, and examples in forms it really has."""
    env = probe.env()
    description = env.description
    require_that(
        isinstance(description, EnvDescription),
        f"description is a {type(description).__name__}, not an EnvDescription",
    )
    require_that(
        description.name == env.name,
        f"description.name is {description.name!r}, the class is named {env.name!r}",
    )
    require_that(bool(description.guide.strip()), "description.guide is empty")
    names = description.actions.names or tuple(tool.name for tool in description.actions.tools)
    actions = ", ".join(names) or "free text"
    return f"{description.actions.max_per_turn} per turn of {actions}; {description.max_turns} turns"


def tasks_are_pure(probe: Probe) -> str:
    """The same seed makes the same task, of this environment, with content that JSON can hold."""
    for seed, task in enumerate(probe.tasks):
        again = probe.kind.make_task(probe.options, seed)
        require_that(again.id == task.id, f"seed {seed} makes different tasks")
        require_that(task.env == probe.kind.name, f"task.env is {task.env!r}, not {probe.kind.name!r}")
        stored = json.loads(json.dumps(task.content))
        require_that(stored == task.content, f"seed {seed}: content changes when stored as JSON")
    return f"{len({task.id for task in probe.tasks})} distinct tasks of {probe.num_tasks} seeds"


def content_decides_the_task(probe: Probe) -> str:
    """A task starts the same after pickling or with another seed: its content determines everything."""
    env = probe.env()
    for task in probe.tasks:
        first = _start_episode(env, task)
        copy = pickle.loads(pickle.dumps(task))
        require_that(_start_episode(env, copy) == first, f"task {task.id} starts differently after pickling")
        other = replace(task, seed=task.seed + 1)
        require_that(
            _start_episode(env, other) == first, f"task {task.id} starts differently with another task.seed"
        )
    return "equal first observations after pickling and under other seeds"


def reset_and_step_return_the_right_types(probe: Probe) -> str:
    """Types of Gymnasium's contract; finite rewards; info that JSON can hold."""
    env = probe.env()
    answer = env.reset(options={"task": probe.tasks[0]})
    require_that(isinstance(answer, tuple) and len(answer) == 2, f"reset returned {type(answer).__name__}")
    require_that(isinstance(answer[0], Observation), f"reset showed a {type(answer[0]).__name__}")
    require_that(isinstance(answer[1], dict), f"reset gave info of type {type(answer[1]).__name__}")
    rng = random.Random(0)
    for turn in itertools.chain.from_iterable(play_randomly(env, task, rng) for task in probe.tasks[:20]):
        observation, reward, terminated, truncated, info = turn
        require_that(isinstance(observation, Observation), f"step showed a {type(observation).__name__}")
        require_that(isinstance(reward, float) and math.isfinite(reward), f"reward is {reward!r}")
        require_that(isinstance(terminated, bool), f"terminated is {terminated!r}")
        require_that(isinstance(truncated, bool), f"truncated is {truncated!r}")
        require_that(isinstance(info.get("success"), bool), f"info['success'] is {info.get('success')!r}")
        require_that(isinstance(info.get("num_actions"), int), f"num_actions is {info.get('num_actions')!r}")
        json.dumps(info, allow_nan=False)
    return "observation, float, bool, bool, info"


def same_actions_give_the_same_episode(probe: Probe) -> str:
    """Two copies agree on every turn of the same task under the same seed."""
    for number, task in enumerate(probe.tasks[:20]):
        one = list(play_randomly(probe.env(), task, random.Random(number), seed=number))
        two = list(play_randomly(probe.env(), task, random.Random(number), seed=number))
        require_that(one == two, f"task {task.id}: two copies played the same actions and disagree")
    return f"two copies agree on {min(20, probe.num_tasks)} tasks"


def episodes_end_by_the_rules(probe: Probe) -> str:
    """Never terminated and truncated at once, no success before the end, no turn after it."""
    env = probe.env()
    rng = random.Random(1)
    longest = 0
    for task in probe.tasks:
        turns = list(play_randomly(env, task, rng))
        longest = max(longest, len(turns))
        for _, _, terminated, truncated, info in turns:
            require_that(not (terminated and truncated), "a turn was terminated and truncated at once")
            require_that(
                terminated or truncated or not info["success"], "success was reported before the end"
            )
        require_that(
            len(turns) <= env.description.max_turns, f"{len(turns)} turns, limit {env.description.max_turns}"
        )
        require_that(_is_refused(env, ()), "a turn after the end was accepted")
    return f"at most {longest} turns in {probe.num_tasks} random episodes"


def an_empty_turn_only_counts(probe: Probe) -> str:
    """Turns without actions change nothing, give nothing, and end at the turn limit as a failure."""
    env = probe.env()
    first = _start_episode(env, probe.tasks[0])
    limit = env.description.max_turns
    for number in range(1, limit + 1):
        observation, reward, terminated, truncated, info = env.step(())
        require_that(reward == 0.0, f"an empty turn gave reward {reward}")
        require_that(info["num_actions"] == 0, f"an empty turn executed {info['num_actions']} actions")
        require_that(observation == first, "an empty turn changed the observation")
        require_that(not truncated and not info["success"], "an empty turn truncated or succeeded")
        require_that(terminated == (number == limit), f"turn {number} of {limit}: terminated is {terminated}")
    return f"terminated after {limit} empty turns"


def wrong_actions_are_refused(probe: Probe) -> str:
    """An unknown action or too many actions are InputErrors that do not change the episode."""
    env = probe.env()
    first = _start_episode(env, probe.tasks[0])
    actions = env.description.actions
    some = actions.names[0] if actions.names else "text"
    require_that(
        _is_refused(env, (some,) * (actions.max_per_turn + 1)), "more actions than allowed were accepted"
    )
    if not actions.names:
        return "too many texts"
    require_that(_is_refused(env, ("no such action",)), "an unknown action was accepted")
    require_that(env.observe() == first, "a refused turn changed the observation")
    return "unknown names, too many actions"


def adversarial_actions_are_answered(probe: Probe) -> str:
    """Every agent text is answered by an observation of limited size; nothing raises."""
    env = probe.env()
    num_odd, is_over, before = 0, True, Observation()
    for what, action, is_call in list_adversarial_actions(env.description.actions):
        if is_over or not is_call:
            before = _start_episode(env, probe.tasks[num_odd % probe.num_tasks])
        try:
            observation, reward, terminated, truncated, info = env.step((action,))
        except Exception as error:
            raise ContractError(f"{what}: raised {type(error).__name__}: {str(error)[:200]}") from error
        num_odd, is_over = num_odd + 1, terminated or truncated
        require_that(math.isfinite(reward), f"{what}: reward {reward}")
        most = len(before.text) + MEGABYTE // 4
        require_that(
            len(observation.text) < most, f"{what}: {len(observation.text)} characters of observation"
        )
        require_that(
            is_call or observation.text != before.text,
            f"{what}: the observation does not say that the action failed",
        )
        require_that(is_call or not info["success"], f"{what}: succeeded")
        before = observation
    return f"{num_odd} odd actions" if num_odd else "none: actions are names"


def oracle_solves_the_tasks(probe: Probe) -> str:
    """The oracle solves every task (in random environments: more tasks than random play)."""
    if not probe.kind.has_oracle:
        return "none"
    env = probe.env()
    share = sum(solved for solved, _ in probe.oracle_episodes) / probe.num_tasks
    if env.is_deterministic:
        least = env.min_oracle_share
        require_that(share >= least, f"solved {share:.3f} of {probe.num_tasks} tasks, asked for {least}")
    else:
        require_that(share > probe.random_share, f"solved {share:.3f}, random play {probe.random_share:.3f}")
    return f"solved {share:.3f} of {probe.num_tasks} tasks"


def random_play_does_not_suffice(probe: Probe) -> str:
    """There is something to learn: random turns leave tasks unsolved; with free text or tools, nearly all."""
    env = probe.env()
    _start_episode(env, probe.tasks[0])
    if not has_random_play(env):
        return "none: free text"
    share = probe.random_share
    require_that(share < 1.0, "random play solved every task")
    most = 1.0 if env.description.actions.names else MAX_RANDOM_SHARE
    require_that(share <= most, f"random play solved {share:.3f} of the tasks, more than {most}")
    return f"solved {share:.3f} of {probe.num_tasks} tasks"


def no_plan_is_shorter_than_the_golden_one(probe: Probe) -> str:
    """If reset reports the turns of a shortest plan, the oracle needs at least as many, and the limit allows
    it."""
    env = probe.env()
    if not env.tells_golden:
        return "none"
    lengths: list[int] = []
    for task, (solved, num_turns) in zip(probe.tasks, probe.oracle_episodes, strict=True):
        golden = env.reset(options={"task": task})[1].get("golden")
        if golden is None:
            continue
        require_that(isinstance(golden, int) and golden >= 1, f"golden_steps() is {golden!r}")
        require_that(
            golden <= env.description.max_turns,
            f"{golden} golden steps, limit {env.description.max_turns} turns",
        )
        shorter = solved and num_turns < golden
        require_that(
            not shorter, f"task {task.id}: the oracle took {num_turns} turns, {golden} are called shortest"
        )
        lengths.append(golden)
    return f"{len(lengths)} tasks of {min(lengths)} to {max(lengths)} turns" if lengths else "none known"


def splits_are_disjoint_and_both_filled(probe: Probe) -> str:
    """Enough variety for two splits, and no first observation in both of them."""
    env = probe.env()
    tasks = {}
    for seed in range(max(200, probe.num_tasks)):
        task = probe.kind.make_task(probe.options, seed)
        tasks[task.id] = task
    sides: dict[Split, set[str]] = {Split.TRAIN: set(), Split.HELD_OUT: set()}
    for task in tasks.values():
        env.reset(options={"task": task})
        sides[task.split(HELD_OUT_SHARE)].add(_describe_looks(env))
    counts = f"{len(sides[Split.TRAIN])} train, {len(sides[Split.HELD_OUT])} held out"
    require_that(all(sides.values()), f"{len(tasks)} distinct tasks leave a split empty ({counts})")
    if env.has_oracle:  # without an oracle, the first observation need not show the whole task
        both = len(sides[Split.TRAIN] & sides[Split.HELD_OUT])
        require_that(
            both == 0, f"{both} tasks look alike in both splits, so content holds too much ({counts})"
        )
    return counts


def state_has_its_forms(probe: Probe) -> str:
    """The true state exists at least as natural language; reading it or the oracle changes nothing."""
    env = probe.env()
    for task in probe.tasks[:20]:
        first = _start_episode(env, task)
        state = env.state()
        require_that(StateForm.NATURAL_LANGUAGE in state, "state() has no natural language form")
        for form, text in state.items():
            require_that(isinstance(form, StateForm), f"state() has the form {form!r}, not a StateForm")
            require_that(isinstance(text, str) and bool(text), f"state()[{form!s}] is {text!r}")
        missing = set(env.description.examples) - set(state)
        require_that(not missing, f"description.examples has forms that state() lacks: {sorted(missing)}")
        env.oracle()
        require_that(
            env.state() == state and env.observe() == first, "state() or oracle() changed the environment"
        )
    return ", ".join(form.value for form in state)


def render_gives_an_image(probe: Probe) -> str:
    """uint8 RGB, [H, W, 3]."""
    env = probe.env()
    _start_episode(env, probe.tasks[0])
    image = np.asarray(env.render())
    good = image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3 and image.size > 0
    require_that(good, f"render() gave {image.dtype} {image.shape}")
    env.close()
    env.close()
    return f"{image.shape[1]} x {image.shape[0]} pixels"


def turns_are_fast_enough(probe: Probe) -> str:
    """Turns per second of random play, resets included."""
    env = probe.env()
    rng = random.Random(2)
    num_turns, start = 0, time.perf_counter()
    for task in probe.tasks:
        num_turns += sum(1 for _ in play_randomly(env, task, rng))
        if time.perf_counter() - start > 2.0:
            break
    speed = num_turns / (time.perf_counter() - start)
    require_that(speed >= probe.min_turns_per_s, f"{speed:.1f} turns/s, asked for {probe.min_turns_per_s}")
    return f"{speed:,.0f} turns/s"


CHECKS: tuple[Callable[[Probe], str], ...] = (
    description_is_complete,
    tasks_are_pure,
    content_decides_the_task,
    reset_and_step_return_the_right_types,
    same_actions_give_the_same_episode,
    episodes_end_by_the_rules,
    an_empty_turn_only_counts,
    wrong_actions_are_refused,
    adversarial_actions_are_answered,
    oracle_solves_the_tasks,
    no_plan_is_shorter_than_the_golden_one,
    random_play_does_not_suffice,
    splits_are_disjoint_and_both_filled,
    state_has_its_forms,
    render_gives_an_image,
    turns_are_fast_enough,
)


def _start_episode(env: Env, task: Task) -> Observation:
    return env.reset(options={"task": task})[0]


def _describe_looks(env: Env) -> str:
    """All visible parts of a state, as one text."""
    images = [image.tobytes().hex() for image in env.observe().images]
    return repr((env.observe().text, images, sorted(env.state().items())))


def _is_refused(env: Env, actions: Sequence[str]) -> bool:
    try:
        env.step(actions)
    except InputError:
        return True
    return False
