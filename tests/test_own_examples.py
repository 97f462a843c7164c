"""The examples of what users add: each keeps its contract, stays short, and works in a run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.runs.small import small_config, timeless

from stepwell.cli.main import main
from stepwell.config.run import RecipeConfig
from stepwell.monitors.jsonl import read_entries
from stepwell.runs.build.recipe import resolve_recipe
from stepwell.runs.run import train

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = [
    *("own_credit.py:best_of_siblings", "own_loss.py:cautious_loss", "own_recipe.py:RECIPE"),
    *("own_reward.py:brevity", "own_reward.py:variety", "own_prompt_style.py:PLAN_FIRST"),
    *("own_shard_rule.py:by_length", "own_env.py:NumberLine"),
]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_keeps_its_contract(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{EXAMPLES}/{name}"]) == 0, capsys.readouterr().out


def test_examples_are_short_and_say_how_to_run_them() -> None:
    for file in EXAMPLES.glob("own_*.py"):
        text = file.read_text()
        assert len(text.splitlines()) <= 60, file.name
        assert f"examples/{file.name}" in text.split('"""')[1], file.name


def test_a_credit_function_that_compares_siblings_gets_them() -> None:
    credit = {"function": f"{EXAMPLES}/own_credit.py:best_of_siblings"}
    recipe = resolve_recipe(RecipeConfig(name="steppo", credit=credit))
    assert recipe.needs_groups and not recipe.needs_critic and recipe.whiten == "steps"
    assert recipe.kl is not None and recipe.loss.name == "ppo_loss"


def test_a_loss_that_needs_a_reference_gets_one() -> None:
    loss = {"function": f"{EXAMPLES}/own_loss.py:cautious_loss", "pull": 0.2}
    recipe = resolve_recipe(RecipeConfig(name="grpo", loss=loss, kl_coef=0.0))
    assert recipe.needs_reference and recipe.loss.kwargs == {"pull": 0.2}


def test_recipe_reward_and_prompt_style_of_ones_own_learn_together(tmp_path: Path) -> None:
    folder = train(
        small_config(
            f"recipe.name={EXAMPLES}/own_recipe.py:RECIPE",
            f"rewards.parts=['{EXAMPLES}/own_reward.py:variety']",
            f"agent.strategy={EXAMPLES}/own_prompt_style.py:PLAN_FIRST",
            "eval.num_tasks=2",
            folder=tmp_path,
        )
    )
    updates = [entry.values for entry in timeless(folder) if entry.kind == "update"]
    assert len(updates) == 2 and all(math.isfinite(values["loss/distance"]) for values in updates)
    assert (folder / "reference.safetensors").exists()  # the loss declares it
    assert "reward/variety" in next(
        e.values for e in read_entries(folder / "metrics.jsonl") if e.kind == "update"
    )
