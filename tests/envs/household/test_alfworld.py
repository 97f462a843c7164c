"""ALFWorld's engine beside our world model: the same commands, the same end, and its games as tasks.

Run by scripts/test_extra_alfworld.sh; skipped where alfworld is not installed. The games are households made
here and written in ALFWorld's own format: none of the published ones comes with the package.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from stepwell.core import ConfigError, InputError, Split
from stepwell.envs.household.alfworld import PublishedGame, find_games, write_game
from stepwell.envs.household.env import Household
from stepwell.envs.household.generated_household import GeneratedHousehold
from stepwell.envs.household.options import HouseholdOptions

pytest.importorskip("alfworld")

OURS = HouseholdOptions()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("games")
    for side, seeds in (("train", (0, 1, 2)), ("valid_seen", (10, 11)), ("valid_unseen", (20, 21))):
        for seed in seeds:
            write_game(Household.make_task(OURS, seed), root / side / f"trial_{seed}" / "game.tw-pddl")
    return root


@pytest.mark.parametrize("seed", range(6))
def test_both_allow_the_same_commands_and_win_at_the_same_moment(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    made = Household.make_task(OURS, seed)
    write_game(made, tmp_path / "game.tw-pddl")
    options = HouseholdOptions(games=str(tmp_path))
    ours, theirs = GeneratedHousehold(OURS, made), PublishedGame(options, Household.make_task(options, 0))
    for _ in range(25):
        assert sorted(ours.list_commands()) == sorted(theirs.list_commands())
        command = rng.choice(ours.list_commands()) if rng.random() < 0.4 else ours.plan()[0]
        effect = ours.act(command)
        assert theirs.act(command) == effect
        if effect.success:
            break
    theirs.close()
    assert effect.success


def test_its_planner_never_finds_a_shorter_plan_than_ours(folder: Path) -> None:
    for seed in (0, 1, 2):
        made = Household.make_task(OURS, seed)
        path = folder / "train" / f"trial_{seed}"
        options = HouseholdOptions(games=str(path))
        theirs = PublishedGame(options, Household.make_task(options, 0))
        plan = theirs.oracle()
        theirs.close()
        ours = GeneratedHousehold(OURS, made)
        assert [ours.act(command).success for command in plan] == [False] * (len(plan) - 1) + [True]
        assert len(plan) >= len(GeneratedHousehold(OURS, made).plan())


def test_folders_say_which_side_a_game_stands_on(folder: Path) -> None:
    for held_out in ("seen", "unseen"):
        options = HouseholdOptions(games=str(folder), held_out=held_out)
        tasks = {task.id: task for task in (Household.make_task(options, seed) for seed in range(60))}
        sides: dict[Split, set[str]] = {Split.TRAIN: set(), Split.HELD_OUT: set()}
        for task in tasks.values():
            sides[task.split(0.2)].add(str(task.content["game"]).split("/")[0])
        assert sides == {Split.TRAIN: {"train"}, Split.HELD_OUT: {f"valid_{held_out}"}} and len(tasks) == 5


def test_a_game_is_played_by_its_own_texts(folder: Path) -> None:
    env = Household(HouseholdOptions(games=str(folder)))
    observation, info = env.reset(seed=0)
    assert info == {"golden": None}
    assert observation.text.startswith(f"Task: {env.task.instruction}.\nYou are in the middle of a room.")
    assert "help" not in env.game.list_commands() and "Welcome" not in observation.text
    refused = env.step(["take the moon from 🌙" + "x" * 10_000])[0].text
    assert "Nothing happens." in refused and len(refused) < 2500
    for command in env.oracle():
        assert command in env.game.list_commands()
        _, reward, terminated, _, info = env.step([command])
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    env.close()


def test_games_that_are_missing_changed_or_unsolvable_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no \.tw-pddl file below"):
        find_games(str(tmp_path))
    game = tmp_path / "a" / "game.tw-pddl"
    write_game(Household.make_task(OURS, 0), game)
    options = HouseholdOptions(games=str(tmp_path))
    task = Household.make_task(options, 0)
    content = json.loads(game.read_text())
    game.write_text(json.dumps(content | {"solvable": False}))
    with pytest.raises(ConfigError, match="can be solved"):
        Household.make_task(options, 0)
    with pytest.raises(InputError, match="is not the file that task"):
        Household(options).reset(options={"task": task})
    game.unlink()
    with pytest.raises(InputError, match="is not there"):
        Household(options).reset(options={"task": task})
    with pytest.raises(ConfigError, match="must name the folder"):
        Household().reset(options={"task": task})
