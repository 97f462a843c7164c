"""Navigation: moves and collisions to the centimetre, exact rewards, instructions, words, shortest ways."""

from __future__ import annotations

import json
import random
import re
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.navigation.rooms import CONTENT, playing, task_of
from tests.properties import examples

from stepwell.core import ConfigError, InputError, Split, StateForm
from stepwell.envs import draw_tasks, make_env
from stepwell.envs.baselines import measure_random_play
from stepwell.envs.check import check_env
from stepwell.envs.navigation import scene
from stepwell.envs.navigation.env import Navigation
from stepwell.envs.navigation.room import AGENT_RADIUS, NAMES, NavigationRoom, Pose
from stepwell.envs.navigation.things import BY_NAME, KINDS


@pytest.mark.slow
def test_the_env_keeps_the_contract() -> None:
    report = check_env("navigation", {"image_size": 32}, num_tasks=10)
    assert report.ok, str(report)


def test_each_action_does_what_its_name_says() -> None:
    expected = {
        "moveahead": (10, 9, 0, 0),
        "moveback": (10, 7, 0, 0),
        "moveright": (11, 8, 0, 0),
        "moveleft": (9, 8, 0, 0),
        "rotateright": (10, 8, 1, 0),
        "rotateleft": (10, 8, 3, 0),
        "lookup": (10, 8, 0, 30),
        "lookdown": (10, 8, 0, -30),
    }
    assert set(expected) == set(NAMES)
    for action, pose in expected.items():
        env = playing()
        env.act(action)
        assert env.pose == pose


def test_moves_follow_the_heading() -> None:
    env = playing(task_of(start=[10, 8, 1]))  # east
    env.act("moveahead")
    assert env.pose == (11, 8, 1, 0)
    env.act("moveleft")
    assert env.pose == (11, 9, 1, 0)


def test_the_neck_ends_at_30_up_and_60_down() -> None:
    env = playing()
    for action, pitch in (("lookup", 30), ("lookup", 30), *[("lookdown", p) for p in (0, -30, -60, -60)]):
        env.act(action)
        assert env.pose.pitch == pitch
    assert "tilts no further" in env.observe().text


def test_what_is_in_the_way_blocks_and_costs() -> None:
    env = playing(task_of(start=[13, 8, 1]))  # x 3.25; the plant's pot begins at 3.75
    observation, reward, terminated, _, info = env.step(["moveahead"] * 4)
    assert env.pose.column == 14  # 3.5 leaves 0.25 m to it, 3.75 would not
    assert reward == pytest.approx(-0.4) and info["num_actions"] == 4
    assert not terminated and observation.text.startswith("Something was in the way.")


def test_walls_block() -> None:
    env = playing(task_of(start=[1, 8, 3]))  # x 0.25, facing west
    env.step(["moveahead"])
    assert env.pose.column == 1


def test_arriving_within_the_threshold_ends_with_ten_points() -> None:
    env = playing()
    way = env.oracle()
    assert way == ["moveahead"] * 6  # from y 2.0 to 3.5, a metre from the sofa's middle
    _, reward, terminated, _, info = env.step(way[:5])
    assert (reward, terminated, info["success"]) == (pytest.approx(-0.5), False, False)
    observation, reward, terminated, _, info = env.step(["moveahead", "moveback"])
    assert (reward, terminated, info["success"], info["num_actions"]) == (10.0, True, True, 1)
    assert observation.text.startswith("You have arrived.")


def test_the_turn_limit_is_a_failure() -> None:
    env = playing()
    turns = [env.step(["rotateleft"] * 5) for _ in range(4)]
    assert [turn[2] for turn in turns] == [False, False, False, True]
    assert not turns[-1][4]["success"]


def test_facing_the_target_is_asked_for_only_where_set() -> None:
    away = task_of(start=[10, 8, 2])  # facing south
    assert playing(away).oracle() == ["moveback"] * 6
    env = playing(away, must_face=True)
    way = env.oracle()
    assert len(way) == 8 and sum(action.startswith("rotate") for action in way) == 2
    for at in range(0, 8, 5):
        info = env.step(way[at : at + 5])[4]
    assert info["success"]


def test_the_oracle_goes_around_what_stands_between() -> None:
    content = [*CONTENT["things"][:1], {"kind": "bathtub", "x": 2.5, "y": 2.75, "turn": 0, "colour": "red"}]
    env = playing(task_of(things=content, start=[10, 6, 0]))
    way = env.oracle()
    assert len(way) == breadth_first(env) > 8
    assert {"moveleft", "moveright"} & set(way)


def breadth_first(env: Navigation) -> int:
    """Fewest actions, over whole poses, written without the environment's own search."""
    seen, queue = {env.pose}, deque([(env.pose, 0)])
    while queue:
        pose, length = queue.popleft()
        if env.room.measure_distance(pose, env.target) <= env.options.success_threshold:
            return length
        for action in NAMES:
            after = env.room.move(pose, action)
            if after not in seen:
                seen.add(after)
                queue.append((after, length + 1))
    return -1


def test_targets_are_in_view_from_the_start_where_that_is_asked_for() -> None:
    def seen(**options: object) -> list[bool]:
        env = make_env("navigation", {"min_side": 3.0, "max_side": 4.0, "step_length": 0.5, **options})
        found = []
        for seed in range(12):
            env.reset(seed=seed)
            found.append("It is in view." in env.state()[StateForm.NATURAL_LANGUAGE])
        return found

    assert all(seen(target_in_view=True)) and not all(seen())


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["base", "common"]), st.booleans())
def test_every_task_can_be_solved_in_time_and_not_sooner_than_asked(seed: int, how: str, face: bool) -> None:
    env = make_env("navigation", {"instruction": how, "must_face": face})
    env.reset(seed=seed)
    way = env.oracle()
    assert env.options.min_actions <= len(way) <= 20
    if not face:
        assert len(way) == breadth_first(env)
    for at in range(0, len(way), 5):
        _, _, terminated, _, info = env.step(way[at : at + 5])
    assert terminated and info["success"]


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_nobody_walks_through_furniture(seed: int) -> None:
    env = make_env("navigation")
    env.reset(seed=seed)
    rng = random.Random(seed)
    for _ in range(60):
        env.pose = env.room.move(env.pose, rng.choice(NAMES))
        x, y = env.pose.column * 0.25, env.pose.row * 0.25
        assert min(x, y, env.room.width - x, env.room.depth - y) >= AGENT_RADIUS
        assert all(thing.measure_gap(x, y) >= AGENT_RADIUS for thing in env.room.things)


def test_the_oracle_solves_twenty_tasks_and_random_play_few() -> None:
    tasks = draw_tasks("navigation", {}, Split.HELD_OUT, 20, seed=1)
    env = make_env("navigation")
    for task in tasks:
        env.reset(options={"task": task})
        terminated = False
        while not terminated:
            _, _, terminated, _, info = env.step(env.oracle()[:5])
        assert info["success"]
    assert measure_random_play("navigation", {}, tasks, seed=0) <= 0.2


def test_base_names_the_target_and_common_does_not() -> None:
    for how in ("base", "common"):
        for seed in range(40):
            task = Navigation.make_task(Navigation.Options(instruction=how), seed)
            named = [kind.name for kind in KINDS if re.search(rf"\b{kind.name}\b", task.instruction)]
            assert named == ([task.content["target"]] if how == "base" else [])
            assert task.tags == (how,)


def test_no_use_names_a_kind_or_serves_two() -> None:
    uses = [use for kind in KINDS for use in kind.uses]
    assert len(set(uses)) == len(uses) >= 2 * len(KINDS)
    for kind in KINDS:
        assert not any(re.search(rf"\b{kind.name}\b", use) for use in uses)


def test_state_in_words_and_json() -> None:
    env = playing()
    assert env.state()[StateForm.NATURAL_LANGUAGE] == (
        "The target is the sofa. The sofa is ahead of the robot, 2.50 m away. It is in view."
    )
    assert json.loads(env.state()[StateForm.STRUCTURED]) == {
        "target_obj_type": "sofa",
        "target_distance_to_player": 2.5,
        "target_direction_to_player": "ahead",
        "visible_objects": [{"type": "sofa", "direction_to_player": "ahead", "distance_to_player": 2.5}],
        "player": {"position": [2.5, 2.0], "heading": "north", "pitch": 0},
    }
    env.act("rotateright")
    assert env.state()[StateForm.NATURAL_LANGUAGE] == (
        "The target is the sofa. The sofa is to the left of the robot, 2.50 m away. It is not in view. "
        "The plant is ahead of the robot, 1.50 m away."
    )
    env.act("rotateright")
    assert "The sofa is behind the robot" in env.state()[StateForm.NATURAL_LANGUAGE]


def test_the_text_view_tells_what_is_in_view_and_no_more() -> None:
    env = playing()
    assert env.observe().text == "Instruction: Go to the sofa.\nThe sofa is ahead of the robot, 2.50 m away."
    env.act("rotateleft")
    assert env.observe().text.splitlines() == [
        "The last action was executed.",
        "Instruction: Go to the sofa.",
        "Nothing but walls and floor is in view.",
    ]
    shown = playing(observation="image", image_size=32).observe()
    assert shown.text == "Instruction: Go to the sofa." and shown.images[0].shape == (32, 32, 3)


@pytest.mark.parametrize("per_turn", [1, 2, 5])
def test_examples_of_the_guide_are_true(per_turn: int) -> None:
    description = make_env("navigation", {"max_actions_per_turn": per_turn, "max_turns": 20}).description
    told = description.examples[StateForm.STRUCTURED]
    before, after = json.loads(told.observation), json.loads(told.prediction)
    moves = told.answer.split(description.actions.separator)
    assert len(moves) == min(3, per_turn)
    assert before["target_direction_to_player"] == after["target_direction_to_player"] == "ahead"
    moved = before["target_distance_to_player"] - after["target_distance_to_player"]
    assert moved == pytest.approx(0.25 * moves.count("moveahead"), abs=0.03)
    assert set(description.examples) == {StateForm.NATURAL_LANGUAGE, StateForm.STRUCTURED}


def test_the_guide_says_only_what_holds() -> None:
    plain = make_env("navigation").description.guide
    assert "picture" not in plain and "does not name" not in plain and "0.25 m" in plain
    other = make_env("navigation", {"observation": "image", "instruction": "common", "must_face": True})
    assert all(word in other.description.guide for word in ("picture", "does not name", "in view"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"target": "boat"}, "no whole room"),
        ({"start": [10, 18, 0]}, "must be a free place"),
        ({"start": [10, 8, 7]}, "heading"),
        ({"things": CONTENT["things"][:1] * 2}, "two things of one kind"),
        ({"things": [{"kind": "boat"}]}, "no whole room"),
        ({"size": ["wide", 5]}, "no whole room"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused(changes: dict, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        playing(task_of(**changes))


def test_rooms_too_small_for_what_is_asked_say_so() -> None:
    with pytest.raises(ConfigError, match="allow larger rooms"):
        make_env("navigation", {"min_side": 3, "max_side": 3, "num_things": 12}).reset(seed=0)
    with pytest.raises(ConfigError, match="min_actions"):
        make_env("navigation", {"min_actions": 30})


def test_parts_stay_within_their_footprint() -> None:
    for kind in KINDS:
        for part in kind.parts:
            for axis in (0, 1):
                assert abs(part.middle[axis]) + part.half[axis] <= kind.half[axis] + 0.035, kind.name
            assert part.middle[2] - part.half[2] > -1e-9
    assert len(BY_NAME) == len(KINDS) >= 16


def test_steps_without_an_image_draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(*args: object) -> None:
        raise AssertionError("an image was drawn")

    monkeypatch.setattr(scene, "render_view", drawn)
    env = playing(max_turns=1000)
    for action in ("rotateleft", "moveahead", "moveback", "lookup") * 10:
        env.act(action)
        env.observe()
    with pytest.raises(AssertionError, match="was drawn"):
        env.render()


def test_the_table_of_a_task_plays_as_the_env_does() -> None:
    env = playing(task_of(start=[10, 9, 0]), max_turns=2)
    table = env.table()
    rng = random.Random(0)
    for plan in ([0] * 6, *([rng.randrange(8) for _ in range(10)] for _ in range(20))):
        env.reset(options={"task": env.task})
        state, success = 0, False
        for number in plan:
            state = table.next_states[state, number]
            success = success or env.act(NAMES[number]).success
        assert bool(table.solved[state]) == success


def test_places_are_worked_out_from_the_footprints() -> None:
    room = NavigationRoom.furnish(3.0, 3.0, (), (0, 0), 0.25)
    free = [(c, r) for r, row in enumerate(room.floor) for c, ok in enumerate(row) if ok]
    assert (min(free), max(free), len(free)) == ((1, 1), (11, 11), 121)
    assert room.move(Pose(1, 1, 2), "moveahead") == Pose(1, 1, 2)
