"""Pages as plain data: the contents of a view, and its possible actions.

A page is built once and written twice, as text for agents and as HTML for people. The text contains every
possible action literally, so it is also the list of actions.

    Task: I need soft cup, color: red, price up to $12.
    Results 1-10 of 19 for "soft cup"
    click[a71] soft cup $9
    …
    click[next >] click[back to search]

The tiny shop omits what follows from the agent's own actions (the search that led to the results).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stepwell.core import InputError
from stepwell.envs.shop.goal import ShopGoal
from stepwell.envs.shop.products import Product, Store
from stepwell.envs.shop.products.product import format_dollars
from stepwell.envs.shop.score import PurchaseScore, score_purchase
from stepwell.envs.shop.view import Page, View, to_mapping

BACK, NEXT, PREVIOUS, BUY = "back to search", "next >", "< prev", "buy now"
DESCRIPTION, FEATURES, ATTRIBUTES = "description", "features", "attributes"
DETAILS = (DESCRIPTION, FEATURES, ATTRIBUTES)
SEARCH = "search[words]"


@dataclass(frozen=True, slots=True)
class PageLayout:
    """The number of results per page, the detail pages of a product, and whether pages omit what follows from
    the agent's own actions."""

    page_size: int
    details: tuple[str, ...] = DETAILS
    is_short: bool = False


@dataclass(frozen=True, slots=True)
class OptionChoice:
    """One option on a product's page."""

    name: str
    values: tuple[str, ...]
    chosen: str
    extras: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShopPage:
    """A page: heading, lines of text, products to click (with title and price), choices, buttons."""

    view: View
    instruction: str
    heading: str
    lines: tuple[str, ...] = ()
    products: tuple[tuple[str, str, str], ...] = ()
    choices: tuple[OptionChoice, ...] = ()
    buttons: tuple[str, ...] = ()
    has_search: bool = False
    score: PurchaseScore | None = None
    is_short: bool = False

    @property
    def actions(self) -> tuple[str, ...]:
        """All possible actions, in the order of the page; `search[words]` stands for any search."""
        values = [value for choice in self.choices for value in choice.values]
        clicks = [*(number for number, _, _ in self.products), *values, *self.buttons]
        return ((SEARCH,) if self.has_search else ()) + tuple(f"click[{what}]" for what in clicks)

    @property
    def text(self) -> str:
        """The page as text for an agent."""
        about = [] if self.is_short and self.view.page in (Page.SEARCH, Page.RESULTS) else [self.heading]
        lines = [self.instruction if self.is_short else f"Task: {self.instruction}", *about, *self.lines]
        lines += [f"click[{number}] {title} {price}" for number, title, price in self.products]
        before = (
            "Pick " if self.is_short else ""
        )  # so that a name is one token in the tiny models' vocabulary
        lines += [before + _write_choice(choice) for choice in self.choices]
        lines.append(" ".join(f"click[{button}]" for button in self.buttons) or (SEARCH * self.has_search))
        return "\n".join(line for line in [*lines, self.view.note] if line)


def _write_choice(choice: OptionChoice) -> str:
    extras = choice.extras or (0,) * len(choice.values)
    values = [
        f"click[{value}]" + (f" (+{format_dollars(extra)})" if extra else "")
        for value, extra in zip(choice.values, extras, strict=True)
    ]
    return f"{choice.name}: {' '.join(values)}" + (f" = {choice.chosen}" if choice.chosen else "")


def make_page(store: Store, goal: ShopGoal, view: View, layout: PageLayout) -> ShopPage:
    """The page of a view; an `InputError` if the view refers to something that does not exist."""
    return replace(_make_page(store, goal, view, layout), is_short=layout.is_short)


def _make_page(store: Store, goal: ShopGoal, view: View, layout: PageLayout) -> ShopPage:
    if view.page is Page.SEARCH:
        return ShopPage(view, goal.instruction, "Search the shop.", has_search=True)
    if view.page is Page.RESULTS:
        return _make_results_page(store, goal, view, layout.page_size)
    product, chosen = find_product(store, view), to_mapping(view.chosen)
    price = f"Price: {format_dollars(product.compute_price(chosen))}"
    if view.page is Page.BOUGHT:
        score = score_purchase(goal, product, chosen)
        bought = ", ".join(f"{name}: {value}" for name, value in view.chosen)
        receipt = (product.title, bought, price, f"Score: {score.total:.2f}")
        return ShopPage(view, goal.instruction, "You have bought this.", receipt, score=score)
    if view.page is Page.DETAIL:
        lines = (product.title, *_list_details(product, view.detail))
        return ShopPage(view, goal.instruction, view.detail.capitalize(), lines, buttons=(PREVIOUS, BACK))
    choices = tuple(
        OptionChoice(option.name, option.values, chosen.get(option.name, ""), option.extras)
        for option in product.options
    )
    buttons = (BUY, *layout.details, PREVIOUS, BACK)
    if layout.is_short:
        heading, lines = f"{product.title} {format_dollars(product.compute_price(chosen))}", ()
    else:
        heading, lines = product.title, (price,)
    return ShopPage(view, goal.instruction, heading, lines, choices=choices, buttons=buttons)


def _make_results_page(store: Store, goal: ShopGoal, view: View, page_size: int) -> ShopPage:
    found = store.search(view.query).numbers
    first = view.number * page_size
    listed = [store.product(number) for number in found[first : first + page_size]]
    if first and not listed:
        raise InputError(f"there is no page {view.number + 1} of results for {view.query!r}")
    rows = tuple((product.id, product.title, format_dollars(product.price)) for product in listed)
    if not rows:
        heading = f'Nothing was found for "{view.query}".'
    else:
        heading = f'Results {first + 1}-{first + len(rows)} of {len(found)} for "{view.query}"'
    more = (NEXT,) if first + page_size < len(found) else ()
    less = (PREVIOUS,) if view.number else ()
    return ShopPage(view, goal.instruction, heading, products=rows, buttons=(*more, *less, BACK))


def find_product(store: Store, view: View) -> Product:
    """The product of a view with available values; otherwise an `InputError`."""
    number = store.number_of(view.item)
    if number is None:
        raise InputError(f"there is no product {view.item!r}")
    product = store.product(number)
    on_sale = {(option.name, value) for option in product.options for value in option.values}
    if not on_sale.issuperset(view.chosen):
        raise InputError(f"product {view.item} is not sold with {dict(view.chosen)}")
    return product


def _list_details(product: Product, name: str) -> tuple[str, ...]:
    if name == DESCRIPTION:
        return (product.description or "There is no description.",)
    if name == FEATURES:
        return tuple(f"- {feature}" for feature in product.features) or ("No features are listed.",)
    if name == ATTRIBUTES:
        kind = f"Kind: {product.kind}" if product.kind else ""
        return (kind, ", ".join(product.attributes) or "No attributes are listed.")
    raise InputError(f"a product's page has {', '.join(DETAILS)}, not {name!r}")
