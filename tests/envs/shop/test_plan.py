"""Plans: as short as a search of all ways finds, for goals that their own words find."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from stepwell.envs.shop.goal import ShopGoal
from stepwell.envs.shop.options import ShopOptions
from stepwell.envs.shop.pages import SEARCH
from stepwell.envs.shop.shop import Shop, open_shop
from stepwell.envs.shop.view import Page, View

from .conftest import WANTED


def follow(shop: Shop, goal: ShopGoal, view: View, actions: list[str]) -> float:
    for action in actions:
        assert view.page is not Page.BOUGHT
        seen = shop.step(goal, view, action)
        assert not seen.view.note, (action, seen.text)
        view = seen.view
    return shop.page(goal, view).score.total  # type: ignore[union-attr]


def fewest(shop: Shop, goal: ShopGoal, start: View, queries: list[str]) -> int:
    """The least number of actions to a full score, by trying all of them, searches among `queries`."""
    seen, layer = {start}, [start]
    for count in itertools.count(1):
        following = []
        for view in layer:
            actions = shop.page(goal, view).actions
            searches = [f"search[{query}]" for query in queries] if SEARCH in actions else []
            for action in [*searches, *(a for a in actions if a != SEARCH)]:
                there = shop.move(view, action)
                if there in seen:
                    continue
                seen.add(there)
                if there.page is not Page.BOUGHT:
                    following.append(there)
                elif shop.page(goal, there).score.is_success:  # type: ignore[union-attr]
                    return count
        layer = following


@pytest.fixture(scope="module")
def pocket() -> Shop:
    return open_shop(ShopOptions(size="tiny", num_products=40))


def own_words(goal: ShopGoal) -> list[str]:
    words = [goal.kind, *goal.attributes, *goal.values]
    return [" ".join(some) for n in range(1, len(words) + 1) for some in itertools.combinations(words, n)]


def test_plans_are_as_short_as_any_way_from_wherever_the_shopper_stands(pocket: Shop) -> None:
    rng = random.Random(0)
    lengths = Counter[int]()
    for seed in range(12):
        goal, view = pocket.goal(seed), View()
        for _ in range(rng.randint(0, 5)):
            page = pocket.page(goal, view)
            action = rng.choice([a for a in page.actions if a != "click[buy now]"])
            if action == SEARCH:
                action = f"search[{rng.choice([goal.kind, *goal.attributes, *goal.values])}]"
            view = pocket.move(view, action)
        plan = pocket.plan(goal, view)
        assert plan.is_shortest
        assert len(plan.actions) == fewest(pocket, goal, view, own_words(goal)), (goal, view, plan)
        assert follow(pocket, goal, view, plan.actions) == 1.0
        lengths[len(plan.actions)] += 1
    assert len(lengths) >= 3


def test_from_the_search_page_a_plan_is_three_actions_and_one_per_value(tiny: Shop) -> None:
    for seed in range(100):
        goal = tiny.goal(seed)
        plan = tiny.plan(goal, View())
        assert plan.is_shortest and len(plan.actions) == 3 + len(goal.options)
        assert follow(tiny, goal, View(), plan.actions) == 1.0


def test_searches_of_a_plan_are_made_of_the_goals_own_words(tiny: Shop) -> None:
    for seed in range(50):
        goal = tiny.goal(seed)
        query = tiny.plan(goal, View()).actions[0].removeprefix("search[").removesuffix("]")
        assert set(query.split()) <= {goal.kind, *goal.attributes, *goal.values}


def test_a_goal_on_a_later_page_is_reached_but_not_called_shortest(small: Shop) -> None:
    # a page of one result: whatever is searched for, boots that fit come second
    narrow = Shop(small.store, page_size=1)
    goal = replace(WANTED, attributes=("waterproof",), limit=10_000, options=(("pack", "2 pack"),))
    plan = narrow.plan(goal, View())
    assert follow(narrow, goal, View(), plan.actions) == 1.0
    assert plan.is_shortest == (len(plan.actions) == 4)


def test_a_value_that_made_it_too_dear_is_taken_back(small: Shop) -> None:
    goal = replace(WANTED, attributes=("waterproof",), options=(("size", "S"),), limit=9000)
    dear = View(Page.ITEM, "slow hiking boots", 0, "A2", chosen=(("pack", "2 pack"),))
    assert small.plan(goal, dear).actions == ["click[S]", "click[1 pack]", "click[buy now]"]
    assert follow(small, goal, dear, small.plan(goal, dear).actions) == 1.0


def test_what_nobody_sells_has_no_plan(small: Shop) -> None:
    for goal in (
        replace(WANTED, limit=100),
        replace(WANTED, attributes=("edible",)),
        replace(WANTED, kind="moon"),
    ):
        assert small.plan(goal, View()) == ([], False)


def test_after_a_purchase_there_is_nothing_to_do(small: Shop) -> None:
    assert small.plan(WANTED, View(Page.BOUGHT, "x", 0, "A1")).actions == []


def test_goals_are_those_of_their_seed_and_worded_by_what_they_are(tiny: Shop) -> None:
    goals = [tiny.goal(seed) for seed in range(300)]
    assert goals == [tiny.goal(seed) for seed in range(300)]
    wishes = Counter((g.kind, g.attributes, g.options, g.limit) for g in goals)
    assert len(wishes) == len(set(goals)) == len({g.instruction for g in goals}) > 200


def test_goals_name_kind_attributes_values_and_price() -> None:
    shop = open_shop(ShopOptions(num_products=2000))
    counts = Counter[int]()
    for seed in range(100):
        goal = shop.goal(seed)
        for part in (goal.kind, *goal.attributes, *goal.values, f"${goal.limit // 100}"):
            assert part in goal.instruction
        assert goal.limit % 100 == 0 and 1 <= len(goal.attributes) <= 3
        counts[len(goal.options)] += 1
    assert set(counts) == {0, 1, 2, 3}
