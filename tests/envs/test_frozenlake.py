"""FrozenLake: Gymnasium's dynamics, boards as asked for, exact rewards and words."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from stepwell.core import ConfigError, InputError, Split, StateForm, Task
from stepwell.envs import draw_tasks, make_env
from stepwell.envs.baselines import measure_random_play
from stepwell.envs.frozenlake.env import FrozenLake
from stepwell.envs.frozenlake.lake import RING, Lake, list_slips, plan_on_slippery_ice
from stepwell.envs.grid import find_distance, find_distances, make_neighbour_table, move_table

gymnasium = pytest.importorskip("gymnasium")

BOARD = ["__O_", "____", "_O__", "____"]


def lake_task(start: tuple[int, int], goal: tuple[int, int], board: list[str] = BOARD, **more: bool) -> Task:
    return Task("frozenlake", {"board": board, "start": list(start), "goal": list(goal), **more})


def playing(task: Task, **options: object) -> FrozenLake:
    env = make_env("frozenlake", options)
    env.reset(options={"task": task})
    assert isinstance(env, FrozenLake)
    return env


def gymnasium_lake(task: Task, is_slippery: bool) -> object:
    rows = [list(row.replace("_", "F").replace("O", "H")) for row in task.content["board"]]
    for symbol, key in (("S", "start"), ("G", "goal")):
        row, column = task.content[key]
        rows[row][column] = symbol
    desc = ["".join(row) for row in rows]
    return gymnasium.make("FrozenLake-v1", desc=desc, is_slippery=is_slippery).unwrapped


@pytest.mark.parametrize("seed", range(5))
def test_every_transition_is_gymnasiums(seed: int) -> None:
    env = make_env("frozenlake", {"size": 5, "hole_rate": 0.3})
    env.reset(seed=seed)
    theirs = gymnasium_lake(env.task, is_slippery=False)
    lake = env.lake
    for place in range(25):
        if lake.holes[place] or place == lake.goal:
            continue
        for number, action in enumerate(RING):
            [(chance, after, reward, ended)] = theirs.P[place][number]
            env.reset(options={"task": env.task})
            env.place = place
            _, our_reward, terminated, truncated, info = env.step([action])
            assert (chance, env.place, terminated, truncated) == (1.0, after, ended, False)
            assert info["success"] == (reward == 1.0) == (our_reward == 10.0)


@pytest.mark.parametrize("seed", range(3))
def test_slippery_ice_has_gymnasiums_three_way_chances(seed: int) -> None:
    env = make_env("frozenlake", {"hole_rate": 0.2, "is_slippery": True})
    env.reset(seed=seed)
    theirs = gymnasium_lake(env.task, is_slippery=True)
    lake = env.lake
    for place in range(16):
        if lake.holes[place] or place == lake.goal:
            continue
        for number, action in enumerate(RING):
            expected: Counter[int] = Counter()
            for chance, after, _, _ in theirs.P[place][number]:
                expected[after] += round(3 * chance)
            assert Counter(lake.moves[place][slip] for slip in list_slips(action)) == expected


def test_played_slips_are_even_thirds() -> None:
    env = playing(lake_task((1, 1), (3, 3), is_slippery=True), is_slippery=True)
    ends: Counter[str] = Counter()
    for seed in range(3000):
        env.reset(seed=seed, options={"task": env.task})
        env.step(["Right"])
        ends[{9: "Down", 6: "Right", 1: "Up"}[env.place]] += 1
    assert set(ends) == {"Down", "Right", "Up"}
    assert all(900 < count < 1100 for count in ends.values())


def test_slips_repeat_with_the_seed_of_reset() -> None:
    env = playing(lake_task((1, 1), (3, 3), is_slippery=True), is_slippery=True)
    places = []
    for seed in (4, 4, *range(20)):
        env.reset(seed=seed, options={"task": env.task})
        env.step(["Right"])
        places.append(env.place)
    assert places[0] == places[1]
    assert len(set(places)) == 3


options = st.fixed_dictionaries(
    {
        "size": st.integers(3, 6),
        "hole_rate": st.sampled_from([0.0, 0.15, 0.3, 0.45]),
        "min_actions": st.integers(1, 3),
        "max_turns": st.integers(2, 4),
        "max_actions_per_turn": st.integers(2, 3),
    }
)


@settings(max_examples=examples(60), deadline=None)
@given(options, st.integers(0, 2**32 - 1))
def test_every_board_can_be_crossed_in_time_and_not_sooner_than_asked(given: dict, seed: int) -> None:
    env = make_env("frozenlake", given)
    env.reset(seed=seed)
    way = env.oracle()
    assert given["min_actions"] <= len(way) <= given["max_turns"] * given["max_actions_per_turn"]
    assert len(way) == fewest_moves(env.lake)
    assert env.task.content["start"] != env.task.content["goal"]
    while True:
        _, _, terminated, truncated, info = env.step(env.oracle()[: given["max_actions_per_turn"]])
        if terminated or truncated:
            break
    assert info["success"]


def fewest_moves(lake: Lake) -> int:
    """Forwards, over sets of cells: written apart from the search it is compared with."""
    places, num_moves = {lake.start}, 0
    while lake.goal not in places:
        places |= {to for place in places for to in lake.moves[place].values() if not lake.holes[to]}
        num_moves += 1
        assert num_moves <= len(lake.holes), "no way"
    return num_moves


def test_the_oracle_solves_500_boards_and_random_play_few() -> None:
    tasks = draw_tasks("frozenlake", {}, Split.TRAIN, 500, seed=0)
    env = make_env("frozenlake")
    for task in tasks:
        env.reset(options={"task": task})
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(env.oracle()[:3])
            over = terminated or truncated
        assert info["success"], task
    assert 0.05 < measure_random_play("frozenlake", {}, tasks, seed=0) < 0.2


def test_splits_share_no_board() -> None:
    train = draw_tasks("frozenlake", {}, Split.TRAIN, 800, seed=0)
    held_out = draw_tasks("frozenlake", {}, Split.HELD_OUT, 200, seed=1)

    def boards(tasks: list[Task]) -> set[str]:
        return {make_env("frozenlake").reset(options={"task": task})[0].text for task in tasks}

    assert boards(train).isdisjoint(boards(held_out))
    assert len(boards(train)) == 800 and len(boards(held_out)) == 200


def test_the_share_of_holes_follows_the_rate() -> None:
    tasks = draw_tasks("frozenlake", {"size": 8, "hole_rate": 0.2}, Split.TRAIN, 300, seed=0)
    cells = "".join("".join(task.content["board"]) for task in tasks)
    assert 0.15 < cells.count("O") / len(cells) < 0.22


def test_rewards_are_ten_for_the_goal_and_a_tenth_off_for_every_other_move() -> None:
    env = playing(lake_task((0, 0), (1, 2)))
    observation, reward, terminated, _, info = env.step(["Up", "Right", "Down"])  # a bump, two moves
    assert reward == pytest.approx(-0.3) and not terminated and info["num_actions"] == 3
    assert observation.text == "__O_\n_PG_\n_O__\n____"
    observation, reward, terminated, _, info = env.step(["Right", "Right", "Right"])
    assert (reward, terminated, info) == (10.0, True, {"success": True, "num_actions": 1, "process": 1.0})
    assert observation.text == "__O_\n__*_\n_O__\n____"


def test_a_hole_ends_the_episode_as_a_failure_and_costs_its_move() -> None:
    env = playing(lake_task((1, 1), (3, 3)))
    observation, reward, terminated, truncated, info = env.step(["Down", "Down"])
    assert (reward, terminated, truncated) == (-0.1, True, False)
    assert info == {"success": False, "num_actions": 1, "process": -1.0}
    assert observation.text == "__O_\n____\n_X__\n___G"
    assert env.oracle() == []


def test_the_goal_reached_in_the_last_turn_counts() -> None:
    env = playing(lake_task((3, 0), (3, 3)), max_turns=3, max_actions_per_turn=1)
    assert env.step(["Right"])[1:3] == (-0.1, False)
    assert env.step(["Right"])[1:3] == (-0.1, False)
    assert env.step(["Right"])[1:3] == (10.0, True)


def test_unknown_moves_are_refused_and_change_nothing() -> None:
    env = playing(lake_task((0, 0), (3, 3)))
    with pytest.raises(InputError, match="knows Up, Down, Left, Right"):
        env.step(["Down", "jump"])
    assert env.place == 0


def test_the_state_is_told_in_three_forms() -> None:
    state = playing(lake_task((1, 1), (3, 1))).state()
    assert state[StateForm.SYMBOLIC] == "__O_\n_P__\n_O__\n_G__"
    assert state[StateForm.NATURAL_LANGUAGE] == (
        "The goal is directly below the player. Hole 1 is above and right of the player. "
        "Hole 2 is directly below the player."
    )
    assert json.loads(state[StateForm.STRUCTURED]) == {
        "player": [1, 1],
        "goal": [3, 1],
        "holes": [[0, 2], [2, 1]],
        "size": [4, 4],
    }


@pytest.mark.parametrize("max_per_turn", [1, 2, 3])
def test_the_example_is_a_true_turn(max_per_turn: int) -> None:
    description = make_env("frozenlake", {"max_actions_per_turn": max_per_turn}).description
    example = description.examples[StateForm.SYMBOLIC]
    rows = example.observation.split("\n")
    board = [row.replace("P", "_").replace("G", "_") for row in rows]
    at = {
        symbol: divmod(example.observation.replace("\n", "").index(symbol), len(rows[0])) for symbol in "PG"
    }
    env = playing(lake_task(at["P"], at["G"], board), max_actions_per_turn=max_per_turn)
    for form, told in description.examples.items():
        assert told.observation == env.state()[form]
    env.step(example.answer.split(description.actions.separator))
    for form, told in description.examples.items():
        assert told.prediction == env.state()[form]


def test_the_guide_mentions_slips_and_images_only_where_they_are() -> None:
    plain = make_env("frozenlake").description.guide
    assert "slippery" not in plain and "picture" not in plain
    assert "slippery" in make_env("frozenlake", {"is_slippery": True}).description.guide
    assert "picture" in make_env("frozenlake", {"observation": "image"}).description.guide


def test_observations_are_text_image_or_both() -> None:
    shown = {
        kind: playing(lake_task((0, 0), (3, 3)), observation=kind, tile_size=8).observe()
        for kind in ("text", "image", "both")
    }
    assert shown["text"].text and not shown["text"].images
    assert not shown["image"].text and shown["image"].images[0].shape == (32, 32, 3)
    assert shown["both"].text == shown["text"].text
    assert (shown["both"].images[0] == shown["image"].images[0]).all()


def test_on_slippery_ice_the_oracle_beats_random_play_by_far() -> None:
    given = {"is_slippery": True, "max_turns": 6, "hole_rate": 0.2}
    env = make_env("frozenlake", given)
    tasks = draw_tasks("frozenlake", given, Split.TRAIN, 200, seed=0)
    num_solved = 0
    for task in tasks:
        env.reset(options={"task": task})
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(env.oracle())
            over = terminated or truncated
        num_solved += info["success"]
    assert num_solved / 200 > 0.1 + measure_random_play("frozenlake", given, tasks, seed=0)


def test_the_best_slippery_move_keeps_away_from_the_hole() -> None:
    # Left slips up, left or down: on the left edge all of these are safe; right or down may fall.
    lake = Lake.from_rows(["___", "_O_", "__O"], start=(1, 0), goal=(0, 2))
    assert plan_on_slippery_ice(lake, lake.start, num_turns=50, per_turn=1) == ["Left"]
    assert plan_on_slippery_ice(lake, lake.start, num_turns=1, per_turn=1) == []  # too far for one move


def test_the_best_slippery_turn_is_the_best_of_all_plans() -> None:
    def chance(lake: Lake, plan: Sequence[str]) -> float:
        num_reached = 0
        for slipped in itertools.product(*(list_slips(action) for action in plan)):
            place = lake.start
            for move in slipped:
                if not lake.holes[place] and place != lake.goal:
                    place = lake.moves[place][move]
            num_reached += place == lake.goal
        return num_reached / 3 ** len(plan)

    env = make_env("frozenlake", {"is_slippery": True, "max_actions_per_turn": 3, "max_turns": 1})
    for seed in range(8):
        env.reset(seed=seed)
        plans = [plan for length in (1, 2, 3) for plan in itertools.product(RING, repeat=length)]
        best = max(chance(env.lake, plan) for plan in plans)
        assert best > 0
        assert chance(env.lake, env.oracle()) == pytest.approx(best)


def test_a_task_for_other_ice_is_refused() -> None:
    with pytest.raises(InputError, match="slippery"):
        playing(lake_task((0, 0), (3, 3)), is_slippery=True)


@pytest.mark.parametrize(
    ("board", "start", "goal", "problem"),
    [
        (["__", "_"], (0, 0), (0, 1), "equal length"),
        (["_S", "__"], (0, 0), (1, 1), "made of"),
        (["_O", "__"], (0, 1), (1, 1), r"start \[0, 1\] must lie on the ice"),
        (["__", "__"], (0, 0), (2, 0), r"goal \[2, 0\]"),
        (["__", "__"], (0, 0), (0, 0), "start and goal"),
    ],
)
def test_a_board_that_makes_no_sense_is_refused(board, start, goal, problem) -> None:
    with pytest.raises(InputError, match=problem):
        playing(lake_task(start, goal, board))


def test_settings_that_no_board_meets_say_which() -> None:
    with pytest.raises(ConfigError, match=r"lower env\.options\.min_actions"):
        make_env("frozenlake", {"size": 2, "min_actions": 4}).reset(seed=0)


def test_the_table_of_a_task_plays_as_the_env_does() -> None:
    env = make_env("frozenlake")
    rng = random.Random(0)
    names = env.description.actions.names
    for seed in range(20):
        env.reset(seed=seed)
        table = env.table()
        plan = [rng.randrange(4) for _ in range(9)]
        state = 0
        for number in plan:
            state = table.next_states[state, number]
        over, info = False, {}
        for at in range(0, 9, 3):
            if not over:
                _, _, terminated, truncated, info = env.step([names[n] for n in plan[at : at + 3]])
                over = terminated or truncated
        assert info["success"] == table.solved[state]


def test_the_compass_says_how_far_the_goal_is() -> None:
    env = make_env("frozenlake", {"compass": True})
    task = Task("frozenlake", {"board": ["____", "____", "____", "____"], "start": [2, 1], "goal": [0, 2]})
    observation, _ = env.reset(options={"task": task})
    assert observation.text == "Goal: 2 up, 1 right\n__G_\n____\n_P__\n____"
    assert env.step(["Up"])[0].text.splitlines()[0] == "Goal: 1 up, 1 right"
    assert "Before it stands how far the goal is" in env.description.guide


def test_process_counts_moves_towards_the_goal_around_the_holes() -> None:
    env = make_env("frozenlake", {"max_actions_per_turn": 3})
    task = Task("frozenlake", {"board": ["_O__", "____", "____", "____"], "start": [0, 0], "goal": [0, 2]})
    env.reset(options={"task": task})
    *_, info = env.step(["Left", "Down", "Up"])  # a bump, one nearer, one back
    assert info["process"] == 0.0
    env.reset(options={"task": task})
    *_, info = env.step(["Down", "Right", "Right"])
    assert info["process"] == 3.0
    *_, terminated, _, info = env.step(["Up"])
    assert terminated and info["success"] and info["process"] == 1.0
    env.reset(options={"task": task})
    *_, info = env.step(["Right"])
    assert not info["success"] and info["process"] == -1.0


@given(st.lists(st.booleans(), min_size=20, max_size=20), st.integers(0, 19), st.integers(0, 19))
def test_one_distance_is_that_of_the_whole_board(holes: list[bool], start: int, goal: int) -> None:
    holes[start] = holes[goal] = False
    found = find_distance(make_neighbour_table(4, 5), holes, start, goal)
    assert found == find_distances(move_table(4, 5), holes, goal)[start]
