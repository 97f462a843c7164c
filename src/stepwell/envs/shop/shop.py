"""The shop itself: from a goal, a view and an action to the next page. An environment and a server both run
this.

    goal   seed -> ShopGoal                      what is to be bought
    enter  goal -> ShopPageView                  the first page
    step   goal, view, action -> ShopPageView    the page that an action leads to
    plan   goal, view -> ShopPlan                a shortest way to a full score from there
    state  goal, view -> texts                   where the shopper stands

Invariants
* A shop has no state: the same call gives the same answer, in any order of calls.
* An action that cannot be read, or is not on the page, changes nothing; the page says why.
* Every generated goal can be fulfilled by a search for its own words whose first page lists what fits.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from stepwell.core import ConfigError, StateForm
from stepwell.envs.shop.goal import ShopGoal, draw_goal, read_listed_goal
from stepwell.envs.shop.options import ShopOptions
from stepwell.envs.shop.pages import (
    BACK,
    BUY,
    DETAILS,
    NEXT,
    PREVIOUS,
    PageLayout,
    ShopPage,
    find_product,
    make_page,
)
from stepwell.envs.shop.plan import ShopPlan, ShopPlanner
from stepwell.envs.shop.products import Product, Store, open_generated_catalogue, open_webshop_catalogue
from stepwell.envs.shop.score import PurchaseScore
from stepwell.envs.shop.text import write_states
from stepwell.envs.shop.view import Page, ShopAction, View, quote_text, read_action, to_mapping

_MAX_DRAWS = 1000
UNREADABLE = "That is no action. Write search[words] or click[something on the page]."


class ShopPageView(NamedTuple):
    """A page as an environment needs it."""

    view: View
    text: str
    actions: tuple[str, ...]
    score: PurchaseScore | None


class Shop:
    """A shop in this process."""

    def __init__(self, store: Store, page_size: int, *, is_tiny: bool = False) -> None:
        self.store, self.page_size, self.is_tiny = store, page_size, is_tiny
        self._layout = PageLayout(page_size, () if is_tiny else DETAILS, is_tiny)
        self._planner = ShopPlanner(store, page_size)

    def __deepcopy__(self, memo: dict[int, Any]) -> Shop:
        return self

    def goal(self, seed: int) -> ShopGoal:
        """The goal of a seed: one that came with the products, or one read off a product."""
        rng = random.Random(seed)
        for _ in range(_MAX_DRAWS):
            goal = self._draw_goal(rng)
            if goal is not None:
                return goal
        raise ConfigError("no goal could be found that the shop's products fulfil; allow more products")

    def enter(self, goal: ShopGoal) -> ShopPageView:
        """The search page."""
        return _to_page_view(self.page(goal, View()))

    def step(self, goal: ShopGoal, view: View, action: str) -> ShopPageView:
        """The page that an action leads to."""
        return _to_page_view(self.page(goal, self.move(view, action)))

    def plan(self, goal: ShopGoal, view: View) -> ShopPlan:
        """A shortest way to a full score."""
        return self._planner.plan(goal, view)

    def state(self, goal: ShopGoal, view: View) -> dict[StateForm, str]:
        """The page of the shopper and the choices so far, in words and as JSON."""
        return write_states(self.page(goal, view))

    def page(self, goal: ShopGoal, view: View) -> ShopPage:
        """What a view shows."""
        return make_page(self.store, goal, view, self._layout)

    def move(self, view: View, action: str) -> View:
        """Where an action leads."""
        request = read_action(action)
        here = replace(view, note="")
        if request is None:
            return replace(here, note=UNREADABLE)
        if request.verb == "search":
            return self._move_by_search(here, request.what)
        where = _CLICKS[view.page](self, here, request)
        return where or replace(here, note=f"There is no {quote_text(request.what)} to click on this page.")

    def _draw_goal(self, rng: random.Random) -> ShopGoal | None:
        if self.store.num_goals:
            return read_listed_goal(self.store, rng.randrange(self.store.num_goals))
        product = self.store.product(rng.randint(1, self.store.num_products))
        if not product.attributes:
            return None
        goal = draw_goal(product, rng, is_tiny=self.is_tiny)
        return goal if self._planner.is_found_at_once(goal) else None

    def _move_by_search(self, here: View, words: str) -> View:
        if here.page is not Page.SEARCH:
            return replace(here, note=f"There is no search box on this page; click[{BACK}] first.")
        if not words:
            return replace(here, note="Write the words to search for between the brackets.")
        return View(Page.RESULTS, words)

    def _from_search(self, here: View, request: ShopAction) -> View | None:
        return None

    def _from_results(self, here: View, request: ShopAction) -> View | None:
        what, found = request.what.casefold(), self.store.search(here.query).numbers
        if what == BACK:
            return View()
        first = here.number * self.page_size
        if what == NEXT and first + self.page_size < len(found):
            return replace(here, number=here.number + 1)
        if what == PREVIOUS and here.number:
            return replace(here, number=here.number - 1)
        for number in found[first : first + self.page_size]:
            product = self.store.product(number)
            if product.id.casefold() == what:
                return replace(here, page=Page.ITEM, item=product.id, chosen=())
        return None

    def _from_item(self, here: View, request: ShopAction) -> View | None:
        what = request.what.casefold()
        if what == BACK:
            return View()
        if what == PREVIOUS:
            return replace(here, page=Page.RESULTS, item="", chosen=())
        if what == BUY:
            return replace(here, page=Page.BOUGHT)
        if what in self._layout.details:
            return replace(here, page=Page.DETAIL, detail=what)
        return _choose_value(here, find_product(self.store, here), what)

    def _from_detail(self, here: View, request: ShopAction) -> View | None:
        what = request.what.casefold()
        if what == BACK:
            return View()
        return replace(here, page=Page.ITEM, detail="") if what == PREVIOUS else None


_CLICKS = {
    Page.SEARCH: Shop._from_search,
    Page.RESULTS: Shop._from_results,
    Page.ITEM: Shop._from_item,
    Page.DETAIL: Shop._from_detail,
    Page.BOUGHT: Shop._from_search,
}


def _choose_value(here: View, product: Product, what: str) -> View | None:
    """The view with a value chosen; where two options have it, for the one that has none yet."""
    chosen = dict(to_mapping(here.chosen))
    offers = [
        (option.name, value)
        for option in product.options
        for value in option.values
        if value.casefold() == what
    ]
    if not offers:
        return None
    name, value = next(((n, v) for n, v in offers if n not in chosen), offers[0])
    return replace(here, chosen=tuple((chosen | {name: value}).items()))


def _to_page_view(shown: ShopPage) -> ShopPageView:
    return ShopPageView(shown.view, shown.text, shown.actions, shown.score)


def open_shop(options: ShopOptions) -> Shop:
    """The shop of these options in this process; its catalogue is built where it is not in the cache."""
    key = (options.size, options.catalogue_seed, options.products, options.webshop_files, options.results)
    if key not in _SHOPS:
        if options.webshop_files is not None:
            store = open_webshop_catalogue(Path(options.webshop_files).expanduser())
        else:
            store = open_generated_catalogue(options.size, options.catalogue_seed, options.products)
        _SHOPS[key] = Shop(store, options.results, is_tiny=options.size == "tiny")
    return _SHOPS[key]


_SHOPS: dict[tuple[Any, ...], Shop] = {}
