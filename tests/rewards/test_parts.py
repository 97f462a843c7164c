"""The parts of a step's reward have the values their names promise."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.agents import STRATEGIES, Reply
from stepwell.config.run import RewardConfig
from stepwell.core import ConfigError, StateForm
from stepwell.rewards import compute_step_parts, list_part_names, select_parts

GRID = StateForm.SYMBOLIC
WEIGHTS = RewardConfig(format=0.5, grounding=0.4, world_modeling=0.2)
STATE, NEXT = {GRID: "PG"}, {GRID: "_*"}


def parts(**changes: Any) -> dict[str, float]:
    given: dict[str, Any] = {
        "turn_reward": -0.1,
        "reply": Reply(("Right",), True, "PG", "go", "_*"),
        "is_last": False,
        "success": False,
        "state": STATE,
        "next_state": NEXT,
        "form": GRID,
        "weights": WEIGHTS,
        "strategy": "grounding_world_modeling",
    }
    return compute_step_parts(**(given | changes))


def test_every_part_of_a_perfect_step() -> None:
    assert parts(is_last=True, success=True) == {
        "task": -0.1, "format": 0.5, "outcome": 1.0, "grounding": 0.4, "world_modeling": 0.2,
    }  # fmt: skip


def test_the_outcome_is_one_on_the_last_step_of_a_success_only() -> None:
    assert [parts(is_last=last, success=won)["outcome"] for last in (0, 1) for won in (0, 1)] == [0, 0, 0, 1]


def test_a_reply_out_of_form_earns_no_format_part_but_its_states_still_count() -> None:
    loose = parts(reply=Reply(("Right",), False, "PG", None, "__", "text before <think>: 'so'"))
    assert loose["format"] == 0.0
    assert loose["grounding"] == pytest.approx(0.4)
    assert loose["world_modeling"] == pytest.approx(0.2 * 0.5)


def test_the_description_is_compared_with_the_state_before_and_the_prediction_with_the_one_after() -> None:
    swapped = parts(reply=Reply(("Right",), True, "_*", "go", "PG"))
    assert (swapped["grounding"], swapped["world_modeling"]) == (0.0, 0.0)


def test_a_missing_description_scores_zero() -> None:
    silent = parts(reply=Reply(problem="there is no <answer>...</answer>"))
    assert (silent["grounding"], silent["world_modeling"], silent["format"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_parts_exist_where_the_strategy_writes_and_the_env_knows(strategy: str) -> None:
    assert tuple(parts(strategy=strategy)) == list_part_names(strategy, STATE, GRID)
    blind = parts(strategy=strategy, state={}, next_state={})
    assert tuple(blind) == list_part_names(strategy, (), GRID) == ("task", "format", "outcome")


def test_a_recipe_takes_its_parts_and_optional_ones_where_offered() -> None:
    given = {"task": 1.0, "format": 0.5, "outcome": 0.0}
    assert select_parts(given, ("outcome", "task")) == {"outcome": 0.0, "task": 1.0}
    assert select_parts(given, ("task",), ("process", "format")) == {"task": 1.0, "format": 0.5}
    assert select_parts(given, ()) == {}


def test_a_part_that_is_not_there_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"needs grounding, but .* only task, format, outcome: choose"):
        select_parts(parts(strategy="no_think"), ("task", "grounding"))
