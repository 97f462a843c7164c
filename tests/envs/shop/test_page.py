"""The page about the shop: its code runs, its table names every option, its page and figures are true."""

from __future__ import annotations

import re
from pathlib import Path

from stepwell.envs import make_env
from stepwell.envs.shop.options import PRESETS, ShopOptions
from stepwell.envs.shop.products.vocabulary import load_vocabulary

PAGE = (Path(__file__).parent.parent.parent.parent / "docs" / "shop.md").read_text()


def test_the_code_of_the_page_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(code, {"__name__": "page"})


def test_the_page_of_results_is_what_the_shop_shows() -> None:
    (text,) = re.findall(r"```text\n(.*?)\n```", PAGE, flags=re.DOTALL)
    env = make_env("shop", {"size": "tiny"})
    env.reset(seed=9)
    assert env.step(["search[low shelf]"])[0].text == text


def test_the_table_names_every_option_and_the_presets() -> None:
    table = PAGE.split("| option | default | |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)) == set(ShopOptions.model_fields)
    for field in ("num_products", "page_size", "max_turns"):
        full, tiny = (getattr(PRESETS[size], field) for size in ("full", "tiny"))
        assert f"| `{field}` | {full:,}; tiny {tiny} |" in table


def test_the_catalogue_is_as_large_as_the_page_says() -> None:
    words = load_vocabulary("full")
    phrases = {phrase for kind in words.kinds for phrase in kind.phrases}
    sets = {options for kind in words.kinds for options in kind.options}
    departments = {kind.category[0] for kind in words.kinds}
    assert f"{len(words.kinds)} kinds of things in nine departments, {len(phrases)} attributes, " in PAGE
    assert f"{len(sets)} sets of options, {len(words.brands)} brands" in PAGE
    assert len(departments) == 9
