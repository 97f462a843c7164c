"""Meta-World as it is: every task by name, starts equal to its own, experts, images, speed of resets."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from tests.properties import IS_THOROUGH
from tests.variants import keep_quick

from stepwell.core import ConfigError, InputError, Task
from stepwell.envs import EnvBatch, draw_tasks, make_env
from stepwell.envs.check import check_env
from stepwell.envs.robots import models
from stepwell.envs.robots.metaworld.simulator import find_vector_bounds
from stepwell.envs.robots.metaworld.text import INSTRUCTIONS, strip_version

metaworld = pytest.importorskip("metaworld")
CHECKED = [*INSTRUCTIONS] if IS_THOROUGH else [*INSTRUCTIONS][::5]


def reference(name: str, vector: list[float]) -> tuple[Any, np.ndarray]:
    """Meta-World's own environment with the same random vector, and its first observation."""
    env = metaworld.env_dict.ALL_V3_ENVIRONMENTS[f"{name}-v3"]()
    env._set_task_called, env._partially_observable = True, False
    env.__dict__.pop("sawyer_observation_space", None)
    env._freeze_rand_vec, env._last_rand_vec = True, np.array(vector)
    return env, env.reset()[0]


def joined(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """`proprio` and `state` put together again as Meta-World shows them."""
    hand, things = arrays["proprio"], arrays["state"]
    return np.r_[hand[:4], things[:14], hand[4:], things[14:]]


def follow(env: Any, task: Task) -> bool:
    env.reset(options={"task": task})
    while True:
        _, _, terminated, _, info = env.step(env.oracle()[None])
        if terminated:
            return bool(info["success"])


def test_every_task_of_the_package_has_words_and_opens() -> None:
    assert {f"{name}-v3" for name in INSTRUCTIONS} == set(metaworld.env_dict.ALL_V3_ENVIRONMENTS)
    assert len(set(INSTRUCTIONS.values())) == len(INSTRUCTIONS) == 50
    for name in ("door-open", "stick-pull"):
        env = make_env("metaworld", {"task": name})
        assert env.reset(seed=0)[0].instruction == INSTRUCTIONS[name]


def test_a_task_is_named_with_or_without_its_version() -> None:
    assert (
        make_env("metaworld", {"task": "push-v3"}).options == make_env("metaworld", {"task": "push"}).options
    )
    with pytest.raises(ConfigError, match=r"no task 'raech'; did you mean 'reach'\?"):
        make_env("metaworld", {"task": "raech"})
    with pytest.raises(ConfigError):
        strip_version("reach-v2")


NAMES = ("reach", "push", "button-press", "basketball", "lever-pull", "drawer-open")


@pytest.mark.parametrize("name", keep_quick(NAMES, NAMES[:2].__contains__))
def test_an_episode_is_that_of_meta_env_itself(name: str) -> None:
    env = make_env("metaworld", {"task": name, "reward": "dense"})
    env.reset(seed=1)  # an earlier episode must not matter
    task = env.make_task(env.options, 7)
    shown = env.reset(options={"task": task})[0]
    theirs, first = reference(name, task.content["vector"])
    np.testing.assert_allclose(joined(shown.arrays), first, atol=2e-4)
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 4)).astype(np.float32)
    for action in actions:
        observation, reward, *_ = env.step(action[None])
        expected, their_reward, *_ = theirs.step(action)
        np.testing.assert_allclose(joined(observation.arrays), expected, atol=2e-3)  # a settling puck rocks
        assert reward == pytest.approx(their_reward, abs=2e-3)


@pytest.mark.slow
def test_the_expert_solves_reach_and_push_and_random_play_does_not() -> None:
    rng = np.random.default_rng(0)
    for name in ("reach", "push"):
        env = make_env("metaworld", {"task": name})
        tasks = [env.make_task(env.options, seed) for seed in range(4)]
        assert all(follow(env, task) for task in tasks)
        for task in tasks:
            env.reset(options={"task": task})
            assert not env.step(rng.uniform(-1, 1, (100, 4)))[4]["success"]


@pytest.mark.parametrize("name", ["button-press", "door-unlock", "sweep-into", "window-close"])
def test_the_expert_solves_other_tasks(name: str) -> None:
    env = make_env("metaworld", {"task": name})
    assert all(follow(env, env.make_task(env.options, seed)) for seed in range(2))


def test_content_is_the_random_vector_and_drawn_within_its_bounds() -> None:
    options = make_env("metaworld", {"task": "push"}).options
    low, high = find_vector_bounds("push-v3")
    env = make_env("metaworld", options)
    for seed in range(100):
        task = env.make_task(options, seed)
        vector = np.array(task.content["vector"])
        assert task.content.keys() == {"task", "vector"} and task.content["task"] == "push"
        assert (vector >= np.array(low) - 1e-5).all() and (vector <= np.array(high) + 1e-5).all()
        assert np.linalg.norm(vector[:2] - vector[3:5]) >= 0.15
    assert Task("metaworld", task.content, task.instruction, seed=12345).id == task.id


def test_a_vector_that_meta_env_would_draw_again_is_refused() -> None:
    env = make_env("metaworld", {"task": "push"})
    near = Task("metaworld", {"task": "push", "vector": [0.0, 0.7, 0.02, 0.0, 0.8, 0.02]})
    with pytest.raises(InputError, match="too near together"):
        env.reset(options={"task": near})
    with pytest.raises(InputError, match="has 2 numbers"):
        env.reset(options={"task": Task("metaworld", {"task": "push", "vector": [0.0, 0.7]})})
    with pytest.raises(InputError, match=r"env\.options\.task is 'push'"):
        env.reset(options={"task": Task("metaworld", {"task": "reach", "vector": [0.0] * 6})})


def test_a_chunk_is_its_actions_one_by_one_to_the_bit() -> None:
    chunk = np.random.default_rng(3).uniform(-1, 1, (25, 4)).astype(np.float32)
    env = make_env("metaworld", {"task": "push"})
    env.reset(seed=2)
    together = env.step(chunk)
    env.reset(seed=2)
    apart = [env.step(action[None]) for action in chunk]
    assert apart[-1][0] == together[0]
    assert sum(turn[4]["process"] for turn in apart) == pytest.approx(together[4]["process"])


def test_a_batch_of_robots_plays_like_each_alone() -> None:
    tasks = draw_tasks("metaworld", {"task": "reach"}, "train", 3, seed=0)
    chunks = np.random.default_rng(0).uniform(-1, 1, (3, 8, 4)).astype(np.float32)
    with EnvBatch("metaworld", {"task": "reach"}, size=3) as batch:
        batch.reset(tasks)
        turns = batch.step(range(3), list(chunks), with_state=True)
    for task, chunk, turn in zip(tasks, chunks, turns, strict=True):
        env = make_env("metaworld", {"task": "reach"})
        env.reset(options={"task": task})
        assert env.step(chunk)[0] == turn.observation
        assert turn.state["structured"].startswith('{"hand": [')


@pytest.mark.slow
@pytest.mark.parametrize("name", ["drawer-open", "peg-insert-side"])  # which move bodies of the model
def test_envs_of_a_batch_share_a_model_and_do_not_notice(name: str) -> None:
    options = {"task": name, "observation": "both", "reward": "dense"}
    tasks = draw_tasks("metaworld", options, "train", 4, seed=0)
    chunks = np.random.default_rng(0).uniform(-1, 1, (4, 3, 5, 4)).astype(np.float32)
    with EnvBatch("metaworld", options, size=3) as batch:
        batch.reset(tasks[:3])
        found = [batch.step([2, 0, 1], list(chunks[turn])) for turn in range(2)]
        batch.reset(tasks[3:], [2])
        found += [batch.step([2, 0, 1], list(chunks[turn])) for turn in range(2, 4)]
        assert len({id(env._sim.model) for env in batch.envs}) == 1
    for place, number in enumerate([2, 0, 1]):
        env = make_env("metaworld", options)
        env.reset(options={"task": tasks[number]})
        for turn in range(4):
            if number == 2 and turn == 2:
                env.reset(options={"task": tasks[3]})
            observation, reward, *_ = env.step(chunks[turn][place])
            assert observation == found[turn][place].observation
            assert reward == found[turn][place].reward


@pytest.mark.parametrize(
    "names",
    [["reach", "drawer-open"], pytest.param(CHECKED, marks=pytest.mark.slow)],
    ids=["two", "many"],
)
def test_episodes_of_a_task_differ_in_nothing_of_the_model_but_positions(names: list[str]) -> None:
    for name in names:
        first, second = (models_after(name, seed) for seed in (0, 1))
        differ = {field for field in first if first[field].tobytes() != second[field].tobytes()}
        assert differ <= {"body_pos", "site_pos"}, name
        models._compile_model.cache_clear()  # fifty of them would take a gigabyte


def models_after(name: str, seed: int) -> dict[str, np.ndarray]:
    """What is in the model after the beginning of an episode, by field."""
    env = make_env("metaworld", {"task": name})
    env.reset(options={"task": draw_tasks("metaworld", {"task": name}, "train", 1, seed=seed)[0]})
    env.step(np.random.default_rng(seed).uniform(-1, 1, (5, 4)).astype(np.float32))
    model = env._sim.model
    return {
        field: np.array(getattr(model, field))
        for field in dir(model)
        if not field.startswith("_") and isinstance(getattr(model, field), np.ndarray)
    }


def test_resets_reuse_the_model_and_move_the_hand_to_its_start_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mujoco = models.import_mujoco("metaworld")
    env = make_env("metaworld", {"task": "push"})
    env.reset(seed=0)
    model, num_steps = env._sim.model, 0

    def counted(*args: Any, **more: Any) -> None:
        nonlocal num_steps
        num_steps += 1
        step(*args, **more)

    step = mujoco.mj_step
    monkeypatch.setattr(mujoco, "mj_step", counted)
    for seed in range(20):
        env.reset(seed=seed)
    assert env._sim.model is model
    assert num_steps == 0  # Meta-World's own moves the hand for 50 steps, twice in each
    env.step(np.zeros((1, 4)))
    assert num_steps > 0


def test_images_show_the_state_and_are_the_same_for_the_same_task() -> None:
    env = make_env("metaworld", {"task": "push", "observation": "both", "camera": ["corner2", "gripperPOV"]})
    first = env.reset(seed=0)[0]
    env.step(np.full((10, 4), 0.8))
    moved = env.observe()
    other = env.reset(seed=1)[0]
    again = env.reset(seed=0)[0]
    assert first == again and first.arrays["corner2"].shape == (64, 64, 3)
    for name in ("corner2", "gripperPOV"):
        assert (first.arrays[name] != moved.arrays[name]).mean() > 0.01
        assert (first.arrays[name] != other.arrays[name]).any()
    with pytest.raises(InputError, match=r"no camera 'front'; this environment has topview, corner"):
        make_env("metaworld", {"observation": "camera", "camera": "front"}).reset(seed=0)


def test_watching_an_episode_does_not_change_it() -> None:
    chunk = np.random.default_rng(1).uniform(-1, 1, (10, 4)).astype(np.float32)
    ends = []
    for observation in ("state", "both"):
        env = make_env("metaworld", {"task": "basketball", "observation": observation})
        env.reset(seed=4)
        ends.append(env.step(chunk)[0].arrays["state"])
    assert ends[0].tobytes() == ends[1].tobytes()


@pytest.mark.slow
def test_the_env_passes_the_check() -> None:
    report = check_env("metaworld", {"task": "button-press"}, num_tasks=3)
    assert report.ok, str(report)


def test_without_a_gl_library_the_message_names_the_packages() -> None:
    code = (
        "import ctypes.util; ctypes.util.find_library = lambda name: None\n"
        "from stepwell.envs import make_env\n"
        "make_env('metaworld', {'observation': 'camera'}).reset(seed=0)"
    )
    clean = {
        name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")
    }
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean)
    assert "ConfigError" in ran.stderr and "apt install libegl1 libgl1-mesa-dri" in ran.stderr


@pytest.mark.slow
def test_a_process_whose_cameras_were_used_in_threads_ends_without_a_word() -> None:
    code = (
        "import threading\n"
        "from stepwell.envs import make_env\n"
        "seen, stay = threading.Event(), threading.Event()\n"
        "def look():\n"
        "    make_env('metaworld', {'observation': 'camera'}).reset(seed=0)\n"
        "    seen.set()\n"
        "    stay.wait()\n"
        "threading.Thread(target=look, daemon=True).start()\n"
        "assert seen.wait(120)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0 and "Error" not in ran.stderr, ran.stderr
