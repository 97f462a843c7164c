"""WebShop's files: read as published, from small ones of that form made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.core import ConfigError, EncodingError
from stepwell.envs.shop.products import Option, open_webshop_catalogue, webshop_files
from stepwell.envs.shop.products.webshop_files import (
    find_files,
    read_goals,
    read_list,
    read_price,
    read_products,
)

SLIPPERS: dict[str, Any] = {
    "asin": "B07TWAB111",
    "name": "Cosy Women's House Slippers",
    "category": "fashion",
    "query": " Women's Slippers ",
    "product_category": "Clothing, Shoes & Jewelry › Women › Shoes › Slippers",
    "pricing": "$19.99$29.99",
    "full_description": "Warm slippers.",
    "small_description": ["Rubber sole", "Memory foam"],
    "customization_options": {
        "Size": [{"is_selected": False, "value": "7/8", "image": None}, {"value": "9"}],
        "Color": [{"value": "Navy Blue"}],
        "Fit": None,
    },
    "images": [],
}
TEA: dict[str, Any] = {
    "asin": "B00TEA0001",
    "name": "Tea",
    "query": "tea",
    "pricing": "",
    "small_description": "One point",
    "customization_options": {},
}
LEFT_OUT = [
    {**TEA, "asin": "nan"},
    {**TEA, "asin": "B00TEA0001TOOLONG"},
    {**TEA, "asin": "b00tea0001", "name": "the same again"},
    {**TEA, "asin": "B00TEA0002", "name": ""},
]
INSTRUCTIONS = {
    "B07TWAB111": {
        "attributes": ["Rubber Sole", "memory foam"],
        "instruction": "Find me slippers with memory foam",
        "instruction_attributes": ["memory foam"],
    },
    "B00TEA0001": {"attributes": ["herbal"], "instruction": None, "instruction_attributes": []},
}
HUMAN = {
    "B07TWAB111": [
        {
            "instruction": "i want navy slippers size 9.",
            "instruction_attributes": ["Rubber Sole"],
            "instruction_options": ["9", "Navy Blue"],
        }
    ],
    "B0GONE0000": [{"instruction": "gone", "instruction_attributes": ["x"], "instruction_options": []}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "items_shuffle_1000.json").write_text(json.dumps([SLIPPERS, TEA, *LEFT_OUT]))
    (tmp_path / "items_ins_v2_1000.json").write_text(json.dumps(INSTRUCTIONS))
    (tmp_path / "items_human_ins.json").write_text(json.dumps(HUMAN))
    return tmp_path


def test_products_are_read_with_attributes_options_and_prices(folder: Path) -> None:
    slippers, tea = read_products(find_files(folder))
    assert (slippers.id, slippers.kind, slippers.price) == ("B07TWAB111", "women's slippers", 1999)
    assert slippers.category == ("Clothing, Shoes & Jewelry", "Women", "Shoes", "Slippers")
    assert slippers.attributes == ("rubber sole", "memory foam")
    assert slippers.options == (Option("size", ("7 | 8", "9")), Option("color", ("navy blue",)))
    assert slippers.features == ("Rubber sole", "Memory foam")
    assert (tea.price, tea.features, tea.options, tea.attributes) == (10000, ("One point",), (), ("herbal",))


def test_goals_people_wrote_come_before_those_of_the_instruction_file(folder: Path) -> None:
    goals = [json.loads(goal) for goal in read_goals(find_files(folder))]
    assert [goal["product"] for goal in goals] == ["B07TWAB111", "B0GONE0000"]
    assert goals[0] == {
        "product": "B07TWAB111",
        "instruction": "i want navy slippers size 9",
        "attributes": ["rubber sole"],
        "options": ["9", "navy blue"],
    }
    (folder / "items_human_ins.json").unlink()
    (goal,) = [json.loads(goal) for goal in read_goals(find_files(folder))]
    assert goal["instruction"] == "Find me slippers with memory foam" and goal["options"] == []


def test_a_catalogue_of_the_files_can_be_searched(folder: Path, tmp_path: Path) -> None:
    store = open_webshop_catalogue(folder, root=tmp_path / "cache")
    assert (store.num_products, store.num_goals) == (2, 2)
    assert [store.product(n).id for n in store.search("navy slippers").numbers] == ["B07TWAB111"]


def test_files_that_changed_make_another_catalogue(folder: Path, tmp_path: Path) -> None:
    before = open_webshop_catalogue(folder, root=tmp_path / "cache")
    (folder / "items_shuffle_1000.json").write_text(json.dumps([TEA]))
    after = open_webshop_catalogue(folder, root=tmp_path / "cache")
    assert before.path != after.path and after.num_products == 1


def test_a_long_list_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webshop_files, "_CHUNK", 7)
    rows = [{"asin": f"B{i}", "name": "x, ] [ { \\" * i, "n": i} for i in range(30)]
    path = tmp_path / "list.json"
    path.write_text("  \n" + json.dumps(rows, indent=1))
    assert list(read_list(path)) == rows
    path.write_text("[]")
    assert list(read_list(path)) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1}', "no JSON list"),
        ('[{"a": 1}', "ends early"),
        ("[1]", "must list objects"),
        ("", "no JSON list"),
    ],
)
def test_a_list_that_is_none_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(EncodingError, match=problem):
        list(read_list(path))


@pytest.mark.parametrize(
    ("text", "cents"),
    [
        ("$5", 500),
        ("$1,299.00", 129900),
        ("$30.5$20.25", 2025),
        (None, 10000),
        ("call us", 10000),
        ("$.99", 99),
    ],
)
def test_prices_are_read_from_what_stands_there(text: str | None, cents: int) -> None:
    assert read_price(text) == cents


def test_folders_without_products_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no items_shuffle\*\.json"):
        find_files(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        find_files(tmp_path / "nowhere")
    (tmp_path / "items_shuffle.json").write_text("[]")
    with pytest.raises(ConfigError, match="holds no product that can be sold"):
        open_webshop_catalogue(tmp_path, root=tmp_path / "cache")
