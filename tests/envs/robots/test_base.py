"""What every robot environment gets from `RobotEnv`: chunks, limits, refusals, rewards, the true state."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from stepwell.core import (
    ArraySpec,
    ConfigError,
    EnvError,
    InputError,
    RobotEnvDescription,
    Split,
    StateForm,
    Task,
)
from stepwell.envs import EnvBatch, draw_tasks, find_env_type, list_env_names, make_env
from stepwell.envs.check import check_type
from stepwell.envs.registry import ROBOT_ENVS
from stepwell.envs.robots import ActionEffect, RobotEnv, RobotOptions


class TrackOptions(RobotOptions):
    camera: tuple[str, ...] = Field(("side",))
    max_actions: int = Field(12, ge=1)
    breaks_at: float = 1e9


class Track(RobotEnv):
    """A cart on a line: each action moves it by up to one; it must come within a half of the goal."""

    name = "track"
    extra = "track"
    Options = TrackOptions

    def layout(self) -> RobotEnvDescription:
        arrays = {"proprio": ArraySpec((1,))}
        if self.options.shows_state:
            arrays["state"] = ArraySpec((1,))
        size = self.options.image_size
        arrays |= {camera: ArraySpec((size, size, 3), "uint8") for camera in self.options.cameras}
        return RobotEnvDescription(self.name, arrays, 2, self.options.max_actions)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        goal = float(np.random.default_rng(seed).choice([-1.0, 1.0])) * (5 + seed % 40 / 20)
        return Task(cls.name, {"goal": goal}, instruction="drive to the goal", seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        self.place, self.goal = 0.0, float(task.content["goal"])  # type: ignore[arg-type]

    def act(self, action: np.ndarray) -> ActionEffect:
        self.place += float(action[0])
        if abs(self.place) > self.options.breaks_at:
            self.place = float("nan")
        distance = abs(self.goal - self.place)
        return ActionEffect(distance < 0.5, -distance)

    def arrays(self) -> dict[str, np.ndarray]:
        shown = {"proprio": np.array([self.place], dtype=np.float32)}
        if self.options.shows_state:
            shown["state"] = np.array([self.goal], dtype=np.float32)
        return shown | {camera: self.image(camera) for camera in self.options.cameras}

    def expert(self) -> np.ndarray:
        return np.array([3 * (self.goal - self.place), 0.0])

    def facts(self) -> dict[str, Any]:
        return {"cart": [self.place], "goal": [self.goal]}

    def image(self, camera: str) -> np.ndarray:
        size = self.options.image_size
        return np.arange(size * size * 3, dtype=np.uint8).reshape(size, size, 3)


AT_FIVE = Task("track", {"goal": 5.0}, instruction="drive to the goal")


def started(**options: Any) -> Track:
    env = Track(TrackOptions(**options))
    env.reset(options={"task": AT_FIVE})
    return env


def moves(*values: float) -> np.ndarray:
    return np.array([[value, 0.0] for value in values], dtype=np.float32)


def test_success_ends_the_episode_inside_the_chunk() -> None:
    observation, reward, terminated, truncated, info = started().step(moves(*[1.0] * 9))
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info == {"success": True, "num_actions": 5, "process": -10.0}
    assert observation.arrays["proprio"].tolist() == [5.0]


def test_the_limit_cuts_a_chunk_and_terminates_as_a_failure() -> None:
    env = started(max_actions=3)
    assert env.step(moves(0.0, 0.0))[1:4] == (0.0, False, False)
    _, reward, terminated, truncated, info = env.step(moves(0.0, 0.0, 0.0))
    assert (reward, terminated, truncated, info["num_actions"]) == (0.0, True, False, 1)
    with pytest.raises(InputError, match="is over; call reset"):
        env.step(moves(0.0))


def test_the_dense_reward_is_the_simulators_own() -> None:
    assert started(reward="dense").step(moves(1.0, 1.0))[1] == -7.0


def test_actions_are_clipped_to_one() -> None:
    assert started().step(moves(9.0, -0.5))[0].arrays["proprio"].tolist() == [0.5]


@given(
    actions=st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=30),
    cuts=st.lists(st.integers(1, 30), max_size=6),
    reward=st.sampled_from(["sparse", "dense"]),
)
def test_a_chunk_does_what_its_parts_do(actions: list[float], cuts: list[int], reward: str) -> None:
    chunk = moves(*actions)
    whole = started(reward=reward)
    expected = whole.step(chunk)
    env = started(reward=reward)
    edges = sorted({0, *(cut for cut in cuts if cut < len(chunk)), len(chunk)})
    total, num_actions, process = 0.0, 0, 0.0
    for first, last in itertools.pairwise(edges):
        observation, gained, terminated, truncated, info = env.step(chunk[first:last])
        total, num_actions, process = (
            total + gained, num_actions + info["num_actions"], process + info["process"],
        )  # fmt: skip
        if terminated:
            break
    assert (observation, terminated, truncated) == (expected[0], expected[2], expected[3])
    assert num_actions == expected[4]["num_actions"] and info["success"] == expected[4]["success"]
    assert total == pytest.approx(expected[1]) and process == pytest.approx(expected[4]["process"])


@pytest.mark.parametrize(
    ("chunk", "problem"),
    [
        (np.zeros(2), r"\[C, 2\] .* shape \(2,\)"),
        (np.zeros((3, 4)), r"shape \(3, 4\)"),
        (np.zeros((0, 2)), "C at least 1"),
        (np.array([[np.nan, 0.0]]), "nan or infinity"),
        (np.array([[np.inf, 0.0]]), "nan or infinity"),
        (np.array([["a", "b"]]), "of numbers"),
    ],
)
def test_a_chunk_that_is_none_is_refused_and_changes_nothing(chunk: np.ndarray, problem: str) -> None:
    env = started()
    before = env.observe()
    with pytest.raises(InputError, match=problem):
        env.step(chunk)
    assert env.observe() == before


def test_a_diverged_simulation_is_an_env_error_and_not_data() -> None:
    with pytest.raises(EnvError, match="diverged, proprio"):
        started(breaks_at=1.5).step(moves(1.0, 1.0))


def test_the_oracle_is_clipped_and_needs_a_task() -> None:
    assert started().oracle().tolist() == [1.0, 0.0]
    with pytest.raises(InputError, match="call reset"):
        Track().oracle()


def test_the_truth_is_told_in_words_and_as_json() -> None:
    state = started().state()
    assert state[StateForm.NATURAL_LANGUAGE] == "The cart is at (0.000). The goal is at (5.000)."
    assert json.loads(state[StateForm.STRUCTURED]) == {"cart": [0.0], "goal": [5.0]}


def test_reset_takes_a_task_of_this_env_or_a_seed() -> None:
    env = Track()
    assert env.reset(seed=3)[0].instruction == "drive to the goal"
    assert env.task == Track.make_task(env.options, 3)
    with pytest.raises(InputError, match="needs a seed"):
        env.reset()
    with pytest.raises(InputError, match="belongs to 'other'"):
        env.reset(options={"task": Task("other", {})})
    with pytest.raises(InputError, match="know only 'task'"):
        env.reset(options={"level": 1})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"camera": []}, "at least one camera"),
        ({"camera": ["a", "a"]}, "each once"),
        ({"camera": "state"}, "none of them"),
        ({"max_actions": 0}, "greater than or equal to 1"),
        ({"reward": "shaped"}, "'sparse' or 'dense'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        TrackOptions(**options)


def test_images_are_shown_under_the_names_of_their_cameras() -> None:
    env = started(observation="both", camera=["left", "right"], image_size=8)
    assert list(env.observe().arrays) == list(env.description.arrays) == ["proprio", "state", "left", "right"]
    assert env.description.images == ("left", "right")
    assert list(started(observation="camera", camera="left").observe().arrays) == ["proprio", "left"]


def test_a_sound_env_passes_every_check() -> None:
    report = check_type(Track)
    assert report.ok, str(report)


class Forgetful(Track):
    """Starts where the last episode ended."""

    def begin(self, task: Task, seed: int) -> None:
        self.goal, self.place = float(task.content["goal"]), getattr(self, "place", 0.0)  # type: ignore[arg-type]


class Seeded(Track):
    """Starts where the seed says, which content does not hold."""

    def begin(self, task: Task, seed: int) -> None:
        super().begin(task, seed)
        self.place = seed / 100


class Narrow(Track):
    """Shows another shape than it says."""

    def arrays(self) -> dict[str, np.ndarray]:
        return super().arrays() | {"proprio": np.zeros(2, dtype=np.float32)}


class Lazy(Track):
    """Its expert does nothing."""

    def expert(self) -> np.ndarray:
        return np.zeros(2)


class Easy(Track):
    """Anything solves it."""

    def act(self, action: np.ndarray) -> ActionEffect:
        return ActionEffect(True)


class Lonely(Track):
    """Has one task."""

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        return AT_FIVE


class Mute(Track):
    """Does not say what to do."""

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        return Task(cls.name, dict(super().make_task(options, seed).content), seed=seed)


class Restless(Track):
    """Moves when its state is read."""

    def facts(self) -> dict[str, Any]:
        self.place += 0.25
        return super().facts()


@pytest.mark.parametrize(
    ("kind", "fact"),
    [
        (Seeded, "content_decides_the_task"),
        (Forgetful, "same_actions_give_the_same_episode"),
        (Narrow, "arrays_are_as_described"),
        (Lazy, "oracle_solves_the_tasks"),
        (Easy, "random_play_does_not_suffice"),
        (Lonely, "splits_are_disjoint_and_both_filled"),
        (Mute, "description_is_complete"),
        (Restless, "state_has_its_forms"),
    ],
)
def test_the_check_finds_what_is_broken(kind: type[Track], fact: str) -> None:
    report = check_type(kind, num_tasks=4)
    assert not report[fact].ok, str(report)


def test_a_batch_isolates_a_robot_that_fails() -> None:
    batch = EnvBatch("frozenlake", {}, size=2)
    batch.envs = [Track(TrackOptions(breaks_at=0.5)), Track()]  # type: ignore[list-item]
    batch.reset([AT_FIVE, AT_FIVE])
    turns = batch.step([0, 1], [moves(1.0), moves(1.0)], with_state=True)
    assert isinstance(turns[0].error, EnvError) and turns[1].error is None
    assert turns[1].state["structured"] == '{"cart": [1.0], "goal": [5.0]}'


def test_robots_are_among_the_envs_and_open_by_name_without_a_simulator() -> None:
    assert set(ROBOT_ENVS) < set(list_env_names())
    for name in ROBOT_ENVS:
        env = make_env(name)
        assert env.is_robot and env.name == name
        assert find_env_type(name) is type(env)


def test_a_robot_of_ones_own_opens_by_import_path(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from stepwell.envs.robots.fetch.env import Fetch as Own\nNot = int\n"
    (tmp_path / "own_robot.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert find_env_type("own_robot:Own") is find_env_type("fetch")
    with pytest.raises(ConfigError, match="or of RobotEnv for a robot"):
        find_env_type("own_robot:Not")


def test_options_of_another_env_are_refused() -> None:
    with pytest.raises(InputError, match="use make_env"):
        Track(find_env_type("metaworld").Options())


def test_drawn_tasks_of_the_two_splits_share_no_content() -> None:
    options = {"task": "reach"}
    sides = [draw_tasks("fetch", options, split, 30, seed=5, held_out_share=0.4) for split in Split]
    ids = [{task.id for task in side} for side in sides]
    assert len(ids[0]) == len(ids[1]) == 30 and not ids[0] & ids[1]
    again = draw_tasks("fetch", options, Split.TRAIN, 30, seed=5, held_out_share=0.4)
    assert [task.id for task in again] == [task.id for task in sides[0]]
