"""The form of replies never outweighs the task unnoticed."""

from __future__ import annotations

import pytest

from stepwell.cli.main import main
from stepwell.config.loading import load_config
from stepwell.config.presets import list_preset_names
from stepwell.runs.build.components import Components
from stepwell.runs.build.env_defaults import load_own_config
from stepwell.runs.build.reward_balance import describe_imbalance
from stepwell.runs.plan.run_plan import plan_run

PENNY = "tests.runs.own_envs:PennyLine"
FEW = ("train.num_tasks=16", "eval.num_tasks=8")


def test_a_plan_in_which_solving_early_costs_reward_warns_with_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "frozenlake", f"env.name={PENNY}", "env.options={}", "--dry-run", *FEW]) == 0
    out = capsys.readouterr().out
    assert "form can outweigh the task: a success pays 1, 4 further turns in the required form pay 2" in out
    assert "set each to about 0.02" in out
    assert (
        "the preset frozenlake is tuned for frozenlake; its rewards, warm start and limits may not fit "
        f"{PENNY}" in out
    )
    assert f"stepwell train --env {PENNY}" in out


def test_settings_fitted_to_an_environment_need_no_warning() -> None:
    config, _ = load_own_config(PENNY, list(FEW))
    assert "form can outweigh" not in plan_run(config)


@pytest.mark.parametrize("name", ["frozenlake", "sokoban", "demo", "household-tiny", "shop-tiny"])
def test_in_our_presets_the_task_outweighs_the_form(name: str) -> None:
    assert name in list_preset_names()
    components = Components(load_config(name, list(FEW)))
    shown, max_turns = (
        components.play_demonstrations(4, 0.0, 0),
        components.language.agent.description.max_turns,
    )
    assert (
        describe_imbalance(shown, components.config.rewards, components.demonstrated_parts, max_turns) is None
    )
