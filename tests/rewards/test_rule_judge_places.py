"""The rule judge on coordinates and bearings: told in many ways, and by whoever tries a trick."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import StateForm
from stepwell.envs.navigation.vocabulary import VOCABULARY as NAVIGATION
from stepwell.envs.primitive_skill.vocabulary import VOCABULARY as PRIMITIVE_SKILL
from stepwell.envs.registry import make_env
from stepwell.rewards.judge.rule import RuleJudge
from stepwell.rewards.judge.verdict import THRESHOLD

WORDS, DICT = StateForm.NATURAL_LANGUAGE, StateForm.STRUCTURED

# ---- environments handed over as data ------------------------------------------------------------------


TABLE = {DICT: "{left_target_position: (80, -100, 0), red_cube_position: (83, -102, 20)}"}
ROOM = {
    DICT: json.dumps(
        {
            "target_obj_type": "Toaster", "target_distance": 2.5, "target_direction": "ahead",
            "visible": [{"type": "CounterTop", "direction_to_player": "left", "distance_to_player": 1.0}],
        }
    )
}  # fmt: skip


def test_coordinates_are_right_within_the_tolerance() -> None:
    judge = RuleJudge(PRIMITIVE_SKILL)
    near = "The red cube is at (90, -95, 25) and the left target is at (80, -100, 0)."
    assert judge.judge(WORDS, near, TABLE).score == 1.0
    assert judge.judge(WORDS, near.replace("-95", "95"), TABLE).score < THRESHOLD
    assert judge.judge(DICT, "{'red_cube': (85, -100, 20), 'left_target': [78, -101, 3]}", TABLE).score == 1.0
    assert (
        judge.judge(DICT, "{red_cube: (80, -100, 0), left_target: (180, -100, 0)}", TABLE).score < THRESHOLD
    )


def test_bearings_are_seen_from_the_agent() -> None:
    judge = RuleJudge(NAVIGATION)
    assert judge.judge(WORDS, "The toaster is ahead of me. The counter top is to my left.", ROOM).score == 1.0
    assert judge.judge(WORDS, "The toaster is ahead and the countertop is on the left.", ROOM).score == 1.0
    assert (
        judge.judge(WORDS, "The toaster is on my right. The counter top is to my left.", ROOM).score
        < THRESHOLD
    )
    assert judge.judge(WORDS, "The toaster is to my left and right, ahead and behind.", ROOM).score == 0.0
    assert judge.judge(WORDS, "I am near the toaster.", ROOM).score == 0.0


def test_bearings_may_be_given_as_json() -> None:
    judge = RuleJudge(NAVIGATION)
    assert judge.judge(DICT, ROOM[DICT], ROOM).score == 1.0
    assert judge.judge(DICT, ROOM[DICT].replace("ahead", "behind"), ROOM).score < THRESHOLD
    assert judge.judge(DICT, ROOM[DICT].replace("2.5", "1.5"), ROOM).score < THRESHOLD
    assert judge.judge(DICT, "[" * 100_000, ROOM).score == 0.0
    assert judge.judge(WORDS, "The target is ahead. The counter top is left of the robot.", ROOM).score == 1.0


HALL = {
    DICT: '{"target_obj_type": "grandfather clock", "target_distance_to_player": 1.8, '
    '"target_direction_to_player": "right", "visible_objects": [{"type": "garbage can", '
    '"direction_to_player": "ahead", "distance_to_player": 0.7}, {"type": "sofa", '
    '"direction_to_player": "left", "distance_to_player": 2.0}]}'
}
DRAWER = {DICT: '{"apple": [61, -139, 25], "drawer": [-70, 0, 30], "handle": [-8, 0, 30]}'}
CUBES = {DICT: '{"red_cube": [29, 0, 20], "green_cube": [95, -63, 20]}'}


@pytest.mark.parametrize(
    "text",
    [
        "Ahead: garbage can. Right: clock. Left: couch.",
        "Directly ahead there's a garbage can, and the clock stands on my right at 1.8 m. The sofa is left.",
        "I can see it all: the garbage can is before me, the clock is to my right, the sofa is left.",
        "The garbage can is ahead, less than a metre away, and slightly to the left. The clock is on my "
        "right, the sofa is on my left.",
    ],
)
def test_rooms_are_told_in_many_ways(text: str) -> None:
    assert RuleJudge(NAVIGATION).judge(WORDS, text, HALL).score == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "The garbage can is ahead. The sofa is left.",  # not a word about the target
        "The clock is right. The clock is not right. The garbage can is ahead. The sofa is left.",
        "The clock is ahead and right. The garbage can is ahead and left. The sofa is ahead and left.",
        "The clock is right, 4 m away. The garbage can is ahead. The sofa is left.",
        "The clock is right. The garbage can is ahead. The sofa is left. " * 4,
        "If the clock is right, the garbage can is ahead or the sofa is left.",
    ],
)
def test_tricks_about_rooms_are_refused(text: str) -> None:
    assert RuleJudge(NAVIGATION).judge(WORDS, text, HALL).score < THRESHOLD


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("At (61,-139,25) is the apple, at (-70,0,30) the drawer, at (-8,0,30) its handle.", DRAWER),
        (
            "Apple: x=61, y=-139, z=25. Drawer: x -70, y 0, z 30. The handle's position is [-8, 0, 30].",
            DRAWER,
        ),
        (
            "The red one went from (29,-166,20) to (29,0,20); the green one has not moved from (95,-63,20).",
            CUBES,
        ),
        ("Red: (29, 0, 20). Green: (95, \u221263, 20).", CUBES),
        ("{'red_cube_position': (29, 0, 20), 'green_cube_position': (95, -63, 20)}", CUBES),
    ],
)
def test_points_are_told_in_many_ways(text: str, truth: dict[StateForm, str]) -> None:
    assert RuleJudge(PRIMITIVE_SKILL).judge(WORDS, text, truth).score == 1.0


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("The apple is in the drawer at (-70,0,30). The handle is at (-8,0,30).", DRAWER),
        ("The apple, the drawer and the handle are at (61,-139,25), (-70,0,30), (-8,0,30).", DRAWER),
        ("If the red cube is at (29,0,20), the green cube is at (95,-63,20).", CUBES),
        ("The red cube is not at (29,0,20) and the green cube is not at (95,-63,20).", CUBES),
        ("The red cube is at (29,0,20) or (95,-63,20), the green cube at (95,-63,20).", CUBES),
        ("Is the red cube at (29,0,20)? Is the green cube at (95,-63,20)?", CUBES),
        (
            "The red cube is at (29,0,20). The green cube is at (95,-63,20). The blue cube is at (0,0,20).",
            CUBES,
        ),
        ("The red cube is at (29,0,20). The green cube is at (95,-63,20). " * 3, CUBES),
        ("One cube is at (29,0,20) and the other is at (95,-63,20).", CUBES),
    ],
)
def test_tricks_about_points_are_refused(text: str, truth: dict[StateForm, str]) -> None:
    assert RuleJudge(PRIMITIVE_SKILL).judge(WORDS, text, truth).score < THRESHOLD


@given(st.text(alphabet="redgn cub(0,1).-'?\nor", max_size=80))
def test_any_text_about_points_is_judged(text: str) -> None:
    assert 0.0 <= RuleJudge(PRIMITIVE_SKILL).judge(WORDS, text, CUBES).score <= 1.0


@pytest.mark.parametrize("env_name", ["navigation", "primitive_skill"])
def test_envs_with_bearings_and_coordinates_are_judged_in_their_own_words(env_name: str) -> None:
    pytest.importorskip("mujoco")
    env = make_env(env_name, {})
    judge = RuleJudge(env.description.vocabulary)
    states = []
    for seed in range(3):
        env.reset(seed=seed)
        states.append(env.state())
    env.close()
    for form in (WORDS, DICT):
        assert [judge.judge(form, state[form], state).score for state in states] == [1.0, 1.0, 1.0]
        assert judge.judge(form, states[0][form], states[1]).score < THRESHOLD


def test_an_env_nobody_described_is_matched_form_by_form() -> None:
    judge = RuleJudge(None)
    truth = {WORDS: "The lamp is left of the door."}
    assert judge.judge(WORDS, "The door is right of the lamp.", truth).score == 1.0
    assert judge.judge(WORDS, "The lamp is right of the door.", truth).score == 0.0
