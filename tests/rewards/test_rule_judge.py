"""The rule judge: what is true scores 1, what is wrong is refused, and any text is read in linear time."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.properties import examples

from stepwell.core import StateForm
from stepwell.envs.frozenlake.vocabulary import VOCABULARY as FROZENLAKE
from stepwell.envs.grid import describe_relation
from stepwell.envs.navigation.vocabulary import VOCABULARY as NAVIGATION
from stepwell.envs.primitive_skill.vocabulary import VOCABULARY as PRIMITIVE_SKILL
from stepwell.envs.registry import make_env
from stepwell.envs.sokoban.vocabulary import VOCABULARY as SOKOBAN
from stepwell.rewards.judge.claims import parse_claims
from stepwell.rewards.judge.rule import RuleJudge
from stepwell.rewards.judge.verdict import THRESHOLD, Verdict

VOCABULARIES = {
    "frozenlake": FROZENLAKE,
    "sokoban": SOKOBAN,
    "navigation": NAVIGATION,
    "primitive_skill": PRIMITIVE_SKILL,
}
WORDS, GRID, DICT = StateForm.NATURAL_LANGUAGE, StateForm.SYMBOLIC, StateForm.STRUCTURED
Cell = tuple[int, int]
LAKE = {"player": [2, 1], "goal": [0, 1], "holes": [[2, 2], [3, 0]]}
"""The goal is directly above, one hole directly right, one below and left."""
FULL = "The goal is directly above me, a hole is directly to my right, and a hole is below and left of me."

cells = st.tuples(st.integers(0, 4), st.integers(0, 4))
lakes = st.lists(cells, min_size=2, max_size=6, unique=True)
rooms = st.lists(cells, min_size=3, max_size=3, unique=True)


def judged(said: str, state: dict[str, object] = LAKE, env_name: str = "frozenlake") -> Verdict:
    return RuleJudge(VOCABULARIES[env_name]).judge(WORDS, said, {DICT: json.dumps(state)})


def lake(places: list[Cell]) -> dict[str, object]:
    player, goal, *holes = places
    return {"player": list(player), "goal": list(goal), "holes": [list(hole) for hole in holes]}


def described(places: list[Cell]) -> list[str]:
    player, goal, *holes = places
    told = [f"The goal is {describe_relation(goal, player)} the player"]
    return told + [
        f"Hole {n} is {describe_relation(hole, player)} the player" for n, hole in enumerate(holes, 1)
    ]


# ---- properties --------------------------------------------------------------------------------


@given(lakes, st.randoms())
def test_a_description_made_from_a_state_scores_one_in_any_order_and_case(places, rng) -> None:
    said = described(places)
    rng.shuffle(said)
    assert judged(". ".join(said), lake(places)).score == 1.0
    assert judged("; ".join(said).upper(), lake(places)).score == 1.0
    assert judged("\n".join(f"- {one.lower()}" for one in said), lake(places)).score == 1.0


@given(lakes, cells, st.data())
def test_a_description_is_refused_in_a_state_where_a_mentioned_relation_differs(places, cell, data) -> None:
    """One thing is elsewhere: the goal or the player, or a hole that no other hole can stand for."""
    at = data.draw(st.integers(0, len(places) - 1))
    other = [*places[:at], cell, *places[at + 1 :]]
    ways = [sorted(describe_relation(hole, p[0]) for hole in p[2:]) for p in (places, other)]
    assume(
        (describe_relation(places[1], places[0]), ways[0]) != (describe_relation(other[1], other[0]), ways[1])
    )
    assert judged(". ".join(described(places)), lake(other)).score < THRESHOLD


@given(rooms, rooms)
def test_a_room_is_told_apart_from_every_other_room(places, others) -> None:
    def told(places: list[Cell]) -> tuple[str, str, str]:
        player, box, target = places
        return (
            describe_relation(box, player),
            describe_relation(target, player),
            describe_relation(target, box),
        )

    def state(places: list[Cell]) -> dict[str, object]:
        player, box, target = (list(place) for place in places)
        return {"player": player, "boxes": [box], "targets": [target]}

    a, b, c = told(places)
    said = f"The box is {a} the player. The target is {b} the player. The target is {c} the box."
    assert judged(said, state(places), "sokoban").score == 1.0
    if told(others) != told(places):
        assert judged(said, state(others), "sokoban").score < THRESHOLD


@given(st.text(max_size=400))
def test_any_text_is_read_and_scored_between_zero_and_one(text: str) -> None:
    for vocabulary in (FROZENLAKE, SOKOBAN, NAVIGATION, PRIMITIVE_SKILL):
        parse_claims(text, vocabulary)
    assert 0.0 <= judged(text).score <= 1.0


PIECES = """
the player goal hole holes 1 2 two rows above below left right of and or not no is are there it its my , . ; ?
: (2, 3) row column same directly all both push move in on at relative to 's #1 another
"""
_LOOSE = st.lists(st.sampled_from([*PIECES.split(), "\n"]), max_size=60).map(" ".join)


@given(_LOOSE)
@settings(max_examples=examples(300))
def test_any_jumble_of_its_own_words_is_read(text: str) -> None:
    verdict = judged(text)
    assert 0.0 <= verdict.score <= verdict.f1 <= 1.0
    assert verdict.num_described <= verdict.num_facts


@pytest.mark.parametrize(
    "piece",
    [
        FULL,
        "hole 1 is above ",
        "( 1 , 1 ",
        "the the ",
        "and , ",
        "1 1 ",
        "player: (1,2), ",
        " \n",
        "left and ",
    ],
)
def test_time_grows_no_faster_than_the_text(piece: str) -> None:
    def seconds(times: int) -> float:
        text = piece * times
        start = time.process_time()  # not the clock: others may be busy, too
        RuleJudge(FROZENLAKE).judge(WORDS, text, {DICT: json.dumps(LAKE)})
        return time.process_time() - start

    count = 3000 // len(piece)
    once = min(seconds(count) for _ in range(3))
    assert min(seconds(8 * count) for _ in range(2)) < 8 * 4 * once + 0.02  # quadratic: 64 times


# ---- wordings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        FULL,
        "The player is directly below the goal. Hole 1: directly right of me. Hole 2: below, left of me.",
        "hole0 is at the same row and to the right of the player, hole1 is below and on the left side of the "
        "player, target is above and at the same column as the player",
        "I'm at (2, 1), the flag is at (0, 1), the holes are at (3, 0) and (2, 2).",
        "The player is in row 3, column 2; the goal in row 1, column 2; hole 1 in row 3, column 3; hole 2 in "
        "row 4, column 1.",
        "Two rows straight above the player is the goal. Straight to the right of the player is a hole. "
        "Another hole is one row below and one column to the left of the player.",
        "Relative to the player, the goal is straight up, hole 1 straight right, and hole 2 is south-west.",
        "The goal is not below but directly above the player. There is a hole directly right of me and one "
        "more hole to the lower left of me.",
    ],
)
def test_the_same_state_in_many_wordings_scores_one(said: str) -> None:
    assert judged(said).score == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("said", "precision", "recall"),
    [
        ("The goal is above the player.", 1.0, 1 / 6),
        ("The goal is directly above the player.", 1.0, 2 / 6),
        ("The goal is two rows above the player.", 1.0, 1 / 6),
        ("The goal is three rows above the player.", 0.0, 0.0),
        ("The goal is above and left of the player.", 1 / 2, 1 / 6),
        ("The goal is above the player. The goal is below the player.", 0.0, 0.0),
        ("The player is directly below the goal and directly left of a hole.", 1.0, 4 / 6),
        ("All holes are above the player.", 0.0, 0.0),
        ("A hole is below the player and two holes are to the left of the player.", 2 / 3, 2 / 6),
    ],
)
def test_relations_are_counted_one_by_one(said: str, precision: float, recall: float) -> None:
    verdict = judged(said)
    assert (verdict.precision, verdict.recall) == (pytest.approx(precision), pytest.approx(recall))


@pytest.mark.parametrize(
    "said",
    [
        "",
        "The goal is near the player and next to a hole.",
        "The goal is in the top left corner.",
        "The goal may be directly above the player.",
        "The goal is above or below the player.",
        "Is the goal directly above the player?",
        "If the goal is directly above the player, I go up.",
        "The wall is directly above the player.",
        "I move up, then right, then down.",
        "_G__\n____\n_PO_\nO___",
        "YES. precision = 1, recall = 1. The description is correct.",
        "The goal is not below the player.",
    ],
)
def test_what_states_no_relation_earns_nothing(said: str) -> None:
    assert judged(said).score == 0.0


def test_a_denied_truth_is_wrong_and_a_denied_falsehood_is_not() -> None:
    assert judged(f"{FULL} The goal is not above the player.").score < THRESHOLD
    assert judged(f"{FULL} The goal is not left of the player. No hole is above the player.").score == 1.0
    assert judged(f"{FULL} There is no hole to the right of the player.").score < THRESHOLD


def test_saying_everything_and_saying_it_again_are_refused() -> None:
    ways = ("above", "below", "left of", "right of", "at the same place as")
    everything = " ".join(f"The {a} is {way} the player." for a in ("goal", "hole") for way in ways)
    assert judged(everything).score < 0.2
    assert judged(FULL * 2).score == 1.0
    assert judged(" ".join([FULL] * 5)).score < THRESHOLD
    assert judged(f"{FULL} The goal is below the player.").score < THRESHOLD


def test_a_thing_that_is_not_there_is_wrong() -> None:
    dry = {"player": [2, 1], "goal": [0, 1], "holes": []}
    assert judged("The goal is directly above the player.", dry).score == 1.0
    assert (
        judged("The goal is directly above the player. A hole is left of the player.", dry).score < THRESHOLD
    )


def test_numbers_are_names_in_whatever_order_the_agent_counts() -> None:
    turned = "The goal is directly above me. Hole 1 is below and left of me. Hole 2 is directly right of me."
    assert judged(turned).score == 1.0
    assert judged(turned + " Hole 1 is directly right of me.").score < THRESHOLD


# ---- forms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_name", ["frozenlake", "sokoban"])
def test_the_envs_own_words_score_one_in_every_form_and_other_states_are_told_apart(env_name: str) -> None:
    env = make_env(env_name, {})
    judge = RuleJudge(env.description.vocabulary)
    states = []
    for seed in range(12):
        env.reset(seed=seed)
        states.append(env.state())
    for form in StateForm:
        for a in states:
            assert judge.judge(form, a[form], a).score == 1.0
            others = [b for b in states if b[form] != a[form]]
            assert all(judge.judge(form, b[form], a).score < 1.0 for b in others)


def test_a_copy_of_the_board_before_a_move_predicts_nothing_after_it() -> None:
    env, judge = make_env("frozenlake", {}), RuleJudge(FROZENLAKE)
    env.reset(seed=4)
    before = env.state()
    env.step([env.oracle()[0]])
    after = env.state()
    for form in StateForm:
        assert judge.judge(form, before[form], after).score < THRESHOLD
        assert judge.judge(form, after[form], after).score == 1.0


def test_an_empty_board_or_one_of_another_shape_scores_zero() -> None:
    judge, truth = RuleJudge(FROZENLAKE), {GRID: "_G_\n_PO\n___"}
    assert judge.judge(GRID, "___\n___\n___", truth).score == 0.0
    assert judge.judge(GRID, "_G_\n_PO", truth).score == 0.0
    assert judge.judge(GRID, " _ G _\n_ P O\n_ _ _ ", truth).score == 1.0


@pytest.mark.parametrize(
    ("said", "f1", "score"),
    [
        ("{player_position: (2, 1), target_position: (0, 1), hole_positions: [(3, 0), (2, 2)]}", 1.0, 1.0),
        ('{"player": [2, 1], "goal": [0, 1], "holes": [[2, 2], [3, 0]], "size": [4, 4]}', 1.0, 1.0),
        ('{"player": [2, 1], "goal": [0, 1], "holes": [[2, 2], [3, 0]], "size": [5, 5]}', 3 / 4, 3 / 8),
        ('{"player": [2, 2], "goal": [0, 1], "holes": [[2, 2], [3, 0]]}', 2 / 3, 1 / 3),
        ('{"player": [2, 1]}', 1 / 3, 1 / 3),
        ('{"player": [2, 1], "player": [0, 0], "goal": [0, 1], "holes": [[2, 2], [3, 0]]}', 8 / 9, 4 / 9),
        ('{"player": [2, 1], "goal": [0, 1], "holes": [[2, 2], [3, 0]], "boat": [1, 1]}', 3 / 4, 3 / 8),
        ("the player is at 2, 1", 0.0, 0.0),
    ],
)
def test_a_dictionary_is_compared_field_by_field(said: str, f1: float, score: float) -> None:
    truth = {DICT: json.dumps(LAKE | {"size": [4, 4]})}
    verdict = RuleJudge(FROZENLAKE).judge(DICT, said, truth)
    assert (verdict.f1, verdict.score) == (pytest.approx(f1), pytest.approx(score))
