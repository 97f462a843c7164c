"""The state in words and as JSON: on which page the shopper stands, and what was chosen."""

from __future__ import annotations

import json

from stepwell.core import StateForm
from stepwell.envs.shop.pages import ShopPage
from stepwell.envs.shop.view import Page


def write_states(page: ShopPage) -> dict[StateForm, str]:
    """Where the shopper stands, in every form."""
    return {
        StateForm.NATURAL_LANGUAGE: write_sentences(page),
        StateForm.STRUCTURED: json.dumps(write_facts(page), ensure_ascii=False),
    }


def write_sentences(page: ShopPage) -> str:
    """Sentences."""
    view, sentences = page.view, [f"The task is: {page.instruction}"]
    if view.page is Page.SEARCH:
        sentences.append("The search page is open.")
    elif view.page is Page.RESULTS:
        sentences.append(f'Page {view.number + 1} of the results for "{view.query}" is open.')
        listed = ", ".join(number for number, _, _ in page.products)
        sentences.append(f"It lists {listed}." if listed else "It lists nothing.")
    else:
        where = {Page.ITEM: "page", Page.DETAIL: f"{view.detail} page", Page.BOUGHT: "receipt"}[view.page]
        sentences.append(f"The {where} of product {view.item} is open.")
        sentences += [f"Chosen {name}: {value}." for name, value in view.chosen] or ["Nothing is chosen."]
    if page.score is not None:
        sentences.append(f"It was bought for a score of {page.score.total:.2f}.")
    return " ".join(sentences)


def write_facts(page: ShopPage) -> dict[str, object]:
    """The same as plain data."""
    view = page.view
    facts: dict[str, object] = {"task": page.instruction, "page": view.page.value}
    if view.page is not Page.SEARCH:
        facts |= {"query": view.query, "results_page": view.number + 1}
    if view.page is Page.RESULTS:
        facts["products"] = [number for number, _, _ in page.products]
    elif view.item:
        facts |= {"product": view.item, "chosen": dict(view.chosen)}
    if view.page is Page.DETAIL:
        facts["detail"] = view.detail
    if page.score is not None:
        facts["score"] = round(page.score.total, 4)
    return facts
