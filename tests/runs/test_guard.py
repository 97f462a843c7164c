"""Guards against collapse: too large a change of the policy, and a fall of success."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runs.small import notes, small_config
from tests.runs.test_resume import cut_back, same
from tests.training.made import sampled
from tests.training.test_trainer import trainer, weights

from stepwell.algos.recipes import find_recipe
from stepwell.config.guard import GuardConfig
from stepwell.monitors.jsonl import read_entries
from stepwell.monitors.summary import read_summary
from stepwell.runs.loop.differences import list_differences
from stepwell.runs.loop.loop_state import LoopState
from stepwell.runs.loop.success_guard import measure_fall
from stepwell.runs.plan.run_plan import plan_run
from stepwell.runs.run import train
from stepwell.training.checkpoint import list_checkpoints, prune_checkpoints

# a rate that ruins the model at once; six held-out tasks tell little, so half an error counts as a fall
RUIN = (
    "recipe.name=grpo",
    "train.num_updates=6",
    "train.optimizer.learning_rate=0.3",
    "eval.every=2",
    "eval.num_tasks=12",
    "checkpoint.keep=9",
    "train.guard={on_fall='roll_back', fall_threshold=0.5}",
)


def evaluated(success: float, best: float, num_tasks: float = 100) -> LoopState:
    values = [{"success": share, "num_tasks": num_tasks} for share in (success, best)]
    return LoopState(last=values[0], best_values=values[1], best=best, best_update=1)


def test_only_a_fall_beyond_chance_counts() -> None:
    guard = GuardConfig()
    assert measure_fall(evaluated(0.70, 0.80), guard) is None
    assert measure_fall(evaluated(0.80, 0.80), guard) is None
    assert measure_fall(evaluated(0.24, 0.80), guard) == pytest.approx(7.9, abs=0.2)
    assert measure_fall(evaluated(0.24, 0.80, num_tasks=8), guard) is None
    assert measure_fall(evaluated(0.24, 0.80), GuardConfig(on_fall="ignore")) is None


def test_an_update_ends_when_the_policy_is_too_far_from_the_one_that_sampled() -> None:
    _, trajectories = sampled()
    settings = {"optimizer": {"learning_rate": 1e-2}, "minibatches": 3}
    free = trainer("steppo", **settings).update(trajectories)
    assert free["update_kl"] > 0.01 and "guard/left_out" not in free
    held = trainer("steppo", guard={"max_kl": 1e-3}, **settings)
    metrics = held.update(trajectories)
    assert metrics["guard/left_out"] == 2.0 and metrics["guard/last_kl"] > 1e-3
    (state,) = held.optimizer.state_dict()
    assert {int(entry["step"]) for entry in state["state"].values()} == {1}
    loose, plain = trainer("steppo", guard={"max_kl": 1e3}, **settings), trainer("steppo", **settings)
    assert loose.update(trajectories)["guard/left_out"] == 0.0
    plain.update(trajectories)
    assert all((a == b).all() for a, b in zip(weights(loose).values(), weights(plain).values(), strict=True))


@pytest.fixture(scope="module")
def ruined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small_config(*RUIN, folder=tmp_path_factory.mktemp("ruin")))


def test_a_fall_rolls_back_is_told_and_lowers_the_rates(ruined: Path) -> None:
    told = [note for note in notes(ruined) if "held-out success fell from" in note]
    assert (
        told and "rolled back to the weights of update 0 (1 so far); learning rates are 0.5 times" in told[0]
    )
    found = read_entries(ruined / "metrics.jsonl")
    updates = [entry.values for entry in found if entry.kind == "update"]
    assert updates[0]["guard/rollbacks"] == 0 and updates[-1]["guard/rollbacks"] >= 1
    assert updates[2]["learning_rate"] == pytest.approx(0.15)
    summary = read_summary(ruined)
    assert summary.more["num_rollbacks"] == len(told)
    assert summary.after is not None and summary.best is not None
    assert summary.after.success >= summary.best.success - 1e-9  # the last weights are good ones again


@pytest.mark.slow
def test_a_resumed_run_rolls_back_where_the_whole_one_did(ruined: Path, tmp_path: Path) -> None:
    copy = cut_back(ruined, tmp_path / "run", 2)
    train(resume=copy)
    same(ruined, copy)
    assert read_summary(copy).more["num_rollbacks"] == read_summary(ruined).more["num_rollbacks"] > 1


def test_the_last_good_checkpoint_is_not_pruned(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"update-{number:06d}").mkdir()
    prune_checkpoints(tmp_path, 2, protected=1)
    assert [path.name[-1] for path in list_checkpoints(tmp_path)] == ["1", "3", "4"]


def test_without_the_setting_a_fall_is_told_and_nothing_else(tmp_path: Path) -> None:
    run = train(
        small_config(*RUIN[:-1], "train.guard.fall_threshold=0.5", "train.num_updates=2", folder=tmp_path)
    )
    (told,) = [note for note in notes(run) if "held-out success fell from" in note]
    assert "rolled back" not in told and "num_rollbacks" not in read_summary(run).more


def test_a_limit_of_kl_that_cannot_act_is_told(tmp_path: Path) -> None:
    def says_so(name: str, *settings: str) -> bool:
        base = ("train.num_updates=0", "eval.num_tasks=0", "recipe.name=filtered-bc")
        run = train(small_config(*base, *settings, folder=tmp_path, name=name))
        return any("train.guard.max_kl cannot act" in note for note in notes(run))

    assert says_so("one", "train.guard.max_kl=0.05")
    plan = plan_run(small_config("train.guard.max_kl=0.05"))
    assert "train.guard.max_kl cannot act" in plan
    assert not says_so("minibatches", "train.guard.max_kl=0.05", "train.minibatches=2")
    assert not says_so("none")


def test_a_level_of_recomputation_that_needs_a_gpu_is_told_on_cores() -> None:
    said = "policy.gradient_checkpointing=offload saves memory on a GPU; on cores it does nothing"
    assert said in plan_run(small_config("policy.gradient_checkpointing=offload"))
    assert said in plan_run(
        small_config(
            "policy.gradient_checkpointing=offload",
            'workers.trainers.devices=["cpu", "cpu"]',
            "workers.mode=stream",
        )
    )
    assert "on cores it does nothing" not in plan_run(small_config("policy.gradient_checkpointing=full"))


def test_a_run_whose_ratios_cannot_move_says_so(tmp_path: Path) -> None:
    def says_so(name: str, *settings: str) -> bool:
        run = train(
            small_config("train.num_updates=0", "eval.num_tasks=0", *settings, folder=tmp_path, name=name)
        )
        return any("every ratio is 1" in note for note in notes(run))

    assert says_so("one", "recipe.name=grpo")
    assert not says_so("minibatches", "recipe.name=grpo", "train.minibatches=2")
    assert not says_so("passes", "recipe.name=grpo", "train.update_epochs=2")
    assert not says_so("imitation", "recipe.name=filtered-bc")


def test_ratios_of_old_episodes_cannot_move_in_one_step_either() -> None:
    def list_notes(*settings: str, has_replay: bool = False) -> list[str]:
        config = small_config("recipe.name=grpo", *settings)
        recipe = find_recipe("grpo")
        return list(list_differences(config, recipe, num_tasks=0, num_held_out=0, has_replay=has_replay))

    (stream,), (replay,) = list_notes("workers.mode=stream"), list_notes(has_replay=True)
    assert stream == replay and "every ratio is 1" in stream and "older weights" in stream
    (plain,) = list_notes()
    assert "older weights" not in plain
    assert not list_notes("workers.mode=stream", "train.minibatches=2")
    assert not list_notes("offline.pool=other.db")  # compared with whoever sampled them


def test_a_clip_that_a_ratio_over_long_replies_never_reaches_is_told() -> None:
    def is_told(name: str, *settings: str, **options: bool) -> bool:
        config = small_config("train.minibatches=2", "sampling.max_tokens=110", *settings)
        counts = {"num_tasks": 0, "num_held_out": 0, "has_replay": False}
        told = list_differences(config, find_recipe(name), **counts, **options)
        return any("the learning rate alone bounds an update" in note for note in told)

    assert is_told("steppo")
    assert not is_told("ppo") and not is_told("gspo")  # its clip fits a mean over many tokens
    assert not is_told("steppo", "sampling.max_tokens=12")
    assert not is_told("steppo", "train.guard.max_kl=0.05")
    assert not is_told("steppo", "train.minibatches=1")  # which has a note of its own
    assert not is_told("steppo", has_words=False)
