"""Minibatches: whole groups, balanced, and laid out as a person would by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training.made import made

from stepwell.algos import Timeline
from stepwell.core import InputError, Status, Trajectory
from stepwell.training import TrajectoryMinibatch, split_trajectories

CPU = torch.device("cpu")


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12), count=st.integers(1, 15))
def test_parts_keep_groups_whole_and_in_order(sizes: list[int], count: int) -> None:
    trajectories = [made([1.0], group=f"g{i}") for i, size in enumerate(sizes) for _ in range(size)]
    parts = split_trajectories(trajectories, count)
    assert [t.id for part in parts for t in part] == [t.id for t in trajectories]
    groups = [{t.group for t in part} for part in parts]
    assert sum(len(names) for names in groups) == len(sizes)
    assert 1 <= len(parts) <= min(count, len(sizes))
    share = len(trajectories) / count
    assert all(len(part) < share + 2 * max(sizes) for part in parts)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    count=st.integers(1, 15),
    seed=st.integers(0, 9),
)
def test_shuffled_parts_hold_the_same_groups_whole(sizes: list[int], count: int, seed: int) -> None:
    trajectories = [made([1.0], group=f"g{i}") for i, size in enumerate(sizes) for _ in range(size)]
    parts = split_trajectories(trajectories, count, np.random.default_rng(seed))
    assert sorted(t.id for part in parts for t in part) == sorted(t.id for t in trajectories)
    assert sum(len({t.group for t in part}) for part in parts) == len(sizes)
    again = split_trajectories(trajectories, count, np.random.default_rng(seed))
    assert [[t.id for t in part] for part in parts] == [[t.id for t in part] for part in again]


def test_parts_of_what_ended_early_and_late_are_mixed() -> None:
    early, late = [made([1.0]) for _ in range(64)], [made([0.0]) for _ in range(64)]
    parts = split_trajectories([*early, *late], 4, np.random.default_rng(0))
    assert all(8 <= sum(t.steps[0].reward for t in part) <= 24 for part in parts)
    whole = split_trajectories([*early, *late], 1, np.random.default_rng(0))
    assert whole == [[*early, *late]]  # one part needs no mixing


@given(num_groups=st.integers(1, 40), size=st.integers(1, 4), count=st.integers(1, 50))
def test_equal_groups_are_dealt_out_evenly(num_groups: int, size: int, count: int) -> None:
    trajectories = [made([1.0], group=f"g{i}") for i in range(num_groups) for _ in range(size)]
    lengths = [len(part) for part in split_trajectories(trajectories, count)]
    assert len(lengths) == min(count, num_groups)
    assert max(lengths) - min(lengths) <= size


def test_130_trajectories_in_3_parts_are_44_43_43() -> None:
    assert [len(part) for part in split_trajectories([made([1.0]) for _ in range(130)], 3)] == [44, 43, 43]


def test_trajectories_without_a_group_stand_alone_and_scattered_siblings_meet() -> None:
    a, b, c, d = made([1.0], group="g"), made([1.0]), made([1.0], group="g"), made([1.0])
    assert split_trajectories([a, b, c, d], 2) == [[a, c], [b, d]]


def hand_made() -> list[Trajectory]:
    return [
        made([0.5, 1.0], group="g", lengths=[2, 3], anchors=["x", "y"], status=Status.SUCCESS),
        made([0.0], group="g", lengths=[1], anchors=["x"], status=Status.TRUNCATED, final=[1, 2, 3, 10, 4]),
        made([2.0], group="h", lengths=[2], anchors=["x"]),
    ]


def test_the_timeline_is_the_one_written_by_hand() -> None:
    found = TrajectoryMinibatch(hand_made(), CPU).timeline
    expected = Timeline.from_lists(
        [[0.5, 1.0], [0.0], [2.0]],
        tokens_per_step=[[2, 3], [1], [2]],
        groups=["g", "g", "h"],
        anchors=[["gx", "gy"], ["gx"], ["hx"]],
    )
    for name in ("steps_per_trajectory", "tokens_per_step", "rewards", "groups", "anchors"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_steps_without_an_anchor_share_none() -> None:
    batch = TrajectoryMinibatch([made([0.0, 0.0], group="g"), made([0.0], group="g")], CPU)
    assert batch.timeline.read_anchor_labels().tolist() == [0, 1, 2]


def test_the_bootstrap_is_the_value_of_the_state_after_a_cut() -> None:
    batch = TrajectoryMinibatch(hand_made(), CPU, with_bootstrap=True)
    assert batch.num_step_values == 8 + 4
    assert len(batch.packed.action_lengths) == 5 and batch.packed.action_lengths[-1] == 0
    values = torch.arange(13.0)
    assert batch.bootstrap_values(values).tolist() == [0.0, 12.0, 0.0]  # type: ignore[union-attr]


def test_without_the_wish_or_the_state_there_is_no_bootstrap() -> None:
    assert TrajectoryMinibatch(hand_made(), CPU).bootstrap_values(torch.arange(12.0)) is None
    whole = [made([1.0], status=Status.FAILURE, final=[1, 2]), made([1.0], status=Status.TRUNCATED)]
    assert TrajectoryMinibatch(whole, CPU, with_bootstrap=True).bootstrap_values(torch.arange(6.0)) is None


def test_demonstrations_have_no_behaviour_to_compare_with() -> None:
    shown = made([1.0])
    shown.steps[0].behavior_logprobs = shown.steps[0].behavior_logprobs[:0]
    assert TrajectoryMinibatch([made([1.0]), shown], CPU).behavior_logprobs is None
    assert TrajectoryMinibatch([made([1.0])], CPU).behavior_logprobs.tolist() == [-1.0, -1.0]  # type: ignore[union-attr]


def test_a_reward_that_was_not_assigned_is_refused() -> None:
    trajectory = made([1.0])
    trajectory.steps[0].reward = None
    with pytest.raises(InputError, match="reward is None"):
        _ = TrajectoryMinibatch([trajectory], CPU).timeline
