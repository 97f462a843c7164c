"""Credit of an update is that of its start and of its whole batch, however it is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.training.made import made, sampled
from tests.training.test_trainer import trainer

from stepwell.algos import CreditResult, Timeline
from stepwell.algos.declarations import FunctionSpec, credit
from stepwell.algos.recipes import RECIPES
from stepwell.core import ConfigError, Trajectory
from stepwell.training import TrajectoryMinibatch
from stepwell.training.update_credit import compute_update_credit, join_timelines, read_values_at

CPU = torch.device("cpu")
WITH_CREDIT = [name for name, recipe in RECIPES.items() if recipe.credit is not None]


def parts(trajectories: list[Trajectory], sizes: list[int]) -> list[TrajectoryMinibatch]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [TrajectoryMinibatch(trajectories[a:b], CPU) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def episodes() -> list[Trajectory]:
    """Three groups of two, of unequal lengths and returns."""
    rewards = [[0.0, 1.0], [0.0], [0.0, 0.0, 1.0], [1.0], [0.0], [0.0, 0.0]]
    lengths = [[2, 1], [3], [1, 1, 2], [2], [1], [4, 2]]
    return [
        made(r, lengths=n, group=str(i // 2), anchors=["same"] * len(r))
        for i, (r, n) in enumerate(zip(rewards, lengths, strict=True))
    ]


@pytest.mark.parametrize("name", WITH_CREDIT)
def test_the_parts_of_a_batch_get_the_credit_of_the_whole(name: str) -> None:
    recipe, draw = RECIPES[name], torch.Generator().manual_seed(0)
    timelines = []
    for minibatch in parts(episodes(), [2, 4]):
        plain = minibatch.timeline
        timelines.append(
            replace(
                plain,
                token_values=torch.rand(plain.num_tokens, generator=draw),
                end_values=torch.rand(plain.num_steps, generator=draw),
                token_rewards=torch.rand(plain.num_tokens, generator=draw),
                instruction_values=torch.rand(plain.num_trajectories, generator=draw),
            )
        )
    (whole,), told = compute_update_credit(recipe, [join_timelines(timelines)], 4)
    cut, told_cut = compute_update_credit(recipe, timelines, 4)
    torch.testing.assert_close(torch.cat([one.advantages for one in cut]), whole.advantages)
    assert told.keys() == told_cut.keys()
    for field in ("step_advantages", "keep", "instruction_targets"):
        if (found := getattr(whole, field)) is not None:
            torch.testing.assert_close(torch.cat([getattr(one, field) for one in cut]), found)
    if whole.value_targets is not None:
        assert sorted(torch.cat([one.value_targets for one in cut]).tolist()) == sorted(
            whole.value_targets.tolist()
        )
        for one, timeline in zip(cut, timelines, strict=True):
            values = torch.cat(
                [read_values_at(timeline, site[None]) for site in one.value_sites]  # type: ignore[union-attr]
            )
            flat = read_values_at(timeline, one.value_sites)  # type: ignore[arg-type]
            torch.testing.assert_close(values, flat)
            assert int(one.value_index.max()) < timeline.num_tokens + timeline.num_steps


def test_siblings_of_another_part_are_no_siblings() -> None:
    one, other = (minibatch.timeline for minibatch in parts(episodes(), [2, 4]))
    joined = join_timelines([one, other])
    assert joined.read_group_labels().tolist() == [0, 0, 1, 1, 2, 2]
    assert len(set(joined.read_anchor_labels().tolist())) == 3


@pytest.mark.parametrize("name", ["steppo", "ppo", "vagen-full"])
def test_values_and_targets_are_those_of_the_updates_start_in_every_minibatch(name: str) -> None:
    _, trajectories = sampled()
    seen = []
    for minibatches, rate in ((1, 1e-2), (3, 1e-9), (3, 1e-2)):
        one = trainer(name, minibatches=minibatches, optimizer={"learning_rate": rate})
        seen.append(one.update(trajectories)["explained_variance"])
    # what the first minibatch teaches the critic changes nothing of what the others see as its values
    assert seen[0] == pytest.approx(seen[1], rel=1e-4) and seen[1] == seen[2]


def test_a_minibatch_of_which_nothing_is_kept_teaches_the_critic_alone() -> None:
    won, lost = made([1.0], group="won"), [made([0.0], group=str(i)) for i in range(5)]
    one = trainer("digirl", minibatches=3)
    before = {name: weight.clone() for name, weight in one.policy.state_dict().items()}
    metrics = one.update([won, *lost])
    assert metrics["loss/value"] > 0
    after = one.policy.state_dict()
    assert not torch.equal(before["critic.head.weight"], after["critic.head.weight"])
    assert trainer("digirl").update(lost)["loss/policy"] == 0.0  # nothing to imitate at all


@credit(compares_siblings=True)
def nothing_for_long_batches(timeline: Timeline) -> CreditResult | None:
    few = timeline.num_trajectories < 6
    return CreditResult.of_trajectories(timeline, timeline.returns) if few else None


@credit(compares_siblings=True)
def nan_for_long_batches(timeline: Timeline) -> CreditResult:
    scale = 1.0 if timeline.num_trajectories < 6 else float("nan")
    return CreditResult.of_trajectories(timeline, scale * timeline.returns)


@credit(compares_siblings=True)
def failing_for_long_batches(timeline: Timeline) -> CreditResult:
    return CreditResult.of_trajectories(timeline, timeline.returns / (1 // (6 - timeline.num_trajectories)))


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (nothing_for_long_batches, "must return a CreditResult with an advantage for each of the 19 action"),
        (nan_for_long_batches, "gave the advantage nan"),
        (failing_for_long_batches, "ZeroDivisionError"),
    ],
)
def test_a_credit_function_of_ones_own_that_fails_in_a_run_is_named(function: object, told: str) -> None:
    recipe = RECIPES["grpo"].with_credit(FunctionSpec.of(function))  # type: ignore[arg-type]
    (whole,) = parts(episodes(), [6])
    with pytest.raises(ConfigError, match=f"(?s)recipe.credit: .*long_batches.*{told}"):
        compute_update_credit(recipe, [whole.timeline], 4)
