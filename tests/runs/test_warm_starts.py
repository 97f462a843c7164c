"""A warm start taken from disk leads to the same run as one that was made."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
from tests.runs.small import notes, small_config, timeless
from tests.runs.test_resume import same

from stepwell.config.run import RunConfig
from stepwell.core import ConfigError
from stepwell.policies import CausalLMPolicy
from stepwell.runs.build.components import Components
from stepwell.runs.build.warm_starts import make_cache_key
from stepwell.runs.run import train

WARM = (
    "policy.model=tiny-0.3m",
    "agent.guide=false",
    "warm_start.num_demos=16",
    "warm_start.batch_size=4",
    "warm_start.stop_at=0.99",
    "warm_start.optimizer.learning_rate=5e-3",
)


def shared(tmp_path: Path, name: str, *settings: str) -> RunConfig:
    return small_config(*WARM, f"warm_start.cache={tmp_path / 'warm'}", *settings, folder=tmp_path, name=name)


def taken(folder: Path) -> bool:
    return any("loaded from" in note for note in notes(folder))


def made(folder: Path) -> bool:
    return any("demonstrations, " in note for note in notes(folder))


def without_warm_start(folder: Path) -> list[object]:
    return [entry for entry in timeless(folder) if entry.kind != "warm_start"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["steppo", "grpo"])
def test_a_run_is_the_same_with_its_warm_start_made_or_taken(recipe: str, tmp_path: Path) -> None:
    alone = train(small_config(*WARM, f"recipe.name={recipe}", folder=tmp_path, name="alone"))
    first = train(shared(tmp_path, "first", f"recipe.name={recipe}"))
    second = train(shared(tmp_path, "second", f"recipe.name={recipe}"))
    assert (made(first), taken(first), made(second), taken(second)) == (True, False, False, True)
    same(alone, first, 2)
    assert without_warm_start(second) == without_warm_start(first)
    (second / "metrics.jsonl").write_text((first / "metrics.jsonl").read_text())
    same(first, second, 2)


def test_recipes_that_imitate_alike_share_and_others_do_not(tmp_path: Path) -> None:
    def key(*settings: str) -> str:
        return make_cache_key(Components(shared(tmp_path, "run", *settings)))

    task = "recipe.reward_parts=['task']"
    steppo = key("recipe.name=steppo", task)
    assert steppo == key("recipe.name=steppo", task, "train.optimizer.kind=muon", "recipe.credit.lam=0.5")
    assert key("recipe.name=grpo", task) == key(
        "recipe.name=rloo", task, "train.num_updates=9", "eval.every=3", "eval.patience=2"
    )
    different = [
        ("recipe.name=steppo", task),
        ("recipe.name=steppo", task, "recipe.credit.gamma=0.9"),  # its critic is taught other returns
        ("recipe.name=ppo", task),  # at other sites
        ("recipe.name=webrl", task),  # and probabilities
        ("recipe.name=grpo", task),
        ("recipe.name=grpo", task, "seed=1"),
        ("recipe.name=grpo", "recipe.reward_parts=['task', 'format']"),
        ("recipe.name=grpo", task, "env.options.size=4"),
        ("recipe.name=grpo", task, "warm_start.noise=0.5"),
        ("recipe.name=grpo", task, "warm_start.schedule='linear'"),
        ("recipe.name=grpo", task, "agent.guide=true"),
        ("recipe.name=grpo", task, "train.num_tasks=9"),
        ("recipe.name=grpo", task, "eval.temperature=1"),  # `warm_start.stop_at` plays at it
    ]
    assert len({key(*settings) for settings in different}) == len(different)
    endless = "recipe.name=grpo", task, "warm_start.stop_at=none"
    assert key(*endless) == key(
        *endless, "sampling.temperature=0.5", "eval.temperature=1"
    )  # nothing is played
    taught = "warm_start.reward_parts=['task']"
    assert key("recipe.name=grpo", taught) == key("recipe.name=grpo", task)


def test_what_comes_later_does_not_make_another_warm_start(tmp_path: Path) -> None:
    def key(*settings: str) -> str:
        return make_cache_key(Components(shared(tmp_path, "run", "policy.critic=own", *settings)))

    webrl = key("recipe.name=webrl")
    assert webrl == key("recipe.name=webrl", "replay.enabled=false", "curriculum.enabled=false")
    assert webrl == key("recipe.name=webrl", "recipe.credit.gamma=1")  # eq. 7 has no discount
    assert webrl == key("recipe.name=awr")  # the critic is taught the same outcomes
    assert webrl != key("recipe.name=digirl")  # which has a second critic


def test_untaught_critics_share_one_warm_start_and_begin_with_the_warm_backbone(tmp_path: Path) -> None:
    def weights(name: str, *settings: str) -> tuple[Path, dict[str, torch.Tensor]]:
        quick = "warm_start.num_demos=8", "warm_start.value_coef=0", "train.num_updates=0"
        folder = train(shared(tmp_path, name, *quick, *settings))
        return folder, CausalLMPolicy.from_pretrained(folder / "checkpoints" / "best").state_dict()

    _, actor = weights("alone", "recipe.name=grpo", "policy.critic=none")
    folder, judged = weights("judged", "recipe.name=steppo", "policy.critic=own")
    assert taken(folder) and len(list((tmp_path / "warm").glob("*.lock"))) == 1
    backbone = {
        name.removeprefix("critic.backbone."): w for name, w in judged.items() if ".backbone." in name
    }
    assert len(backbone) > 10
    for name, weight in backbone.items():
        assert torch.equal(weight, actor[f"model.model.{name}"])


def test_runs_of_all_seeds_share_a_start_with_a_seed_of_its_own(tmp_path: Path) -> None:
    def weights(name: str, *settings: str) -> tuple[Path, dict[str, torch.Tensor]]:
        quick = "warm_start.num_demos=8", "recipe.name=grpo", "train.num_updates=0"
        folder = train(shared(tmp_path, name, *quick, *settings))
        return folder, CausalLMPolicy.from_pretrained(folder / "checkpoints" / "best").state_dict()

    first, start = weights("first", "seed=1", "warm_start.seed=5")
    second, same_start = weights("second", "seed=2", "warm_start.seed=5")
    _, other = weights("other", "seed=5")  # its own seed: the same start, made without the setting
    assert (made(first), taken(second)) == (True, True)
    assert all(torch.equal(weight, same_start[name]) for name, weight in start.items())
    assert all(torch.equal(weight, other[name]) for name, weight in start.items())


def test_demonstrations_are_rewarded_by_the_parts_that_the_warm_start_names(tmp_path: Path) -> None:
    task, both = "recipe.reward_parts=['task']", "recipe.reward_parts=['task', 'format']"
    taught = "warm_start.reward_parts=['task']"

    def returns(*settings: str) -> list[float]:
        components = Components(shared(tmp_path, "run", *settings))
        return [
            sum(step.reward or 0.0 for step in t.steps) for t in components.play_demonstrations(4, 0.0, 0)
        ]

    assert returns(both, taught) == returns(task) != returns(both)
    with pytest.raises(ConfigError, match=r"rewards grounding.*warm_start\.reward_parts"):
        _ = Components(shared(tmp_path, "run", "warm_start.reward_parts=['grounding']")).language.agent


def test_a_damaged_warm_start_is_made_again(tmp_path: Path) -> None:
    first = train(shared(tmp_path, "first", "train.num_updates=0"))
    (kept,) = [path for path in (tmp_path / "warm").iterdir() if path.is_dir()]
    weights = kept / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    second = train(shared(tmp_path, "second", "train.num_updates=0"))
    assert made(first) and made(second) and not taken(second)
    assert taken(train(shared(tmp_path, "third", "train.num_updates=0")))


def test_runs_side_by_side_make_one_warm_start(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    configs = [shared(tmp_path, f"run{i}", "train.num_updates=0") for i in range(2)]
    processes = [context.Process(target=train, args=(config,)) for config in configs]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(taken(tmp_path / f"run{i}") for i in range(2)) == [False, True]
