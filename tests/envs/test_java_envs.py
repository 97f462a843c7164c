"""ScienceWorld and TextWorldExpress: what needs no Java here, the rest where package and Java are installed.

Run whole by scripts/test_extra_scienceworld.sh and scripts/test_extra_textworld_express.sh.
"""

from __future__ import annotations

import importlib.util
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell.core import ConfigError, EnvError, InputError, Split, Task
from stepwell.envs import java, read_options
from stepwell.envs.scienceworld_env import VARIATIONS, ScienceWorld, ScienceWorldOptions, list_variations
from stepwell.envs.textworld_express_env import SEEDS, TextWorldExpress, TextWorldExpressOptions

SCIENCE, EXPRESS = (
    "stepwell.envs.scienceworld_env:ScienceWorld",
    "stepwell.envs.textworld_express_env:TextWorldExpress",
)
ENVS: dict[str, Any] = {"scienceworld": ScienceWorld, "textworld_express": TextWorldExpress}
QUICK = ScienceWorldOptions(tasks=("find-non-living-thing",))
SORTING = TextWorldExpressOptions(game="sorting")


def runs(package: str) -> bool:
    return importlib.util.find_spec(package) is not None and shutil.which("java") is not None


needs_science = pytest.mark.skipif(
    not runs("scienceworld"), reason="needs the package scienceworld, and Java"
)
needs_express = pytest.mark.skipif(
    not runs("textworld_express"), reason="needs the package textworld_express, and Java"
)
each_env = pytest.mark.parametrize(
    "name",
    [
        pytest.param("scienceworld", marks=needs_science),
        pytest.param("textworld_express", marks=needs_express),
    ],
)


@pytest.fixture(scope="module")
def science() -> Iterator[ScienceWorld]:
    with ScienceWorld(QUICK) as env:
        yield env


@pytest.fixture(scope="module")
def express() -> Iterator[TextWorldExpress]:
    with TextWorldExpress(SORTING) as env:
        yield env


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("held_out", ["dev", "test"])
@pytest.mark.parametrize("name", ENVS)
def test_tasks_stand_where_the_makers_of_the_env_put_them(name: str, held_out: str) -> None:
    kind = ENVS[name]
    options = kind.Options(held_out=held_out)
    tasks = [kind.make_task(options, seed) for seed in range(120)]
    assert {task.tags[1] for task in tasks} == {"train", held_out}
    for task in tasks:
        assert task.split(0.2) == (Split.TRAIN if task.tags[1] == "train" else Split.HELD_OUT)
        if name == "scienceworld":
            assert task.content["variation"] in list_variations(str(task.content["task"]), task.tags[1])
        else:
            assert task.content["seed"] in SEEDS[task.tags[1]]
    assert tasks == [kind.make_task(options, seed) for seed in range(120)]


def test_sides_of_variations_are_disjoint_and_complete() -> None:
    for name, count in VARIATIONS.items():
        numbers = [n for side in ("train", "dev", "test") for n in list_variations(name, side)]
        assert numbers == list(range(count))


@pytest.mark.parametrize("name", ENVS)
def test_a_missing_package_is_named_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # importing it now fails as if it were not installed
    with pytest.raises(ConfigError, match=rf'pip install "stepwell\[{name}\]"'):
        ENVS[name]().reset(seed=0)


@each_env
def test_missing_java_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="needs Java"):
        ENVS[name]().reset(seed=0)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="there is no task 'fly'"):
        read_options(SCIENCE, {"tasks": ["fly"]})
    with pytest.raises(ConfigError, match=r"env\.options\.game"):
        read_options(EXPRESS, {"game": "chess"})


@pytest.mark.parametrize(
    ("kind", "content", "problem"),
    [
        (ScienceWorld, {"task": "melt"}, "holds a known 'task'"),
        (ScienceWorld, {"task": "melt", "variation": 30, "simplifications": ""}, "variations 0 to 29"),
        (TextWorldExpress, {"game": "coin"}, "holds a 'game'"),
    ],
)
def test_a_task_without_its_parts_is_refused(kind: Any, content: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        kind().reset(options={"task": Task(kind.name, content)})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty"),
        ("x" * 241, r"too long \(241 characters"),
        ("go\x00", "cannot be read"),
        ("\ud800", "cannot"),
    ],
)
def test_texts_that_cannot_be_sent_are_refused_with_the_reason(text: str, told: str) -> None:
    import re

    assert re.search(told, java.explain_refusal(text))
    assert java.explain_refusal("take ☃ from fjord") == ""


def test_a_solution_is_followed_only_by_one_who_has_kept_to_it() -> None:
    assert java.find_remaining_plan(["a", "b", "c"], ["a"]) == ["b", "c"]
    assert java.find_remaining_plan(["a", "b", "c"], ["b"]) == []
    assert java.find_remaining_plan(["a"], ["a"]) == []


@needs_science
def test_variations_are_those_of_the_package(science: ScienceWorld) -> None:
    science.reset(seed=0)
    engine = science._engine
    assert {name: engine.get_max_variations(name) for name in engine.get_task_names()} == VARIATIONS
    for side in ("train", "dev", "test"):
        numbers = getattr(engine, f"get_variations_{side}")()
        assert numbers == list(list_variations("find-non-living-thing", side))


@needs_science
def test_the_gold_path_solves_an_experiment_and_rewards_are_changes_of_its_score(
    science: ScienceWorld,
) -> None:
    observation, info = science.reset(seed=0)
    assert info == {} and observation.text.startswith("Task: Your task is to find a(n) non-living thing.")
    first = science._score / 100
    rewards, over = [], False
    while not over:
        _, reward, over, _, info = science.step(science.oracle()[:1])
        rewards.append(reward)
    assert info["success"] is True and sum(rewards) + first == pytest.approx(1.0)


@needs_science
def test_the_oracle_comes_back_to_where_the_agent_is(science: ScienceWorld) -> None:
    science.reset(seed=1)
    science.step(["go to kitchen"])
    before, score = science.state(), science._engine.server.getScore()
    assert science.oracle() == [] or science.oracle()[0] != "go to kitchen"
    science._note_view()
    assert science.state() == before and science._engine.server.getScore() == score
    science.step(["juggle"])
    assert science.oracle() == []


@needs_science
def test_odd_texts_and_taking_back_points_do_nothing(science: ScienceWorld) -> None:
    science.reset(seed=0)
    for text in ("reset task", "RESET  task", "x" * 100_000, "\ud800", "", "juggle ☃", "go to moon; rm"):
        observation, reward, terminated, _, _ = science.step([text])
        assert reward == 0.0 and not terminated
        assert "Nothing happens." in observation.text or "No known action" in observation.text
    assert "reset task" not in science.list_commands() and "look around" in science.list_commands()
    assert science.random_action(random.Random(0)) in science.list_commands()


@needs_science
def test_every_valid_command_can_be_listed() -> None:
    with ScienceWorld(ScienceWorldOptions(tasks=("find-plant",), commands="all")) as env:
        text = env.reset(seed=0)[0].text
        assert "OBJ" not in text and all(command in text for command in env.list_commands())


@needs_express
def test_seeds_and_games_are_those_of_the_package(express: TextWorldExpress) -> None:
    express.reset(seed=0)
    engine = express._engine
    assert engine.getValidSeedsTrain() == list(SEEDS["train"])
    assert engine.getValidSeedsDev() == list(SEEDS["dev"])
    assert engine.getValidSeedsTest() == list(SEEDS["test"])


@needs_express
@pytest.mark.parametrize("game", ["sorting", "twc", "peckingorder"])
def test_gold_paths_solve_games_and_rewards_add_up(game: str) -> None:
    with TextWorldExpress(TextWorldExpressOptions(game=game)) as env:  # type: ignore[arg-type]
        for seed in range(3):
            env.reset(seed=seed)
            rewards, over = [], False
            while not over:
                _, reward, over, _, info = env.step(env.oracle()[:1])
                rewards.append(reward)
            assert info["success"] is True and sum(rewards) == pytest.approx(1.0)


@needs_express
def test_case_and_blanks_do_not_matter_and_odd_texts_are_answered_by_the_game(
    express: TextWorldExpress,
) -> None:
    express.reset(seed=0)
    way = express.oracle()
    express.step([f"  {way[0].upper()} "])
    assert express.oracle() == way[1:]
    told = express.step(["juggle ☃"])[0].text
    assert "not sure what you mean" in told and express.oracle() == []
    assert express.random_action(random.Random(0)) in express.list_commands()


@needs_express
def test_parameters_that_the_game_does_not_know_are_refused() -> None:
    options = TextWorldExpressOptions(game="coin", params="numMoons=3")
    with pytest.raises(InputError, match=r"env\.options\.params of coin"), TextWorldExpress(options) as env:
        env.reset(seed=0)


@each_env
def test_close_ends_the_java_process_and_a_dead_one_is_replaced(name: str) -> None:
    env = ENVS[name](QUICK if name == "scienceworld" else SORTING)
    first, _ = env.reset(seed=0)
    process = env._engine._gateway.java_process
    process.kill()
    process.wait(10)
    with pytest.raises(EnvError, match=f"the Java process of {name} failed"):
        env.step([env.oracle()[0] if name == "textworld_express" else "look around"])
    assert env.reset(seed=0)[0].text.split("\n")[0] == first.text.split("\n")[0]
    pid = env._engine._gateway.java_process.pid
    env.close()
    env.close()
    assert not is_running(pid)


@each_env
def test_the_java_process_ends_when_its_parent_is_killed(name: str) -> None:
    kind = ENVS[name]
    code = (
        f"import time\nfrom {kind.__module__} import {kind.__name__} as World\n"
        "env = World()\nenv.reset(seed=0)\n"
        "print(env._engine._gateway.java_process.pid, flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    parent.wait(10)
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_running(pid)
