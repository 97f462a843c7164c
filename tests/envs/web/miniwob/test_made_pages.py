"""Made-up click pages: what is right can be read from the page, and the real page's labels are not shown."""

from __future__ import annotations

import random
import re

import pytest
from benchmarks.miniwob_made_pages import MAKERS, REAL_LABELS, make_grid, make_page, make_word


@pytest.mark.parametrize("name", list(MAKERS))
def test_right_element_is_on_the_page_and_is_what_the_instruction_names(name: str) -> None:
    rng = random.Random(0)
    for _ in range(100):
        text, right = MAKERS[name](rng)
        instruction, _, body = text.partition("\n")
        shown = re.search(rf"\[{right}([^\]]*)\]([^\[\n]*)", body)
        assert shown
        marks, label = shown.groups()
        named = re.search(r"[\"(# ]([^ \"(#]+)[\").]", instruction)
        assert named
        if name == "click-button":
            assert label.split(" ")[0] == named[1]
            assert re.findall(rf"\[(\d+)\]{named[1]}(?=[\n\[ ]|$)", body)[0] == str(right)
        elif name == "click-tab":
            assert label == f"Tab #{named[1]}"
        elif name == "click-dialog-2":
            assert label == {"x": "Close"}.get(named[1], named[1])
        elif name == "click-widget":
            kinds = {"text": 'type="input"', "textarea": "value=", "button": ""}
            wanted = kinds.get(named[1], f'type="{named[1]}"')
            assert marks.strip().startswith(wanted) and (wanted or not marks)


def test_grid_counts_points_column_by_column_from_the_top() -> None:
    """As recorded in Chromium."""
    rng = random.Random(0)
    found = {}
    for _ in range(400):
        text, right = make_grid(rng)
        found[text.split("(")[1].split(")")[0]] = right
    assert len(found) == 25
    assert (found["1,-2"], found["-1,0"], found["1,-1"]) == (20, 8, 19)


def test_labels_of_the_real_page_are_never_drawn() -> None:
    rng = random.Random(0)
    drawn = {make_word(rng) for _ in range(40_000)}
    assert len(drawn) > 10_000 and not REAL_LABELS & drawn


def test_same_seed_makes_the_same_pages() -> None:
    assert make_page(random.Random(3)) == make_page(random.Random(3)) != make_page(random.Random(4))
