"""The oracle's plans: from any page to a full score, with as few pages as possible.

    search ─► results ─► (next or previous page)* ─► a matching product ─► a click per value ─► buy

No plan from the search page is shorter than 3 + the number of values: one search, one product, one purchase,
and a click for each value, since a product's page opens with nothing chosen. A plan of that length is
therefore proven to be shortest, whatever the other searches. Queries consist of the goal's own words, so a
reader of the instruction could have written them. A product's title is the last resort, for goals that no
other query finds. From other pages there are few options (forward, back to the results, back to the search),
and the shortest is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from stepwell.envs.shop.goal import ShopGoal, split_words
from stepwell.envs.shop.pages import BACK, BUY, NEXT, PREVIOUS, find_product
from stepwell.envs.shop.products import Product, Store
from stepwell.envs.shop.score import score_purchase
from stepwell.envs.shop.view import Page, View, to_mapping


class ShopPlan(NamedTuple):
    """Actions to a full score ([] if impossible), and whether the plan is proven to be shortest."""

    actions: list[str]
    is_shortest: bool


class ShopPlanner:
    """Plans for the goals of one shop."""

    def __init__(self, store: Store, page_size: int) -> None:
        self._store, self._page_size = store, page_size
        self._query = lru_cache(maxsize=4096)(self._find_best_query)
        self._fits = lru_cache(maxsize=100_000)(self._is_fitting)

    def is_found_at_once(self, goal: ShopGoal) -> bool:
        """Whether a search for the goal's own words lists a match on its first page."""
        return any(self._find_page(goal, query) == 0 for query in list_own_queries(goal))

    def plan(self, goal: ShopGoal, view: View) -> ShopPlan:
        """A shortest plan from a view."""
        query, place = self._query(goal)
        if query is None:
            return ShopPlan([], False)
        anew = self._plan_from_results(goal, query, 0)
        assert anew is not None
        ways = [[f"search[{query}]", *anew]] if view.page is Page.SEARCH else []
        if view.page in (Page.RESULTS, Page.ITEM, Page.DETAIL):
            ways.append([f"click[{BACK}]", f"search[{query}]", *anew])
            on = self._plan_from_results(goal, view.query, view.number)
            before = {Page.RESULTS: 0, Page.ITEM: 1, Page.DETAIL: 2}[view.page]
            if on is not None:
                ways.append([f"click[{PREVIOUS}]"] * before + on)
            if before:
                ways += [
                    [f"click[{PREVIOUS}]"] * (before - 1) + way for way in self._plan_from_item(goal, view)
                ]
        return ShopPlan(min(ways, key=len, default=[]), place == 0)

    def _plan_from_results(self, goal: ShopGoal, query: str, number: int) -> list[str] | None:
        """From a page of results: to the nearest page with a match, and on."""
        found = self._store.search(query).numbers
        best: list[str] | None = None
        for place, product in enumerate(map(self._store.product, found)):
            if not self._fits(goal, product):
                continue
            away = place // self._page_size - number
            moves = [f"click[{NEXT if away > 0 else PREVIOUS}]"] * abs(away)
            if best is None or len(moves) < len(best):
                best = moves
                rest = [f"click[{product.id}]", *(f"click[{v}]" for v in goal.values), f"click[{BUY}]"]
        return None if best is None else best + rest

    def _plan_from_item(self, goal: ShopGoal, view: View) -> Iterator[list[str]]:
        """From a product's page: choose missing values, undo those that make it too expensive, buy."""
        product = find_product(self._store, view)
        chosen = dict(to_mapping(view.chosen))
        wanted = _pick_values(goal, product)
        if not self._fits(goal, product):
            return
        clicks = [value for name, value in wanted.items() if chosen.get(name) != value]
        chosen |= wanted
        others = [o for o in product.options if o.name in chosen and o.name not in wanted]
        for option in sorted(others, key=lambda o: o.extra(chosen[o.name]), reverse=True):
            if product.compute_price(chosen) <= goal.limit:
                break
            chosen[option.name] = option.values[0]
            clicks.append(option.values[0])
        if score_purchase(goal, product, chosen).is_success:
            yield [*(f"click[{value}]" for value in clicks), f"click[{BUY}]"]

    def _find_best_query(self, goal: ShopGoal) -> tuple[str | None, int]:
        """The query that needs the fewest pages of results, and the page (from 0) with the match."""
        best: tuple[str | None, int] = (None, 1 << 30)
        for query in self._list_queries(goal):
            place = self._find_page(goal, query)
            if place is not None and place < best[1]:
                best = (query, place)
            if best[1] == 0:
                break
        return best

    def _list_queries(self, goal: ShopGoal) -> Iterator[str]:
        yield from list_own_queries(goal)
        for product in self._store.of_kind(goal.kind):
            if self._fits(goal, product):
                yield " ".join(split_words(product.title))

    def _find_page(self, goal: ShopGoal, query: str) -> int | None:
        """The page of results with a match; None if there is none."""
        numbers = self._store.search(query).numbers
        fitting = (i for i, number in enumerate(numbers) if self._fits(goal, self._store.product(number)))
        place = next(fitting, None)
        return None if place is None else place // self._page_size

    def _is_fitting(self, goal: ShopGoal, product: Product) -> bool:
        """Whether a product of that kind can be bought for a full score."""
        if product.kind != goal.kind:
            return False  # do not demonstrate products that match only by their title
        picked = _pick_values(goal, product)
        return len(picked) == len(goal.options) and score_purchase(goal, product, picked).is_success


def list_own_queries(goal: ShopGoal) -> list[str]:
    """Searches for the goal's own words, most natural ones first."""
    named = list(goal.attributes)
    tries = [
        [*named, goal.kind],
        [*named, goal.kind, *goal.values],
        *([*named, goal.kind, value] for value in goal.values),
        *([attribute, goal.kind, *goal.values] for attribute in named),
        *([attribute, goal.kind] for attribute in named),
        [goal.kind],
    ]
    return list(dict.fromkeys(" ".join(part for part in query if part) for query in tries))


def _pick_values(goal: ShopGoal, product: Product) -> dict[str, Any]:
    """The wanted values by option, as the product offers them; incomplete if it lacks one."""
    picked: dict[str, str] = {}
    for wanted in goal.values:
        for option in product.options:
            value = next((v for v in option.values if split_words(v) == split_words(wanted)), None)
            if value is not None and option.name not in picked:
                picked[option.name] = value
                break
    return picked
