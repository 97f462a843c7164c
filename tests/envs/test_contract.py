"""What every environment gets from `Env`: turns, limits, refusals, and tasks by seed or by hand."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from stepwell.core import (
    ActionSpace,
    ConfigError,
    EnvDescription,
    InputError,
    Observation,
    Split,
    StateForm,
    Task,
)
from stepwell.envs import (
    Effect,
    Env,
    EnvBatch,
    draw_tasks,
    find_env_type,
    list_distinct_tasks,
    make_env,
    read_options,
)
from stepwell.envs.registry import LANGUAGE_ENVS

LARGE = ("multihop_qa", "paper_search", "shop")  # their data take 15 s to make; their folders open small ones


class Echo(Env):
    """Free text: saying the word ends it; shouting is cut off; anything else costs."""

    name = "echo"

    @property
    def description(self) -> EnvDescription:
        return EnvDescription(self.name, "Say the word.", ActionSpace(), max_turns=2)

    @classmethod
    def make_task(cls, options: object, seed: int) -> Task:
        return Task(cls.name, {"word": random.Random(seed).choice(["well", "step"])}, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        if task.content["word"] == "broken":
            raise RuntimeError("no such word")
        self.word, self.chance = task.content["word"], random.Random(seed).random()

    def act(self, action: str) -> Effect:
        if action == "crash":
            raise RuntimeError("crashed as asked")
        if action.isupper():
            return Effect(0.5, truncated=True)
        done = action == self.word
        return Effect(1.0 if done else -1.0, terminated=done, success=done)

    def observe(self) -> Observation:
        return Observation(f"say {self.word}")

    def oracle(self) -> list[str]:
        return [str(self.word)]


class Skewed(Echo):
    """A few tasks that are drawn nearly always, and endless others."""

    name = "skewed"

    @classmethod
    def make_task(cls, options: object, seed: int) -> Task:
        return Task(cls.name, {"number": seed if seed % 200 == 0 else seed % 10}, seed=seed)


WORD = Task("echo", {"word": "well"}, seed=5)


def started(task: Task = WORD) -> Echo:
    env = Echo()
    env.reset(options={"task": task})
    return env


def test_success_ends_the_episode_with_its_reward() -> None:
    observation, reward, terminated, truncated, info = started().step(["well"])
    assert (observation.text, reward, terminated, truncated) == ("say well", 1.0, True, False)
    assert info == {"success": True, "num_actions": 1}


def test_the_turn_limit_is_a_terminated_failure() -> None:
    env = started()
    assert env.step(["no"])[1:] == (-1.0, False, False, {"success": False, "num_actions": 1})
    assert env.step(["no"])[1:] == (-1.0, True, False, {"success": False, "num_actions": 1})


def test_a_cut_in_the_last_turn_stays_truncated() -> None:
    env = started()
    env.step(["no"])
    assert env.step(["LOUD"])[1:4] == (0.5, False, True)


def test_an_empty_turn_counts_and_gives_nothing() -> None:
    env = started()
    assert env.step(())[1:] == (0.0, False, False, {"success": False, "num_actions": 0})
    assert env.step(())[1:] == (0.0, True, False, {"success": False, "num_actions": 0})


def test_no_turn_is_played_before_reset_or_after_the_end() -> None:
    with pytest.raises(InputError, match="call reset"):
        Echo().step(["well"])
    env = started()
    env.step(["well"])
    with pytest.raises(InputError, match="over"):
        env.step(["well"])


def test_a_turn_is_a_list_and_not_longer_than_allowed() -> None:
    with pytest.raises(InputError, match="at most 1"):
        started().step(["well", "well"])
    with pytest.raises(InputError, match="list"):
        started().step("well")


def test_reset_takes_a_task_or_a_seed_and_nothing_else() -> None:
    env = Echo()
    assert env.reset(seed=3)[0].text == f"say {Echo.make_task(None, 3).content['word']}"
    with pytest.raises(InputError, match="needs a seed"):
        env.reset()
    with pytest.raises(InputError, match="know only 'task', got level"):
        env.reset(options={"level": 3})
    with pytest.raises(InputError, match="belongs to 'other'"):
        env.reset(options={"task": Task("other", {"word": "well"})})
    with pytest.raises(InputError, match="no task yet"):
        _ = Echo().task


def test_chance_follows_the_seed_of_reset_and_else_of_the_task() -> None:
    env = started()
    assert env.chance == random.Random(5).random()
    env.reset(seed=9, options={"task": WORD})
    assert (env.word, env.chance, env.task) == ("well", random.Random(9).random(), WORD)


def test_a_reset_that_fails_leaves_no_episode_behind() -> None:
    env = started()
    with pytest.raises(RuntimeError):
        env.reset(options={"task": Task("echo", {"word": "broken"})})
    with pytest.raises(InputError, match="call reset"):
        env.step(["well"])


def test_words_and_image_of_the_observation_stand_in_where_an_env_has_no_others() -> None:
    env = started()
    assert env.state() == {StateForm.NATURAL_LANGUAGE: "say well"}
    image = env.render()
    assert image.dtype == "uint8" and image.shape[2] == 3
    assert (image < 128).any() and (image == 255).any()


def test_options_of_another_kind_are_refused() -> None:
    with pytest.raises(InputError, match="use make_env"):
        find_env_type("frozenlake")(find_env_type("sokoban").Options())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in LANGUAGE_ENVS]
)
def test_built_in_envs_open_by_name(name: str) -> None:
    env = make_env(name)
    assert env.name == name == env.description.name
    assert env.reset(seed=0)[0].text


def test_an_unknown_env_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'frozenlake'"):
        find_env_type("frozenlaek")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("no_such_module_here:World", "no module 'no_such_module_here'"),
        ("stepwell.envs.base:Nothing", "has no 'Nothing'"),
        ("stepwell.envs.grid:describe_relation", "must be a subclass"),
        ("stepwell.core:Task", "must be a subclass"),
    ],
)
def test_an_import_path_that_leads_nowhere_says_where_it_ended(path: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        find_env_type(path)


def test_a_module_that_exits_when_it_is_imported_is_refused_with_its_own_line(tmp_path: Path) -> None:
    (tmp_path / "licensed_pond.py").write_text("import sys\n\nsys.exit('no licence')\n")
    with pytest.raises(ConfigError, match=r"(?s)licensed_pond\.py\", line 3.*SystemExit: no licence"):
        find_env_type(f"{tmp_path}/licensed_pond.py:Pond")


def test_an_import_path_opens_a_class() -> None:
    assert find_env_type("stepwell.envs.sokoban.env:Sokoban") is find_env_type("sokoban")


def test_a_misspelt_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        ConfigError, match=r"env\.options\.hole_rat is not an option .* did you mean 'hole_rate'"
    ):
        make_env("frozenlake", {"hole_rat": 0.1})


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(ConfigError, match=r"env\.options\.size of frozenlake"):
        make_env("frozenlake", {"size": 1})
    with pytest.raises(ConfigError, match=r"^env\.options of frozenlake: min_actions \(10\) exceeds"):
        make_env("frozenlake", {"min_actions": 10})


def test_options_that_are_read_already_pass_through() -> None:
    options = read_options("frozenlake", {"size": 5})
    assert read_options("frozenlake", options) is options


def test_tasks_are_distinct_of_one_split_and_the_same_for_the_same_seed() -> None:
    tasks = draw_tasks("frozenlake", {}, Split.HELD_OUT, 100, seed=7, held_out_share=0.3)
    again = draw_tasks("frozenlake", {}, Split.HELD_OUT, 100, seed=7, held_out_share=0.3)
    other = draw_tasks("frozenlake", {}, Split.HELD_OUT, 100, seed=8, held_out_share=0.3)
    assert [task.id for task in tasks] == [task.id for task in again] != [task.id for task in other]
    assert len({task.id for task in tasks}) == 100
    assert {task.split(0.3) for task in tasks} == {Split.HELD_OUT}


def test_all_tasks_of_a_small_env_are_found_and_then_no_more() -> None:
    # 2 x 2 boards without holes: 12 pairs of start and goal, 4 of them two moves apart
    options = {"size": 2, "hole_rate": 0.0, "min_actions": 1}
    train = draw_tasks("frozenlake", options, Split.TRAIN, 6, seed=0, held_out_share=0.5)
    with pytest.raises(ConfigError, match=r"has (\d+) train tasks, 12 were asked for") as refusal:
        draw_tasks("frozenlake", options, Split.TRAIN, 12, seed=0, held_out_share=0.5)
    num_train = int(str(refusal.value).split(" has ")[1].split()[0])
    held_out = draw_tasks("frozenlake", options, Split.HELD_OUT, 12 - num_train, seed=1, held_out_share=0.5)
    assert len({task.id for task in held_out}) + num_train == 12
    assert {task.id for task in train}.isdisjoint({task.id for task in held_out})


def test_an_env_that_raises_does_not_stop_the_others() -> None:
    batch = EnvBatch("frozenlake", {}, size=3)
    batch.envs = [Echo(), Echo(), Echo()]
    assert [turn.observation.text for turn in batch.reset([WORD] * 3)] == ["say well"] * 3
    turns = batch.step([0, 1, 2], [["well"], ["crash"], ["no"]])
    assert [turn.reward for turn in turns] == [1.0, 0.0, -1.0]
    assert [turn.is_over for turn in turns] == [True, True, False]
    assert turns[0].error is None and turns[2].error is None
    assert "environment 1) raised RuntimeError: crashed as asked" in str(turns[1].error)
    assert isinstance(turns[1].error.__cause__, RuntimeError)


def test_a_reset_that_raises_is_a_turn_with_an_error() -> None:
    batch = EnvBatch("frozenlake", {}, size=2)
    batch.envs = [Echo(), Echo()]
    turns = batch.reset([Task("echo", {"word": "broken"}), WORD])
    assert "no such word" in str(turns[0].error) and turns[1].error is None


def test_envs_of_a_batch_are_reset_one_by_one_with_seeds_of_their_own() -> None:
    batch = EnvBatch("frozenlake", {}, size=3)
    batch.envs = [Echo(), Echo(), Echo()]
    batch.reset([WORD, WORD], indices=[2, 0], seeds=[1, 2])
    chances = [env.chance for env in (batch.envs[2], batch.envs[0])]
    assert chances == [random.Random(1).random(), random.Random(2).random()]
    assert batch.step([1], [["well"]])[0].error is not None


@pytest.mark.parametrize(
    ("indices", "actions", "problem"),
    [
        ([0], [["Up"], ["Up"]], "2 action lists for 1 environments"),
        ([5], [["Up"]], "numbered 0..1"),
        ([-1], [["Up"]], "numbered 0..1"),
        ([0, 0], [["Up"], ["Up"]], "one turn at a time"),
    ],
)
def test_mistakes_about_the_batch_are_raised(
    indices: list[int], actions: list[list[str]], problem: str
) -> None:
    batch = EnvBatch("frozenlake", {}, size=2)
    with pytest.raises(InputError, match=problem):
        batch.step(indices, actions)


def test_a_batch_plays_like_its_envs_one_by_one() -> None:
    tasks = draw_tasks("frozenlake", {}, Split.TRAIN, 16, seed=3)
    with EnvBatch("frozenlake", {}, size=16) as batch:
        batch.reset(tasks)
        together = batch.step(range(16), [("Up", "Right")] * 16)
    for task, turn in zip(tasks, together, strict=True):
        env = make_env("frozenlake")
        env.reset(options={"task": task})
        alone = env.step(("Up", "Right"))
        assert (turn.observation, turn.reward, turn.terminated, turn.truncated, turn.info) == alone


def test_tasks_that_are_hardly_ever_drawn_are_not_waited_for() -> None:
    tasks = list(itertools.islice(list_distinct_tasks(f"{__name__}:Skewed", {}, Split.TRAIN, 0), 500))
    common = {task.content["number"] for task in tasks} & set(range(10))
    assert len(common) >= 5 and len(tasks) < 50
