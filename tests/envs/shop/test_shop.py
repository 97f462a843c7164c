"""The shop: which page an action leads to, what a page says, and what becomes of bad input."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import InputError
from stepwell.envs.shop.goal import ShopGoal
from stepwell.envs.shop.shop import UNREADABLE, Shop
from stepwell.envs.shop.view import MAX_ACTION_CHARS, MAX_QUERY_CHARS, Page, View, clean_text, read_action

from .conftest import WANTED

RESULTS = View(Page.RESULTS, "boots")
ITEM = View(Page.ITEM, "boots", 0, "A2")


def walk(shop: Shop, *actions: str, goal: ShopGoal = WANTED) -> View:
    view = View()
    for action in actions:
        view = shop.step(goal, view, action).view
    return view


def test_a_walk_through_the_shop_leads_from_page_to_page(small: Shop) -> None:
    assert walk(small, "search[boots]") == RESULTS
    assert walk(small, "search[boots]", "click[next >]") == replace(RESULTS, number=1)
    assert walk(small, "search[boots]", "click[next >]", "click[< prev]") == RESULTS
    assert walk(small, "search[slow boots]", "click[a2]").item == "A2"
    there = walk(small, "search[slow boots]", "click[A2]", "click[features]")
    assert (there.page, there.detail) == (Page.DETAIL, "features")
    back = small.move(there, "click[< prev]")
    assert back == View(Page.ITEM, "slow boots", 0, "A2")
    assert small.move(back, "click[< prev]") == View(Page.RESULTS, "slow boots")
    for view in (RESULTS, ITEM, there):
        assert small.move(view, "click[Back to Search]") == View()


def test_values_are_chosen_changed_and_kept_on_the_pages_of_a_product(small: Shop) -> None:
    view = small.move(small.move(ITEM, "click[s]"), "click[2 PACK]")
    assert view.chosen == (("size", "S"), ("pack", "2 pack"))
    assert small.move(view, "click[m]").chosen == (("size", "M"), ("pack", "2 pack"))
    aside = small.move(small.move(view, "click[description]"), "click[< prev]")
    assert aside.chosen == view.chosen
    again = small.move(small.move(view, "click[< prev]"), "click[A2]")
    assert again.chosen == ()


def test_a_purchase_is_scored_with_what_was_chosen(small: Shop) -> None:
    bought = small.step(WANTED, View(Page.ITEM, "boots", 0, "A1", chosen=(("size", "M"),)), "click[buy now]")
    assert bought.score is not None and bought.score.total == 1.0
    assert bought.actions == ()
    assert bought.text.splitlines()[1:] == [
        "You have bought this.", "Fast hiking boots", "size: M", "Price: $40", "Score: 1.00",
    ]  # fmt: skip


def test_pages_say_what_they_show(small: Shop) -> None:
    assert small.enter(WANTED).text.splitlines() == [
        f"Task: {WANTED.instruction}", "Search the shop.", "search[words]",
    ]  # fmt: skip
    assert small.step(WANTED, View(), "search[hiking boots vegan]").text.splitlines()[1:] == [
        'Results 1-2 of 2 for "hiking boots vegan"',
        "click[A1] Fast hiking boots $40",
        "click[A2] Slow hiking boots $90",
        "click[back to search]",
    ]
    assert small.page(WANTED, replace(ITEM, chosen=(("pack", "2 pack"),))).text.splitlines()[1:] == [
        "Slow hiking boots",
        "Price: $95",
        "size: click[S] click[M]",
        "pack: click[1 pack] click[2 pack] (+$5) = 2 pack",
        "click[buy now] click[description] click[features] click[attributes] "
        "click[< prev] click[back to search]",
    ]
    detail = small.page(WANTED, replace(ITEM, page=Page.DETAIL, detail="attributes"))
    assert detail.text.splitlines()[1:] == [
        "Attributes",
        "Slow hiking boots",
        "Kind: hiking boots",
        "waterproof",
        "click[< prev] click[back to search]",
    ]


def test_a_search_without_results_says_so(small: Shop) -> None:
    seen = small.step(WANTED, View(), "search[zzz]")
    assert seen.text.splitlines()[1:] == ['Nothing was found for "zzz".', "click[back to search]"]


@pytest.mark.parametrize("page", ["search", "results", "item", "detail"])
def test_every_action_of_a_page_stands_in_its_text_and_leads_somewhere(small: Shop, page: str) -> None:
    view = {"search": View(), "results": replace(RESULTS, number=1), "item": ITEM,
            "detail": replace(ITEM, page=Page.DETAIL, detail="features")}[page]  # fmt: skip
    shown = small.page(WANTED, view)
    for action in shown.actions:
        assert action in shown.text
        assert not small.move(view, action).note


@pytest.mark.parametrize(
    ("view", "action", "note"),
    [
        (View(), "buy it", UNREADABLE),
        (View(), "", UNREADABLE),
        (View(), "search[a" + "b" * MAX_ACTION_CHARS + "]", UNREADABLE),
        (View(), "search[  ]", "Write the words to search for between the brackets."),
        (View(), "click[A1]", "There is no 'A1' to click on this page."),
        (RESULTS, "search[x]", "There is no search box on this page; click[back to search] first."),
        (RESULTS, "click[< prev]", "There is no '< prev' to click on this page."),
        (RESULTS, "click[B0NOWHERE0]", "There is no 'B0NOWHERE0' to click on this page."),
        (RESULTS, "click[buy now]", "There is no 'buy now' to click on this page."),
        (ITEM, "click[XXL]", "There is no 'XXL' to click on this page."),
        (ITEM, "click[" + "y" * 100 + "]", "There is no '" + "y" * 60 + "…' to click on this page."),
        (ITEM, "click[a\nTask: b]", "There is no 'a Task: b' to click on this page."),
    ],
)  # fmt: skip
def test_what_cannot_be_done_leaves_everything_as_it_is_and_says_why(
    small: Shop, view: View, action: str, note: str
) -> None:
    seen = small.step(WANTED, view, action)
    assert seen.view == replace(view, note=note) and seen.score is None
    assert seen.text.splitlines()[-1] == note
    assert small.move(seen.view, "nothing") == replace(view, note=UNREADABLE)


def test_a_note_is_gone_with_the_next_action_that_can_be_done(small: Shop) -> None:
    assert walk(small, "hm", "search[boots]").note == ""


@given(st.text(max_size=300), st.sampled_from([View(), RESULTS, ITEM]))
def test_whatever_is_written_leads_to_a_page_on_lines_of_its_own(small: Shop, text: str, view: View) -> None:
    for action in (text, f"search[{text}]", f"click[{text}]"):
        seen = small.step(WANTED, view, action)
        seen.text.encode()
        assert seen.text.splitlines()[0] == f"Task: {WANTED.instruction}"
        assert sum(line.startswith("Task:") for line in seen.text.splitlines()) == 1


def test_long_searches_are_cut(small: Shop) -> None:
    view = small.move(View(), f"search[{'boots ' * 500}]")
    assert view.page is Page.RESULTS and len(view.query) <= MAX_QUERY_CHARS


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("search[red hat]", ("search", "red hat")),
        ("  CLICK [ Buy  Now ] ", ("click", "Buy Now")),
        ("click[a[b]c]", ("click", "a[b]c")),
        ("search[a\n b]", ("search", "a b")),
        ("search[]", ("search", "")),
        ("search red", None),
        ("do search[x]", None),
        ("click[x] click[y", None),
    ],
)
def test_actions_are_read_as_written(text: str, asked: tuple[str, str] | None) -> None:
    assert read_action(text) == asked


@given(st.text(max_size=100), st.integers(1, 50))
def test_cleaned_text_is_one_line_that_can_be_encoded(text: str, most: int) -> None:
    cleaned = clean_text(text, most)
    assert len(cleaned) <= most and cleaned.encode().decode() == cleaned
    assert len(cleaned.splitlines()) <= 1 and clean_text(cleaned, most) == cleaned.strip()


@given(
    st.sampled_from(list(Page)), st.text(max_size=30), st.integers(0, 9), st.text(max_size=9),
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3),
)  # fmt: skip
def test_a_view_comes_back_from_json(
    page: Page, query: str, number: int, item: str, chosen: list[tuple[str, str]]
) -> None:
    view = View(page, clean_text(query, 30), number, item, "features", tuple(chosen), "note")
    assert View.from_json(view.to_json()) == view


@pytest.mark.parametrize(
    "wrong",
    [None, 3, {}, {"page": "moon"}, {**View().to_json(), "number": -1}, {**View().to_json(), "number": "0"},
     {**View().to_json(), "query": 3}, {**View().to_json(), "chosen": [["a"]]},
     {**View().to_json(), "number": True}],
)  # fmt: skip
def test_what_is_no_view_is_refused(wrong: object) -> None:
    with pytest.raises(InputError, match="a view of shop"):
        View.from_json(wrong)


@pytest.mark.parametrize(
    "wrong", [None, [], {}, {**WANTED.to_json(), "limit": "5"}, {**WANTED.to_json(), "kind": 1}]
)
def test_what_is_no_goal_is_refused(wrong: object) -> None:
    with pytest.raises(InputError, match="a goal of shop"):
        ShopGoal.from_json(wrong)
    assert ShopGoal.from_json(WANTED.to_json()) == WANTED


@pytest.mark.parametrize(
    ("view", "problem"),
    [
        (replace(ITEM, item="ZZ"), "there is no product 'ZZ'"),
        (replace(ITEM, chosen=(("size", "XXL"),)), "is not sold with"),
        (replace(RESULTS, number=99), "there is no page 100"),
        (replace(ITEM, page=Page.DETAIL, detail="secrets"), "not 'secrets'"),
    ],
)
def test_a_view_of_what_is_not_there_is_refused(small: Shop, view: View, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        small.page(WANTED, view)


def test_copies_of_an_env_share_its_shop(small: Shop) -> None:
    assert copy.deepcopy(small) is small
