from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.names import (
    describe_missing_module,
    find_nearest,
    measure_likeness,
    suggest_file,
    suggest_name,
)
from stepwell.core.text import take_first_line

RECIPES = ["steppo", "ppo", "grpo", "rloo", "gigpo", "gspo", "sft"]


@pytest.mark.parametrize(
    ("typed", "known", "near"),
    [
        ("gpro", RECIPES, ["grpo"]),  # two neighbours swapped: one change, not two
        ("stepo", RECIPES, ["steppo"]),
        ("GRPO", RECIPES, ["grpo"]),
        ("lamda", ["gamma", "lam"], ["lam"]),
        ("clp", ["ratio", "clip_low", "clip_high", "aggregate"], ["clip_low", "clip_high"]),
        ("held_out", ["held_out_share", "options"], ["held_out_share"]),
        ("lr", ["loss", "learning_rate"], ["learning_rate"]),  # its initials
        ("tiny-03m", ["tiny-0.3m", "tiny-1m"], ["tiny-0.3m"]),
        ("nope", RECIPES, []),
        ("", RECIPES, []),
        ("grpo", [], []),
    ],
)
def test_the_nearest_name_is_the_one_with_the_fewest_changes(
    typed: str, known: list[str], near: list[str]
) -> None:
    assert find_nearest(typed, known) == near


def test_a_name_of_a_megabyte_is_near_to_none_and_takes_no_time() -> None:
    began = time.process_time()
    assert find_nearest("x" * 2**20, RECIPES) == []
    assert time.process_time() - began < 1


def test_a_message_goes_on_with_the_guess_and_all_names() -> None:
    assert suggest_name("gpro", ["grpo"]) == "; did you mean 'grpo'?"
    assert suggest_name("nope", ["grpo"]) == ""
    assert suggest_name("gpro", ["grpo", "sft"], "Recipes") == "; did you mean 'grpo'? Recipes: grpo, sft"
    assert suggest_name("nope", [], "Recipes") == ". Recipes: none"


@given(st.text("abc_", max_size=8), st.text("abc_", max_size=8))
def test_likeness_is_one_for_equal_names_and_between_zero_and_one_for_all(one: str, other: str) -> None:
    assert measure_likeness(one, one.upper()) == 1.0
    assert 0.0 <= measure_likeness(one, other) <= 1.0
    assert one == other or measure_likeness(one, other) < 1.0


def test_a_file_that_is_not_there_is_answered_by_the_nearest_beside_it(tmp_path: Path) -> None:
    for name in ("tasks.jsonl", "tasks.csv", "agent.py", "agent.toml"):
        (tmp_path / name).touch()
    guess = "; did you mean '{}'?".format
    assert suggest_file(tmp_path / "taks.jsonl") == guess(tmp_path / "tasks.jsonl")
    assert suggest_file(tmp_path / "agnt.toml") == guess(tmp_path / "agent.toml")
    assert suggest_file(tmp_path / "tasks.josnl").count("tasks.") == 2  # of both endings
    assert suggest_file(tmp_path / "unlike.txt") == suggest_file(tmp_path / "no" / "folder") == ""


def test_a_missing_package_names_the_extra_that_installs_it() -> None:
    assert describe_missing_module("uvicorn.config") == (
        "the module 'uvicorn.config' is not installed: pip install 'stepwell[serve]'"
    )
    assert "pip install the package with 'nmpy'" in describe_missing_module("nmpy")
    assert describe_missing_module("wandb").endswith(": pip install wandb")


def test_an_error_without_words_is_told_by_its_type() -> None:
    assert take_first_line(RuntimeError("\nfirst\nsecond")) == "first"
    assert take_first_line(MemoryError()) == "MemoryError"
