"""Households made from a household: the same room, another goal.

    place < light < clean, heat, cool < two      by the length of what has to be done

An easier task has a goal of an earlier family, a harder one of a later family, a sibling one of the same; the
kind of thing mostly stays. Things lie elsewhere. Held-out goals of the room are never used.
"""

from __future__ import annotations

import random
from typing import Any

from stepwell.core import Task, TaskRelation
from stepwell.envs.household.catalogue import Family
from stepwell.envs.household.generator import HouseLayout, list_trained_goals, make_goal_task
from stepwell.envs.household.goals import HouseholdGoal, write_instruction
from stepwell.envs.household.options import HouseholdOptions

RANKS: dict[Family, int] = {"place": 0, "light": 1, "clean": 2, "heat": 2, "cool": 2, "two": 3}
NUM_DRAWS = 20


def make_household_variant(
    env: str, options: HouseholdOptions, task: Task, relation: TaskRelation, rng: random.Random
) -> Task | None:
    """A variant of a generated household; None if this room has none."""
    content: dict[str, Any] = task.content
    if "goal" not in content:  # one of ALFWorld's games
        return None
    layout = HouseLayout(content["room"], tuple(content["places"]))
    parent = HouseholdGoal(**content["goal"])
    goals = [
        goal
        for family in options.families
        if _fits(RANKS[family] - RANKS[parent.family], relation)
        for goal in list_trained_goals(options, layout, family)
    ]
    same = [goal for goal in goals if goal.thing == parent.thing] or goals
    for _ in range(NUM_DRAWS if goals else 0):
        made = make_goal_task(env, options, layout, rng.choice(same if rng.random() < 0.7 else goals), rng)
        if made is not None and made.id != task.id:
            return made
    return None


def read_goal_instruction(env: str, options: HouseholdOptions, parent: Task, instruction: str) -> Task | None:
    """The task of the parent's room whose goal is worded so; where things lie follows from both."""
    content: dict[str, Any] = parent.content
    if "goal" not in content:
        return None
    layout = HouseLayout(content["room"], tuple(content["places"]))
    said = " ".join(instruction.lower().removesuffix(".").split())
    is_terse = options.catalogue.is_terse
    wordings = (0,) if is_terse else range(options.catalogue.num_wordings)
    for family in options.families:
        for goal in list_trained_goals(options, layout, family):
            if any(write_instruction(goal, wording, is_terse=is_terse) == said for wording in wordings):
                return _place_goal(env, options, layout, goal, random.Random(f"{parent.id}/{said}"))
    return None


def _place_goal(
    env: str, options: HouseholdOptions, layout: HouseLayout, goal: HouseholdGoal, rng: random.Random
) -> Task | None:
    draws = (make_goal_task(env, options, layout, goal, rng) for _ in range(NUM_DRAWS))
    return next((task for task in draws if task is not None), None)


def _fits(difference: int, relation: TaskRelation) -> bool:
    if relation is TaskRelation.SIBLING:
        return difference == 0
    return difference < 0 if relation is TaskRelation.EASIER else difference > 0
