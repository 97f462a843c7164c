"""PrimitiveSkill: primitives that do what they say, rewards of the table, tasks that can be solved."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("mujoco")

from stepwell.agents import Agent
from stepwell.config.run import AgentConfig
from stepwell.core import ConfigError, InputError, StateForm, Task
from stepwell.envs import make_env
from stepwell.envs.check import check_env
from stepwell.envs.primitive_skill.scene import HOVER, MujocoScene
from stepwell.envs.primitive_skill.skills import Skill, read_skills, write_skills
from stepwell.envs.primitive_skill.table import (
    DRAWER_CLOSED,
    NAMES,
    TableLayout,
    find_solution,
    is_in_reach,
    list_stages,
    make_layout,
    read_layout,
)

TASKS = tuple(NAMES)
NUMBER = st.integers(-999_999, 999_999)
SKILLS = st.builds(Skill, st.sampled_from(["pick", "place"]), st.tuples(NUMBER, NUMBER, NUMBER)) | st.builds(
    Skill, st.just("push"), st.tuples(*[NUMBER] * 6)
)


def cubes(**at: tuple[int, int, int]) -> MujocoScene:
    """The table of a stack with its cubes where they are wanted."""
    places = {"red cube": (0, 0, 20), "green cube": (100, 100, 20), "purple cube": (-100, -100, 20)}
    places |= {f"{name} cube": point for name, point in at.items()}
    return MujocoScene(TableLayout("stack", places, NAMES["stack"]))


def test_random_play_puts_one_thing_where_another_one_is() -> None:
    env, rng = make_env("primitive_skill", {"task": "stack"}), random.Random(0)
    env.reset(seed=0)
    points = {tuple(at) for at in json.loads(env.state()[StateForm.STRUCTURED]).values()}
    for _ in range(20):
        pick, place = read_skills(env.random_action(rng)) or []
        assert pick.name == "pick" and pick.numbers in points
        assert place.name == "place" and place.numbers[:2] in {at[:2] for at in points - {pick.numbers}}
    one = make_env("primitive_skill", {"max_actions_per_turn": 1})
    one.reset(seed=0)
    assert one.random_action(rng).startswith("pick(")
    one.step(one.oracle()[:1])
    assert one.random_action(rng).startswith("place(")


@given(st.lists(SKILLS, min_size=1, max_size=4))
def test_primitives_read_as_they_were_written(skills: list[Skill]) -> None:
    assert read_skills(write_skills(skills)) == skills
    assert read_skills(f" {write_skills(skills).replace(',', ' , ').replace('|', ' | ')} ") == skills


@given(st.text(max_size=40) | st.text("pickplaceush(),|-0123456789 .", max_size=40))
def test_whatever_is_read_was_meant(text: str) -> None:
    skills = read_skills(text)
    if skills is not None:
        plain = re.sub(r"\s|\.0+(?=\s*[,)])", "", text)
        assert plain.count("(") == len(skills)
        assert [len(skill.numbers) for skill in skills] == [6 if s.name == "push" else 3 for s in skills]


@pytest.mark.parametrize(
    "text",
    ["", "pick", "pick(1,2)", "pick(1,2,3.5)", "pick(1,2,3)|", "grab(1,2,3)", "pick(1,2,1e3)", "push(1,2,3)"],
)
def test_what_is_no_primitive_is_not_read(text: str) -> None:
    assert read_skills(text) is None


@given(st.sampled_from(TASKS), st.integers(0, 2**32))
def test_layouts_are_pure_within_reach_and_nothing_touches(task: str, seed: int) -> None:
    layout = make_layout(task, random.Random(seed))
    assert layout == make_layout(task, random.Random(seed))
    assert all(map(is_in_reach, layout.places.values())) and sorted(layout.order) == sorted(NAMES[task])
    things = [at for name, at in layout.places.items() if "cube" in name or name == "apple"]
    for number, one in enumerate(things):
        for other in things[:number]:
            assert abs(one[0] - other[0]) >= 60 or abs(one[1] - other[1]) >= 60
    assert not any(list_stages(task, layout.places, None))
    assert 3 <= len(find_solution(task, layout.places, None)) <= 6
    content = {
        "task": task,
        "places": {n: list(at) for n, at in layout.places.items()},
        "order": layout.order,
    }
    assert read_layout(json.loads(json.dumps(content))) == layout


def test_a_grasped_cube_goes_with_the_hand_and_is_lowered_where_it_is_placed() -> None:
    scene = cubes()
    assert not scene.pick_thing((60, 0, 20)) and scene.held is None  # nothing is there
    assert scene.pick_thing((10, -8, 20)) and scene.held == "red cube"
    assert scene.list_places()["red cube"] == (0, 0, round(1000 * HOVER))
    assert not scene.pick_thing((100, 100, 20)) and scene.held == "red cube"  # the hand is full
    assert scene.place_thing((-40, 120, 250)) and scene.held is None
    assert np.abs(np.subtract(scene.list_places()["red cube"], (-40, 120, 20))).max() <= 2
    assert not scene.place_thing((0, 0, 20))  # the hand is empty


def test_a_cube_placed_on_a_cube_stays_there_and_falls_when_that_is_taken_away() -> None:
    scene = cubes()
    scene.pick_thing((0, 0, 20))
    scene.place_thing((100, 100, 150))
    assert np.abs(np.subtract(scene.list_places()["red cube"], (100, 100, 60))).max() <= 3
    assert list_stages("stack", scene.list_places(), scene.held) == [True, False]
    scene.pick_thing((100, 100, 20))
    assert scene.held == "green cube" and scene.list_places()["red cube"][2] == 20


def test_a_cube_placed_at_an_edge_falls_beside() -> None:
    scene = cubes()
    scene.pick_thing((0, 0, 20))
    scene.place_thing((100, 135, 150))
    assert scene.list_places()["red cube"][2] < 50
    assert not list_stages("stack", scene.list_places(), scene.held)[0]


def test_a_push_moves_what_is_in_its_way_and_nothing_else() -> None:
    scene = cubes()
    before = scene.list_places()
    assert scene.push_thing((-60, 0, 20), (40, 0, 20))
    after = scene.list_places()
    assert after["red cube"][0] > 55 and abs(after["red cube"][1]) < 10
    assert (after["green cube"], after["purple cube"]) == (before["green cube"], before["purple cube"])


def test_the_drawer_closes_by_a_push_and_takes_the_apple_along() -> None:
    env = make_env("primitive_skill", {"task": "drawer"})
    env.reset(seed=5)
    turn, push = env.oracle()
    rewards = [env.step((turn,))[1]]
    assert env.state()[StateForm.NATURAL_LANGUAGE].endswith("The hand is empty.")
    _, reward, terminated, _, info = env.step((push,))
    assert terminated and info["success"]
    assert [*rewards, reward] == pytest.approx([2 - 0.1 + 4 - 0.1, 10.0])
    places = json.loads(env.state()[StateForm.STRUCTURED])
    assert abs(places["drawer"][0] - DRAWER_CLOSED) <= 5
    assert abs(places["apple"][0] - places["drawer"][0]) <= 45


@pytest.mark.parametrize("task", TASKS)
def test_the_oracle_solves_every_table(task: str) -> None:
    env = make_env("primitive_skill", {"task": task})
    for seed in range(8):
        env.reset(seed=seed)
        for _ in range(env.description.max_turns):
            *_, terminated, _, info = env.step(env.oracle()[:1])
            if terminated:
                break
        assert info["success"], seed


def test_rewards_are_those_of_the_table() -> None:
    env = make_env("primitive_skill", {"task": "place"})
    env.reset(seed=0)
    first, second = env.oracle()
    pick, place = first.split("|")
    assert env.step((pick,))[1] == pytest.approx(-0.1)
    _, reward, *_ = env.step((place,))
    assert reward == pytest.approx(2 - 0.1)  # the first subgoal
    again = env.oracle()
    assert again == [second]
    _, reward, terminated, _, info = env.step((second,))
    assert reward == pytest.approx(-0.1 + 10) and terminated and info["success"]
    assert info["num_actions"] == 2


def test_a_subgoal_is_paid_once() -> None:
    env = make_env("primitive_skill", {"task": "align", "max_turns": 5})
    env.reset(seed=0)
    assert env.step((env.oracle()[0],))[1] == pytest.approx(2 - 0.2)
    places = json.loads(env.state()[StateForm.STRUCTURED])
    x, y, z = places["red_cube"]
    away = f"pick({x},{y},{z})|place({x},150,100)"
    assert env.step((away,))[1] == pytest.approx(-0.2)
    assert env.step((env.oracle()[0],))[1] == pytest.approx(-0.2)  # back, and nothing for it


@pytest.mark.parametrize(
    ("text", "reward", "num_actions", "words"),
    [
        ("I pick the cube", -0.1, 0, "no list of actions"),
        ("pick(0,0,20)|place(0,0,20)|pick(0,0,20)", -0.1, 0, "too long"),
        ("pick(0,0,299)", -0.1, 1, "Without effect: pick(0,0,299)."),
        ("pick(9999,0,20)|place(0,0,0)", -0.2, 2, "Without effect: pick(9999,0,20), place(0,0,0)."),
    ],
)
def test_useless_answers_cost_and_say_so(text: str, reward: float, num_actions: int, words: str) -> None:
    env = make_env("primitive_skill", {"task": "stack"})
    env.reset(seed=2)
    before = env.state()
    observation, got, terminated, _, info = env.step((text,))
    assert got == pytest.approx(reward) and not terminated and info["num_actions"] == num_actions
    assert words in observation.text and env.state() == before


def test_with_an_image_positions_have_no_names() -> None:
    env = make_env("primitive_skill", {"task": "stack", "observation": "image", "image_size": 64})
    seen, _ = env.reset(seed=3)
    listed = re.search(r"Object positions: \[(.*)\]", seen.text)
    assert listed is not None and "cube" not in listed[1]
    points = [list(map(int, point.split(","))) for point in re.findall(r"\(([^)]*)\)", listed[1])]
    assert sorted(points) == sorted(json.loads(env.state()[StateForm.STRUCTURED]).values())
    assert seen.images[0].shape == (64, 64, 3)
    named, _ = make_env("primitive_skill", {"task": "stack"}).reset(seed=3)
    assert all(name in named.text for name in NAMES["stack"]) and named.images == ()


def test_agents_write_the_structured_state_unless_told_otherwise() -> None:
    description = make_env("primitive_skill", {"task": "stack"}).description
    agent = Agent(description, AgentConfig(strategy="grounding"))
    assert agent.form is StateForm.STRUCTURED
    assert '<observation>{"red_cube": [62, -55, 20]' in agent.system_prompt()
    assert Agent(description, AgentConfig(state_form="natural_language")).form is StateForm.NATURAL_LANGUAGE


def test_the_order_of_positions_tells_nothing() -> None:
    first = {make_layout("stack", random.Random(seed)).order[0] for seed in range(30)}
    assert first == set(NAMES["stack"])


def test_the_image_shows_cubes_on_the_side_where_they_are() -> None:
    def red(y: int) -> float:
        scene = cubes(red=(60, y, 20))
        image = scene.render_image(64).astype(int)
        is_red = (image[..., 0] > 120) & (image[..., 1] < 70) & (image[..., 2] < 70)
        assert is_red.sum() > 4
        return float(np.nonzero(is_red)[1].mean())

    assert red(-120) < 25 < 39 < red(120)  # negative y is to the left
    assert abs(red(0) - 31.5) < 3


def test_a_copy_goes_its_own_way() -> None:
    env = make_env("primitive_skill", {"task": "align"})
    env.reset(seed=1)
    ahead: Any = copy.deepcopy(env)
    before = env.state()
    ahead.step(ahead.oracle()[:1])
    assert env.state() == before != ahead.state()
    env.step(env.oracle()[:1])
    assert env.state() == ahead.state()


def test_tasks_that_make_no_sense_are_refused() -> None:
    env = make_env("primitive_skill")
    good = env.make_task(env.options, 0).content
    for wrong in (
        {},
        {**good, "task": "juggle"},
        {**good, "places": {}},
        {**good, "order": ["apple"]},
        {**good, "places": {name: [0, 0, 10**6] for name in good["places"]}},
        {**good, "places": {name: [0.5, 0, 0] for name in good["places"]}},
    ):
        with pytest.raises(InputError):
            env.reset(options={"task": Task("primitive_skill", wrong)})
    with pytest.raises(ConfigError, match="task"):
        make_env("primitive_skill", {"task": "juggle"})


@pytest.mark.slow
def test_it_keeps_the_contract() -> None:
    report = check_env("primitive_skill", {"observation": "both", "image_size": 32}, num_tasks=16)
    assert report.ok, str(report)
