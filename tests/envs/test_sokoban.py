"""Sokoban: push rules and rewards on hand-made rooms, rooms as asked for, shortest solutions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from stepwell.core import ConfigError, InputError, Split, StateForm, Task
from stepwell.envs import draw_tasks, make_env
from stepwell.envs.baselines import measure_random_play
from stepwell.envs.sokoban.env import Sokoban
from stepwell.envs.sokoban.generator import find_solution_lengths
from stepwell.envs.sokoban.room import Situation, SokobanRoom, list_cells, read_room
from stepwell.envs.sokoban.solver import Solver, find_dead_cells


def playing(*rows: str, **options: object) -> Sokoban:
    env = make_env("sokoban", {"max_turns": 10, **options})
    env.reset(options={"task": Task("sokoban", {"room": list(rows)})})
    assert isinstance(env, Sokoban)
    return env


def after(env: Sokoban, *actions: str) -> tuple[list[str], float, bool, dict]:
    observation, reward, terminated, truncated, info = env.step(actions)
    assert not truncated
    return observation.text.split("\n"), reward, terminated, info


def test_walking_and_pushing() -> None:
    env = playing("######", "#PX_O#", "######")
    rows, reward, terminated, info = after(env, "Right")
    assert rows == ["######", "#_PXO#", "######"]
    assert (reward, terminated, info) == (-0.1, False, {"success": False, "num_actions": 1})


def test_the_solving_push_gives_eleven_and_ends_the_turn() -> None:
    env = playing("######", "#PX_O#", "######")
    rows, reward, terminated, info = after(env, "Right", "Right", "Left")
    assert rows == ["######", "#__P*#", "######"]
    assert reward == pytest.approx(-0.1 + 11.0)
    assert terminated and info == {"success": True, "num_actions": 2}


def test_walls_and_a_second_box_stop_a_push() -> None:
    env = playing("#######", "#PXXOO#", "#######")
    rows, reward, _, info = after(env, "Right", "Left", "Up")
    assert rows == ["#######", "#PXXOO#", "#######"]
    assert reward == pytest.approx(-0.3) and info["num_actions"] == 3
    env = playing("#####", "#OPX#", "#####")
    assert after(env, "Right")[0] == ["#####", "#OPX#", "#####"]


def test_a_room_without_walls_around_it_is_closed_by_its_edge() -> None:
    env = playing("PXO", "___")
    assert after(env, "Up", "Left")[0] == ["PXO", "___"]


def test_a_box_pushed_onto_a_target_gives_one_and_pushed_off_takes_it_back() -> None:
    room = ["########", "#PXO__O#", "#__X___#", "########"]
    env = playing(*room)
    rows, reward, terminated, _ = after(env, "Right")
    assert rows[1] == "#_P*__O#" and reward == pytest.approx(0.9) and not terminated
    rows, reward, _, _ = after(env, "Right")
    assert rows[1] == "#__SX_O#" and reward == pytest.approx(-1.1)


def test_a_box_pushed_from_target_to_target_gains_nothing() -> None:
    env = playing("#######", "#P*O__#", "#__X__#", "#######")
    assert after(env, "Right")[1] == pytest.approx(-0.1)


def test_the_player_shows_on_a_target() -> None:
    env = playing("#####", "#PO_#", "#_X_#", "#___#", "#####")
    assert after(env, "Right")[0][1] == "#_S_#"


def test_max_steps_ends_the_episode_as_a_failure() -> None:
    env = playing("######", "#PX_O#", "######", max_steps=2, min_actions=1)
    _, _, terminated, info = after(env, "Left", "Left", "Left")
    assert terminated and info == {"success": False, "num_actions": 2}


def test_a_solution_with_the_last_allowed_step_counts() -> None:
    env = playing("######", "#PX_O#", "######", max_steps=2, min_actions=1)
    assert after(env, "Right", "Right")[3]["success"]


def test_a_box_in_a_dead_corner_leaves_the_oracle_without_words_and_the_episode_open() -> None:
    env = playing("#####", "#_XP#", "#_O_#", "#___#", "#####")
    rows, _, terminated, _ = after(env, "Left")
    assert rows[1] == "#XP_#" and not terminated
    assert env.oracle() == []


def test_the_state_is_told_in_three_forms() -> None:
    state = playing("#####", "#O__#", "#X__#", "#_P_#", "#####").state()
    assert state[StateForm.SYMBOLIC] == "#####\n#O__#\n#X__#\n#_P_#\n#####"
    assert state[StateForm.NATURAL_LANGUAGE] == (
        "The box is above and left of the player. The target is above and left of the player. "
        "The target is directly above the box."
    )
    assert json.loads(state[StateForm.STRUCTURED]) == {
        "player": [3, 2],
        "boxes": [[2, 1]],
        "targets": [[1, 1]],
        "size": [5, 5],
    }


def test_several_boxes_are_numbered_in_reading_order() -> None:
    told = playing("######", "#OX_P#", "#_XO_#", "######").state()[StateForm.NATURAL_LANGUAGE]
    assert told.startswith("Box 1 is directly left of the player. Box 2 is below and left of the player.")
    assert told.endswith("Target 1 is above and left of box 2. Target 2 is directly right of box 2.")


@pytest.mark.parametrize("max_per_turn", [1, 2, 3])
def test_the_example_is_a_true_turn(max_per_turn: int) -> None:
    description = make_env("sokoban", {"max_actions_per_turn": max_per_turn, "max_turns": 9}).description
    example = description.examples[StateForm.SYMBOLIC]
    env = playing(*example.observation.split("\n"), max_actions_per_turn=max_per_turn)
    for form, told in description.examples.items():
        assert told.observation == env.state()[form]
    env.step(example.answer.split(description.actions.separator))
    for form, told in description.examples.items():
        assert told.prediction == env.state()[form]


def test_the_guide_tells_of_max_steps_only_where_it_can_matter() -> None:
    assert "actions." not in make_env("sokoban").description.guide.splitlines()[-1]
    given = {"max_steps": 6, "min_actions": 3}
    assert make_env("sokoban", given).description.guide.endswith("The game ends after 6 actions.")


room_options = st.fixed_dictionaries(
    {
        "num_rows": st.integers(5, 7),
        "num_columns": st.integers(5, 7),
        "num_boxes": st.integers(1, 2),
        "min_actions": st.integers(1, 6),
        "max_turns": st.integers(3, 4),
    }
)


@settings(max_examples=examples(30), deadline=None)
@given(room_options, st.integers(0, 2**32 - 1))
def test_every_room_has_a_shortest_solution_as_long_as_asked(given: dict, seed: int) -> None:
    env = make_env("sokoban", given)
    env.reset(seed=seed)
    room, first = env.room, env.situation
    way = env.oracle()
    assert given["min_actions"] <= len(way) <= 3 * given["max_turns"]
    assert len(way) == find_solution_lengths(room, len(way))[first]  # backwards from the end: the same length
    assert len(list_cells(first.boxes)) == given["num_boxes"] == len(list_cells(room.targets))
    assert not first.boxes & room.targets
    while True:
        _, _, terminated, truncated, info = env.step(env.oracle()[:3])
        if terminated or truncated:
            break
    assert info["success"]


def brute_force(room: SokobanRoom, first: Situation) -> int | None:
    """Fewest actions by plain breadth first over rows of symbols, without any pruning."""
    seen, frontier, num_actions = {first}, {first}, 0
    while frontier:
        if any(situation.boxes == room.targets for situation in frontier):
            return num_actions
        frontier = {
            slow_move(room, situation, down, right)
            for situation in frontier
            for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1))
        } - seen
        seen |= frontier
        num_actions += 1
    return None


def slow_move(room: SokobanRoom, situation: Situation, down: int, right: int) -> Situation:
    """One move from the rules alone, over coordinates."""

    def free(cell: tuple[int, int]) -> bool:
        inside = 0 <= cell[0] < room.num_rows and 0 <= cell[1] < room.num_columns
        return inside and not room.walls >> (cell[0] * room.num_columns + cell[1]) & 1

    boxes = {divmod(place, room.num_columns) for place in list_cells(situation.boxes)}
    row, column = divmod(situation.player, room.num_columns)
    ahead, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
    if not free(ahead) or (ahead in boxes and (not free(beyond) or beyond in boxes)):
        return situation
    if ahead in boxes:
        boxes = boxes - {ahead} | {beyond}
    mask = sum(1 << (r * room.num_columns + c) for r, c in boxes)
    return Situation(ahead[0] * room.num_columns + ahead[1], mask)


@st.composite
def small_rooms(draw: st.DrawFn) -> tuple[SokobanRoom, Situation]:
    """Any small room, solvable or not."""
    rows, columns = draw(st.integers(2, 4)), draw(st.integers(3, 4))
    cells = draw(st.permutations(range(rows * columns)))
    num_boxes, num_walls = draw(st.integers(1, 2)), draw(st.integers(0, 3))
    walls = sum(1 << cell for cell in cells[:num_walls])
    free = cells[num_walls:]
    boxes = sum(1 << cell for cell in free[:num_boxes])
    targets = sum(1 << cell for cell in draw(st.permutations(free))[:num_boxes])
    player = next(cell for cell in free if not boxes >> cell & 1)
    return SokobanRoom.from_sets(rows, columns, walls, targets), Situation(player, boxes)


@settings(max_examples=examples(80), deadline=None)
@given(small_rooms())
def test_solver_generator_and_brute_force_agree(drawn: tuple[SokobanRoom, Situation]) -> None:
    room, first = drawn
    fewest = brute_force(room, first)
    way = Solver(room).solve(first)
    assert (None if way is None else len(way)) == fewest
    if fewest is not None:
        assert way is not None
        situation = first
        for action in way:
            situation = room.move(*situation, action)
        assert situation.boxes == room.targets
    reachable = find_solution_lengths(room, 60 if fewest is None else fewest)
    if first.boxes != room.targets:
        assert reachable.get(first) == fewest


def test_dead_cells_are_those_no_box_returns_from() -> None:
    room, _ = read_room(["######", "#___P#", "#_XO_#", "#____#", "######"])
    # the target lies in the middle row: a box at an outer wall never leaves that wall
    dead = {room.to_cell(cell) for cell in list_cells(find_dead_cells(room))}
    assert dead == {(row, column) for row in (1, 2, 3) for column in (1, 2, 3, 4)} - {(2, 2), (2, 3)}


def test_the_oracle_solves_500_rooms_and_random_play_hardly_any() -> None:
    tasks = draw_tasks("sokoban", {}, Split.TRAIN, 500, seed=0)
    env = make_env("sokoban")
    for task in tasks:
        env.reset(options={"task": task})
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(env.oracle()[:3])
            over = terminated or truncated
        assert info["success"], task
    assert measure_random_play("sokoban", {}, tasks, seed=0) < 0.05


def test_splits_share_no_room() -> None:
    train = {task.id for task in draw_tasks("sokoban", {}, Split.TRAIN, 200, seed=0)}
    held_out = {task.id for task in draw_tasks("sokoban", {}, Split.HELD_OUT, 50, seed=1)}
    assert len(train) == 200 and len(held_out) == 50 and train.isdisjoint(held_out)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (["##", "#"], "equal length"),
        (["PXOQ"], "made of the symbols"),
        (["_XO_"], "one player, got 0"),
        (["PXO", "S__"], "one player, got 2"),
        (["PX_"], "as many boxes as targets, got 1 and 0"),
        (["P__"], "as many boxes"),
    ],
)
def test_a_room_that_makes_no_sense_is_refused(rows: list[str], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_room(rows)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"min_actions": 10}, r"min_actions \(10\) exceeds the longest solution allowed \(9"),
        ({"max_actions": 4}, r"exceeds the longest solution allowed \(4"),
        ({"num_rows": 3, "num_columns": 4}, r"num_boxes \(1\) do not fit"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(options: dict, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_env("sokoban", options)


def test_settings_that_no_room_meets_say_which() -> None:
    given = {"num_rows": 3, "num_columns": 5, "wall_rate": 0.0, "min_actions": 5}
    with pytest.raises(ConfigError, match="no 3 x 5 room with 1 boxes needs between 5 and 9"):
        make_env("sokoban", given).reset(seed=0)


def test_max_actions_bounds_the_solution() -> None:
    given = {"min_actions": 3, "max_actions": 4}
    env = make_env("sokoban", given)
    found = set()
    for task in draw_tasks("sokoban", given, Split.TRAIN, 60, seed=0):
        env.reset(options={"task": task})
        found.add(len(env.oracle()))
    assert found == {3, 4}
