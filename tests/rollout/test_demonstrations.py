"""Demonstrations: in exactly the required form, and as good as the oracle that gives them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runs.small import small_components

from stepwell.core import ConfigError, FinishReason, Status


@pytest.mark.parametrize(
    "strategy", ["no_think", "free_think", "grounding", "world_modeling", "grounding_world_modeling"]
)
@pytest.mark.parametrize("form", ["natural_language", "symbolic", "structured"])
def test_the_oracle_speaks_in_the_strict_form_and_always_succeeds(strategy: str, form: str) -> None:
    components = small_components(
        "recipe.name=grpo", f"agent.strategy={strategy}", f"agent.state_form={form}"
    )
    shown = components.play_demonstrations(12, 0.0, 0)
    assert len({t.task.id for t in shown}) == 12
    assert {t.status for t in shown} == {Status.SUCCESS}
    for step in (step for t in shown for step in t.steps):
        assert step.info["strict"] and "problem" not in step.info
        assert step.behavior_logprobs.size == 0 and step.sampling.finish_reason is FinishReason.GIVEN
        assert step.action.action_ids[-1] == components.language.renderer.end_ids[0]  # type: ignore[union-attr]


def test_sokoban_too_is_demonstrated_without_a_miss() -> None:
    small = "env.options={num_rows=5, num_columns=5, max_turns=4}"
    components = small_components("recipe.name=grpo", "env.name=sokoban", small)
    assert {t.status for t in components.play_demonstrations(6, 0.0, 0)} == {Status.SUCCESS}


@pytest.mark.parametrize("env_name", ["frozenlake", "sokoban"])
def test_a_noisy_expert_fails_now_and_then_but_keeps_the_form(env_name: str) -> None:
    size = {"frozenlake": "{size=4, max_turns=3}", "sokoban": "{num_rows=5, num_columns=5, max_turns=3}"}
    components = small_components("recipe.name=grpo", f"env.name={env_name}", f"env.options={size[env_name]}")
    shown = components.play_demonstrations(40, 0.5, 0)
    wins = np.mean([t.status is Status.SUCCESS for t in shown])
    assert 0.05 < wins < 0.9
    assert all(step.info["strict"] for t in shown for step in t.steps)
    same = components.play_demonstrations(40, 0.5, 0)
    assert [t.steps for t in shown] == [t.steps for t in same]
    assert [t.steps for t in components.play_demonstrations(40, 0.5, 1)] != [t.steps for t in shown]


def test_a_task_shown_again_is_shown_with_other_mistakes() -> None:
    components = small_components("recipe.name=grpo", "env.options={size=4, max_turns=3}")
    shown = components.play_demonstrations(20, 0.5, 0, times=3)
    assert [t.task.id for t in shown] == [t.task.id for t in shown[:20]] * 3
    turns = [[[s.action.action_ids.tolist() for s in t.steps] for t in shown[i::20]] for i in range(20)]  # type: ignore[union-attr]
    assert sum(one != two for one, two, _ in turns) > 10


def test_noise_of_one_is_random_play() -> None:
    components = small_components("recipe.name=grpo", "env.options={size=4, max_turns=3}")
    shown = components.play_demonstrations(60, 1.0, 0)
    assert np.mean([t.status is Status.SUCCESS for t in shown]) < 0.3


def test_an_env_without_an_oracle_cannot_be_demonstrated() -> None:
    components = small_components("recipe.name=grpo", "env.name=gymnasium:CartPole-v1", "env.options={}")
    with pytest.raises(ConfigError, match=r"warm_start\.num_demos: gymnasium:CartPole-v1 has no oracle"):
        components.play_demonstrations(4, 0.0, 0)
