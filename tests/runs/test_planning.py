"""The plan: true of what the run then does, in at most thirty lines."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch
from tests.runs.small import played, small_components, small_config

from stepwell.config.loading import load_config
from stepwell.core import ConfigError, ContextLengthError, ModelError
from stepwell.runs.plan import memory
from stepwell.runs.plan.base_plan import split_minibatches
from stepwell.runs.plan.language_plan import LanguagePlan
from stepwell.runs.plan.model_size import ModelSize
from stepwell.runs.plan.run_plan import plan_run
from stepwell.runs.run import train
from stepwell.training import TrajectoryMinibatch, memory_budget
from stepwell.training.memory_budget import TokenBudget

FIVE = ("train.tasks_per_update=5", "train.group_size=3")
POLE = ("env.name=gymnasium:CartPole-v1", "env.options={}")
OWN = ("policy.critic=own", "train.optimizer.kind=muon")


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("agent.context=observation",),
        ("sampling.max_tokens=3", "env.options={size=3, max_turns=1}"),  # demonstrated replies are longer
        ("env.options={size=3, max_turns=6}",),
    ],
)
def test_what_is_typical_is_never_above_what_is_possible(settings: tuple[str, ...]) -> None:
    components = small_components(*settings)
    found = LanguagePlan(components)
    components.close()
    assert found.typical_tokens <= found.most_tokens


@pytest.mark.parametrize("preset", ["frozenlake", "sokoban"])
def test_a_preset_is_planned_in_thirty_readable_lines(preset: str) -> None:
    text = plan_run(load_config(preset, ["train.num_tasks=32", "eval.num_tasks=16"]))
    lines = text.splitlines()
    assert len(lines) <= 30 and max(map(len, lines)) <= 150
    assert f"{preset}: 32 training tasks, 16 held out" in text
    assert "tiny-0.3m: 301,664 parameters, all are trained; float32 on cpu" in text
    assert "steppo: credit step_gae(gamma=0.99, lam=1.0), whitened over steps" in text
    assert "128 trajectories = 32 tasks x 4, played 128 at a time" in text
    assert "warning" not in text


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (
            ("train.tasks_per_update=130", "train.group_size=1", "train.minibatches=3"),
            "130 trajectories in 3 minibatches of 44, 43, 43; 1 pass = 3 optimizer steps",
        ),
        (
            (
                "train.tasks_per_update=5",
                "train.group_size=3",
                "train.minibatches=2",
                "train.update_epochs=2",
            ),
            "15 trajectories in 2 minibatches of 9, 6; 2 passes = 4 optimizer steps",
        ),
        (
            ("recipe.name=grpo", "train.group_size=1"),
            "warning     recipe grpo compares siblings, and train.group_size is 1: every advantage is 0",
        ),
        (
            ("train.tasks_per_update=2", "train.group_size=4", "train.minibatches=6"),
            "groups stay whole: 6 minibatches of 2 groups become 2",
        ),
        (("train.token_budget=100",), "train.token_budget (100) is below the longest step"),
        (("train.max_env_steps=5000",), "2 updates = 16 episodes or 5,000 actions, whichever comes first"),
        (("env.options.size=2", "train.num_tasks=9999"), "train.num_tasks is 9999, but this environment has"),
        (("sampling.max_tokens=2000",), "over the limit of 4096; it is cut there"),
        (("policy.lora={rank=2}",), "trained (adapters)"),
        (
            ("env.name=gymnasium:CartPole-v1", "env.options={}", "train.num_tasks=9"),
            "gymnasium:CartPole-v1: 9",
        ),
    ],
)
def test_how_the_work_is_split_and_what_is_odd_about_it_is_said(shape: tuple[str, ...], words: str) -> None:
    assert words in plan_run(small_config(*shape))


PAGES = ("env.name=web", "env.options={driver='chromium'}", "agent.context=observation")


def test_a_browser_is_looked_for_but_not_started_by_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    browser.chmod(0o755)
    monkeypatch.setenv("STEPWELL_CHROMIUM", str(browser))
    text = plan_run(small_config(*PAGES))
    assert f"not checked Chromium is there ({browser}) and was not started: whether first prompts fit" in text
    assert "--open-env looks at the first page" in text
    assert "tokens sampled" in text and "tokens sampled, at most" not in text  # bounds only
    assert not (tmp_path / "started").exists()
    monkeypatch.setenv("STEPWELL_CHROMIUM", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="no Chromium was found"):
        plan_run(small_config(*PAGES))


def test_counting_tasks_takes_a_moment_and_says_where_it_stopped() -> None:
    started = time.process_time()
    text = plan_run(small_config("env.options.size=6", "train.num_tasks=1000000", "eval.num_tasks=100000"))
    assert re.search(
        r"frozenlake: at least \S+ of 1,000,000 training tasks, at least \S+ of 100,000 held", text
    )
    assert "evaluated before and after, 100000 episodes each" in text
    assert time.process_time() - started < 20


def test_mistakes_are_found_by_planning_too() -> None:
    with pytest.raises(ContextLengthError, match=r"first prompt of frozenlake.*engine\.max_length"):
        plan_run(small_config("engine.max_length=64"))
    with pytest.raises(ModelError):
        plan_run(small_config("policy.model=nowhere"))
    with pytest.raises(ConfigError):
        plan_run(small_config("recipe.name=vagen-full"))


def test_the_model_is_measured_without_loading_it() -> None:
    components = small_components("policy.lora={rank=2}", "recipe.name=grpo")
    size = ModelSize.read(components.language.base_path, rank=2)
    weights = components.policy.model.config
    assert size.num_parameters == 301_664
    assert (size.layers, size.width, size.vocabulary) == (2, 96, 1024)
    assert size.kv_width == weights.num_key_value_heads * weights.head_dim
    assert size.num_linear == sum(p.numel() for p in components.policy.parameters())


@pytest.mark.parametrize("extra", [(), OWN, ("recipe.name=grpo",)])
def test_the_estimates_hold_in_the_run_that_was_planned(tmp_path: Path, extra: tuple[str, ...]) -> None:
    config = small_config("train.num_updates=1", *extra, folder=tmp_path)
    planned = LanguagePlan(small_components(*extra))
    folder = train(config)
    path = folder / "checkpoints/update-000001"
    on_disk = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert planned.memory.checkpoint_bytes == pytest.approx(on_disk, rel=0.2)
    packed = TrajectoryMinibatch(played(folder, 1), torch.device("cpu")).packed.num_tokens
    assert packed <= planned.most_tokens
    assert packed / 2 < planned.typical_tokens < 2 * packed


def test_activations_are_estimated_within_a_factor_of_two() -> None:
    components = small_components("recipe.name=steppo")
    planned = LanguagePlan(components)
    batch = TrajectoryMinibatch(components.play_demonstrations(8, 0.3, 0), torch.device("cpu"))
    kept: dict[int, int] = {}

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        components.policy.evaluate(batch.packed, values=True, entropies=True)
    own = {parameter.untyped_storage().data_ptr() for parameter in components.policy.parameters()}
    measured = sum(size for pointer, size in kept.items() if pointer not in own)
    estimated = (
        planned.memory.count_bytes_by_use()["activations"] * batch.packed.num_tokens / planned.typical_tokens
    )
    assert measured / 2 < estimated < measured * 2


@pytest.mark.parametrize("critic", ["shared", "own"])
def test_an_automatic_budget_is_planned_as_the_trainer_will_choose_it(
    monkeypatch: pytest.MonkeyPatch, critic: str
) -> None:
    auto = ("recipe.name=steppo", f"policy.critic={critic}", "train.tasks_per_update=64")
    components, free = small_components(*auto, "train.token_budget=auto"), 100e6
    monkeypatch.setattr(memory, "read_free_bytes", lambda device: free)
    planned = LanguagePlan(components)
    uses = planned.memory.count_bytes_by_use()
    standing = sum(uses[name] for name in ("weights", "reference", "engine's weights", "engine's cache"))
    monkeypatch.setattr(memory_budget, "read_free_bytes", lambda device: free - standing)
    chosen = TokenBudget("auto", components.policy).read_tokens()
    assert chosen is not None and planned.longest < chosen < planned.most_tokens
    assert planned.memory.token_budget == pytest.approx(chosen, rel=0.05)
    assert f"(free memory holds {planned.memory.token_budget:,} tokens)" in "\n".join(planned.lines())
    same = LanguagePlan(
        small_components(*auto, f"train.token_budget={planned.memory.token_budget}")
    ).memory.count_bytes_by_use()
    assert uses == same


def test_many_minibatches_are_told_by_their_extremes() -> None:
    assert split_minibatches(130, 1, 3) == [44, 43, 43]
    many = ("train.tasks_per_update=130", "train.group_size=1", "train.minibatches=9")
    assert "130 trajectories in 9 minibatches of 14 to 15;" in plan_run(small_config(*many))


def test_resource_groups_are_planned_with_who_is_where() -> None:
    settings = (
        "workers.mode=stream",
        "recipe.name=rloo",
        "workers.global_batch=7",
        "workers.simulators.num_workers=3",
    )
    text = plan_run(small_config(*settings))
    assert (
        "stream: 48 environments = 3 simulators x 2 batches x 8; inference at 64 samples or after 5 ms"
        in text
    )
    assert "colocated: cpu: 3 simulators, 1 generator, 1 trainer" in text
    assert "an update learns from 8 trajectories, at most 2 versions behind (older: weight)" in text
