"""Made-up click pages: what is right, and their form, which is that of the real pages and of the agent."""

from __future__ import annotations

import random
import re
from argparse import Namespace
from collections import defaultdict

import numpy as np
import pytest
from benchmarks.miniwob_made import HEAD, TAIL, Fitting, make_rows, write_reply
from benchmarks.miniwob_made_pages import MAKERS, REAL_LABELS, make_grid, make_page, make_word
from tests.envs.web.conftest import needs_chromium

from stepwell.config.loading import load_config
from stepwell.rendering.tiny import build_tokenizer
from stepwell.runs.build.components import Components

TASK = "Task: Do what the page asks for.\nPage:\n"


def check_right(name: str, text: str, right: str) -> None:
    """The right element is on the page, and is the first one that the instruction names."""
    instruction, _, body = text.partition("\n")
    shown = re.search(rf"\[{right}([^\]]*)\]([^\[\n]*)", body)
    assert shown
    marks, label = shown.groups()
    named = re.search(r"[\"(# ]([^ \"(#]+)[\").]", instruction)
    assert named
    if name == "click-button":
        assert label.split(" ")[0] == named[1]
        assert re.findall(rf"\[(\d+)\]{named[1]}(?=[\n\[ ]|$)", body)[0] == right
    elif name == "click-tab":
        assert label == f"Tab #{named[1]}"
    elif name == "click-dialog-2":
        assert label == {"x": "Close"}.get(named[1], named[1])
    elif name == "click-widget":
        kinds = {"text": 'type="input"', "textarea": "value=", "button": ""}
        wanted = kinds.get(named[1], f'type="{named[1]}"')
        assert marks.strip().startswith(wanted) and (wanted or not marks)


def list_forms(text: str) -> set[str]:
    """The lines of a page without what is drawn by chance."""
    text = re.sub(r'value="[^"]*"', "value", text)
    text = re.sub(r"\[\d+", "[", text.partition("\n")[2])
    return {re.sub(r"(?<=[\]\n])[\w ,.#]+", "words", f"\n{line}") for line in text.split("\n")}


@pytest.mark.parametrize("name", list(MAKERS))
def test_right_element_is_on_the_page_and_is_what_the_instruction_names(name: str) -> None:
    rng = random.Random(0)
    for _ in range(100):
        text, right = MAKERS[name](rng)
        check_right(name, text, str(right))


@pytest.mark.slow
@needs_chromium
def test_made_up_pages_have_the_form_of_the_real_ones_and_of_the_presets_agent() -> None:
    components = Components(load_config("miniwob-tiny", ["engine.max_batch_size=2", "engine.num_slots=2"]))
    try:
        played = components.play_demonstrations(36, 0.0, 0)
    finally:
        components.close()
    tokenizer, rng, made_up = build_tokenizer(), random.Random(0), defaultdict[str, set[str]](set)
    right_of, seen = {}, set()
    for name, make in MAKERS.items():
        for _ in range(500):
            text, right = make(rng)
            made_up[name] |= list_forms(text)
            right_of[text.partition("\n")[0]] = str(right)
    for episode in played:
        step = episode.steps[0]
        name = str(episode.task.content["page"])
        whole = tokenizer.decode(np.concatenate([step.state.prompt_ids, step.action.action_ids]).tolist())
        page = whole.partition(TASK)[2].partition(TAIL)[0]
        right = re.findall(r'element="(\d+)"', whole)[-1]
        assert whole == HEAD + TASK + page + TAIL + write_reply(right)
        assert step.state.prompt_ids.tolist() == tokenizer.encode(HEAD + TASK + page + TAIL)
        check_right(name, page, right)
        assert list_forms(page) <= made_up[name]
        if name not in ("click-button", "click-widget"):  # an instruction has one answer, the made-up one
            assert right_of[page.partition("\n")[0]] == right
        seen.add(name)
    assert seen == set(MAKERS)


@pytest.mark.parametrize("learns_prompts", [True, False])
def test_pages_seen_again_and_again_are_solved(learns_prompts: bool) -> None:
    settings = {"updates": 60, "batch": 4, "learning_rate": 5e-3, "device": "cpu"}
    fitting = Fitting(Namespace(model="tiny-0.3m", reply_only=not learns_prompts, **settings), seed=0)
    ids, spans = make_rows(0, 40)
    shortest = spans[:, 1].argsort()[:4]
    rows = ids[shortest], spans[shortest]
    assert fitting.measure_solved(rows) == 0.0
    for number in range(60):
        fitting.learn(rows, number)
    assert fitting.measure_solved(rows) == 1.0


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
