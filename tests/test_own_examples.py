"""The examples of what users add: each keeps its contract, stays short, and works in a run."""

from __future__ import annotations

import ast
import math
from contextlib import closing
from pathlib import Path

import pytest
from tests.runs.small import small_components, small_config, timeless

from stepwell.cli.main import main
from stepwell.config.run import RecipeConfig
from stepwell.core import SamplingParams, Split
from stepwell.core.errors import ConfigError
from stepwell.core.user_code import find_user_function, import_user_module
from stepwell.monitors.jsonl import read_entries
from stepwell.pool import Filter, open_pool
from stepwell.rollout import Job, Rollout
from stepwell.runs.build.recipe import resolve_recipe
from stepwell.runs.run import train
from stepwell.workers.hosts import build_engine

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


def test_the_page_on_extending_counts_the_lines_of_each_example() -> None:
    page = (EXAMPLES.parent / "docs" / "extending.md").read_text()
    for file in EXAMPLES.glob("own_*.py"):
        text = file.read_text()
        head = ast.parse(text).body[0].end_lineno
        lines = sum(bool(line.strip()) for line in text.splitlines()[head:])
        assert f"({Path('..') / 'examples' / file.name}) | {lines} |" in page, file.name


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


def test_an_engine_of_ones_own_is_built_by_its_path_and_plays_episodes() -> None:
    components = small_components()
    engine = build_engine(f"{EXAMPLES}/own_engine.py:build", {"token_ids": list(range(256)), "length": 3})
    jobs = [Job(task, task.id, seed) for seed, task in enumerate(components.tasks(Split.TRAIN, 4, 0))]
    played = (
        Rollout(components.envs, components.backend.player, engine)
        .run(jobs, SamplingParams(max_tokens=8))
        .trajectories
    )
    steps = [step for trajectory in played for step in trajectory.steps]
    assert len(played) == 4 and {step.num_units for step in steps} == {3}
    assert all(step.behavior_logprobs.tolist() == pytest.approx([-math.log(256)] * 3) for step in steps)


def test_a_dialect_of_ones_own_is_served_and_recorded(tmp_path: Path) -> None:
    httpx = pytest.importorskip("httpx")
    from tests.services.dialects.echo_gateway import EchoSampler

    from stepwell.pool import open_pool
    from stepwell.rendering import Renderer
    from stepwell.rendering.tiny import TINY_CONTEXT, build_tokenizer
    from stepwell.services.gateway.gateway import Gateway
    from stepwell.services.http_server import serve_in_thread

    dialect = import_user_module(str(EXAMPLES / "own_dialect.py"), "example")
    tokenizer = build_tokenizer()
    with open_pool(tmp_path / "pool.db") as pool:
        gateway = Gateway(EchoSampler(tokenizer), Renderer(tokenizer, context_length=TINY_CONTEXT), pool)
        url, stop = serve_in_thread(dialect.make_app(gateway))
        try:
            body = {"model": gateway.models[0], "messages": [{"role": "user", "content": "up and down"}]}
            reply = httpx.post(f"{url}/s/mine/api/chat", json=body).json()
            assert reply["message"] == {"role": "assistant", "content": "up and down"} and reply["done"]
            assert len(pool.get("mine", with_branches=True).trajectory.steps) == 1
            refused = httpx.post(f"{url}/api/chat", json={"model": "stepwell"})
            assert refused.status_code == 400 and "messages" in refused.text
        finally:
            stop()


@pytest.mark.slow
def test_an_asynchronous_run_divides_requests_by_ones_own_rule_and_keeps_siblings(tmp_path: Path) -> None:
    workers = ("processes=false", "mode=rollout_async", "generators.num_workers=2", "global_batch=4")
    folder = train(
        small_config(
            *(f"workers.{setting}" for setting in workers),
            f"workers.generators.shard={EXAMPLES}/own_shard_rule.py:by_length",
            "recipe.name=grpo",
            f"recipe.credit.function={EXAMPLES}/own_credit.py:best_of_siblings",
            "eval.num_tasks=2",
            folder=tmp_path,
        )
    )
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        played = [stored.group for stored in pool.find(Filter(channel="train"))]
    assert {played.count(group) for group in played} == {2}  # train.group_size


def test_a_misspelt_object_of_a_file_is_told_with_the_objects_there() -> None:
    with pytest.raises(ConfigError, match=r"own_recipe.py has no 'RECIP'; did you mean 'RECIPE'\?"):
        find_user_function(f"{EXAMPLES / 'own_recipe.py'}:RECIP", "recipe.name")
