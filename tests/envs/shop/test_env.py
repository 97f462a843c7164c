"""The shop as an environment: the contract, rewards, oracle and random play, both sizes, WebShop's files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from stepwell.core import InputError, Split, StateForm, Task
from stepwell.envs.baselines import measure_random_play
from stepwell.envs.check import check_env
from stepwell.envs.registry import make_env
from stepwell.envs.shop.env import ShopEnv
from stepwell.envs.shop.goal import ShopGoal
from stepwell.envs.shop.guide import AFTER, BEFORE, EXAMPLE_TASK, make_examples
from stepwell.envs.shop.options import ShopOptions
from stepwell.envs.shop.products import Product
from stepwell.envs.shop.products.store import Store, write_store
from stepwell.envs.shop.shop import Shop
from stepwell.envs.shop.view import View
from stepwell.envs.tasks import draw_tasks

PATH = "shop"
TINY: dict[str, Any] = {"size": "tiny"}


def oracle_success(options: dict[str, Any], tasks: list[Task]) -> float:
    """Share of tasks bought in full, and in as few turns as were told at the start."""
    env = make_env(PATH, options)
    solved = 0
    for task in tasks:
        _, told = env.reset(options={"task": task})
        for number in range(env.description.max_turns):
            *_, terminated, _, info = env.step(env.oracle()[:1])
            if terminated:
                solved += info["success"] and number + 1 == told["golden"]
                break
    return solved / len(tasks)


def test_the_tiny_shop_keeps_the_contract() -> None:
    report = check_env(PATH, TINY, num_tasks=10)
    assert report.ok, str(report)


def test_the_oracle_solves_held_out_tasks_of_the_tiny_shop_in_golden_steps() -> None:
    assert oracle_success(TINY, draw_tasks(PATH, TINY, Split.HELD_OUT, 100, seed=0)) == 1.0


def test_random_play_buys_the_right_thing_hardly_ever() -> None:
    tasks = draw_tasks(PATH, TINY, Split.HELD_OUT, 150, seed=1)
    assert measure_random_play(PATH, TINY, tasks, seed=0) < 0.05


@pytest.mark.slow
def test_the_full_shop_has_fifty_thousand_products_an_oracle_and_no_luck() -> None:
    env = make_env(PATH)
    env.reset(seed=0)
    assert env.shop.store.num_products == 50_000 and env.description.max_turns == 15
    tasks = draw_tasks(PATH, {}, Split.HELD_OUT, 40, seed=1)
    assert oracle_success({}, tasks) >= 0.95
    assert measure_random_play(PATH, {}, tasks, seed=0) < 0.1


def test_a_purchase_is_paid_by_its_score_and_ends_the_episode() -> None:
    env = ShopEnv(ShopOptions(size="tiny"))
    env.reset(seed=9)
    search, click, value, buy = env.oracle()
    for action in (search, click, value):
        _, reward, terminated, _, info = env.step([action])
        assert (reward, terminated, info) == (0.0, False, {"success": False, "num_actions": 1})
    _, reward, terminated, truncated, info = env.step([buy])
    assert (reward, terminated, truncated, info["success"], info["score"]) == (1.0, True, False, True, 1.0)
    env.reset(seed=9)
    for action in (search, click):
        env.step([action])
    _, reward, terminated, _, info = env.step([buy])
    # one attribute and the price, of one attribute, one value and the price
    assert reward == pytest.approx(2 / 3) and terminated and not info["success"]
    assert info["score_parts"] == {
        "total": reward, "type": 1.0, "num_attributes": 1, "num_options": 0, "is_within_limit": True,
    }  # fmt: skip


def test_turns_that_run_out_are_a_failure_without_pay() -> None:
    env = ShopEnv(ShopOptions(size="tiny", max_turns=3))
    env.reset(seed=9)
    turns = [env.step(["search[cup]"]) for _ in range(3)]
    assert [turn[2] for turn in turns] == [False, False, True]
    assert sum(turn[1] for turn in turns) == 0.0 and not turns[-1][4]["success"]


def test_the_turn_limits_and_sizes_are_those_of_the_preset_unless_given() -> None:
    assert make_env(PATH, TINY).description.max_turns == 8
    given = ShopOptions(size="tiny", num_products=60, page_size=9, max_turns=5)
    assert (given.products, given.results, given.turns) == (60, 9, 5)
    env = ShopEnv(given)
    env.reset(seed=0)
    assert env.shop.store.num_products == 60
    assert len(env.step(["search[low]"])[0].text.splitlines()) == 1 + 9 + 1


def test_pages_of_the_tiny_shop_are_short() -> None:
    env, rng = ShopEnv(ShopOptions(size="tiny")), random.Random(0)
    longest = 0
    for seed in range(50):
        env.reset(seed=seed)
        over = False
        while not over:
            observation, _, over, *_ = env.step([env.random_action(rng)])
            longest = max(longest, len(observation.text.encode()))
    assert longest <= 240


def test_random_actions_are_those_of_the_page_or_a_search_for_words_of_the_task() -> None:
    env, rng = ShopEnv(ShopOptions(size="tiny")), random.Random(0)
    env.reset(seed=9)
    words = {"Buy", "low", "shelf", "size", "S", "up", "to", "4"}
    for _ in range(30):
        query = env.random_action(rng)
        assert query.startswith("search[") and set(query[7:-1].split()) <= words
    env.step(["search[shelf]"])
    assert {env.random_action(rng) for _ in range(200)} == set(env.seen.actions)


def test_tasks_of_another_catalogue_are_refused() -> None:
    task = ShopEnv.make_task(ShopOptions(size="tiny", num_products=60), 0)
    with pytest.raises(InputError, match="was made for another catalogue"):
        ShopEnv(ShopOptions(size="tiny")).reset(options={"task": task})


def test_held_out_goals_are_none_of_the_training_goals() -> None:
    sides = [
        {task.content["goal"]["instruction"] for task in draw_tasks(PATH, TINY, split, count, seed=0)}
        for split, count in ((Split.TRAIN, 600), (Split.HELD_OUT, 150))
    ]
    assert len(sides[0]) == 600 and len(sides[1]) == 150 and not sides[0] & sides[1]


def test_states_are_told_in_words_and_as_json() -> None:
    env = ShopEnv(ShopOptions(size="tiny"))
    env.reset(seed=9)
    for action in env.oracle()[:3]:
        env.step([action])
    task = "Buy low shelf, size: S, up to $4."
    item = env.seen.view.item
    assert env.state() == {
        StateForm.NATURAL_LANGUAGE: f"The task is: {task} The page of product {item} is open. "
        "Chosen size: S.",
        StateForm.STRUCTURED: json.dumps(
            {"task": task, "page": "item", "query": "low shelf", "results_page": 1, "product": item,
             "chosen": {"size": "S"}}
        ),
    }  # fmt: skip


def test_the_example_of_the_guide_is_what_a_shop_shows(tmp_path: Path) -> None:
    cups = [Product(name, "soft cup", "cup", ("Shop",), 900) for name in ("a71", "c02")]
    write_store(tmp_path / "cups.db", cups)
    shop = Shop(Store(tmp_path / "cups.db"), page_size=4)
    goal = ShopGoal(EXAMPLE_TASK, "cup", ("cup",), (), ("soft",), (("color", "red"),), 1200)
    assert shop.state(goal, View()) == BEFORE
    answer = make_examples()[StateForm.STRUCTURED].answer
    assert shop.state(goal, shop.step(goal, View(), answer).view) == AFTER


def test_a_shop_of_webshops_files_has_their_goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    rows = [
        {"asin": f"B00000000{i}", "name": f"Cosy {color} slippers", "query": "slippers",
         "pricing": f"${10 + i}", "product_category": "Shoes › Slippers",
         "small_description": ["Rubber sole"], "full_description": "",
         "customization_options": {"size": [{"value": "7"}, {"value": "9"}], "color": [{"value": color}]}}
        for i, color in enumerate(("Navy", "Red", "Pink"))
    ]  # fmt: skip
    wish = {"instruction": "i want red slippers.", "instruction_attributes": ["rubber sole"],
            "instruction_options": ["9", "red"]}  # fmt: skip
    (tmp_path / "items_shuffle.json").write_text(json.dumps(rows))
    (tmp_path / "items_human_ins.json").write_text(json.dumps({"B000000001": [wish]}))
    env = ShopEnv(ShopOptions(webshop_files=str(tmp_path)))
    observation, told = env.reset(seed=0)
    assert observation.text.startswith("Task: i want red slippers, and price lower than $")
    assert told == {"golden": 5}
    for action in env.oracle():
        _, reward, terminated, _, _ = env.step([action])
    assert (reward, terminated) == (1.0, True)
