"""Episodes played many at once: repeatable, rewarded by their parts, ended for the right reason."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from tests.runs.broken_envs import BrokenLake
from tests.runs.small import small_components

from stepwell.core import Request, Sampled, Split, Status, Task, Trajectory
from stepwell.rollout import Job, RolloutResult, episodes
from stepwell.runs.build.components import Components

ENVS = "tests.runs.broken_envs"


@pytest.fixture(scope="module")
def components() -> Components:
    return small_components("recipe.name=grpo")


def jobs_of(components: Components, num_tasks: int = 4, group_size: int = 3, seed: int = 0) -> list[Job]:
    tasks = components.tasks(Split.TRAIN, num_tasks, 0)
    return [Job(t, t.id, 1000 * seed + 10 * i + k) for i, t in enumerate(tasks) for k in range(group_size)]


def play(components: Components, jobs: list[Job], temperature: float = 1.0, **more: object) -> RolloutResult:
    components.engine.forget()
    return components.runner.rollout.run(jobs, components.sampling_params(temperature), **more)  # type: ignore[arg-type]


def written(trajectories: Sequence[Trajectory]) -> list[list[str]]:
    return [[step.action.text for step in t.steps] for t in trajectories]  # type: ignore[union-attr]


def test_the_same_seeds_play_the_same_episodes_bit_for_bit(components: Components) -> None:
    one, other = (play(components, jobs_of(components)).trajectories for _ in range(2))
    assert [t.steps for t in one] == [t.steps for t in other]
    assert [t.status for t in one] == [t.status for t in other]
    assert written(play(components, jobs_of(components, seed=1)).trajectories) != written(one)


def test_siblings_differ_and_greedy_ones_do_not(components: Components) -> None:
    jobs = jobs_of(components, num_tasks=3, group_size=4)
    texts = written(play(components, jobs).trajectories)
    assert all(len({str(t) for t in texts[start : start + 4]}) > 1 for start in (0, 4, 8))
    greedy = written(play(components, jobs, temperature=0.0).trajectories)
    assert all(len({str(t) for t in greedy[start : start + 4]}) == 1 for start in (0, 4, 8))


def test_more_jobs_than_envs_are_played_in_turns_of_the_same_outcome() -> None:
    settings = ("recipe.name=grpo", "engine.max_batch_size=2", "engine.num_slots=3")
    few, many = small_components(*settings), small_components("recipe.name=grpo")
    assert len(few.envs.envs) == 3 and len(many.envs.envs) == 8
    jobs = jobs_of(many, num_tasks=4, group_size=2)
    one, other = play(few, jobs).trajectories, play(many, jobs).trajectories
    assert written(one) == written(other)
    assert [t.info["seed"] for t in one] == [job.seed for job in jobs]


class Counted:
    """An engine whose calls are counted."""

    def __init__(self, engine: object) -> None:
        self._engine, self.num_calls = engine, 0

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        self.num_calls += 1
        return self._engine.generate_blocking(requests)  # type: ignore[attr-defined,no-any-return]


def test_an_episode_that_ends_makes_room_for_the_next_job_at_once() -> None:
    few = small_components("recipe.name=grpo", "engine.max_batch_size=2", "engine.num_slots=3")
    counted = Counted(few.engine)
    few.runner.rollout.sampler = counted
    played = play(few, jobs_of(few, num_tasks=10)).trajectories
    lengths = [len(trajectory.steps) for trajectory in played]
    ends = [0, 0, 0]  # by place: the turn at which it is free
    for length in lengths:
        ends.sort()
        ends[0] += length
    assert counted.num_calls == max(ends)
    in_batches = sum(max(lengths[start : start + 3]) for start in range(0, 30, 3))
    assert max(ends) < in_batches


def test_a_turn_is_recorded_as_it_was_seen_and_done(components: Components) -> None:
    for trajectory in play(components, jobs_of(components)).trajectories:
        assert trajectory.group == trajectory.task.id
        for before, after in zip(trajectory.steps, trajectory.steps[1:], strict=False):
            assert before.action.action_ids.size <= 10  # type: ignore[union-attr]
            exact = np.concatenate([before.state.prompt_ids, before.action.action_ids])  # type: ignore[union-attr]
            np.testing.assert_array_equal(after.state.prompt_ids[: exact.size], exact)  # type: ignore[union-attr]
        assert trajectory.info["num_actions"] <= sum(len(s.info["actions"]) for s in trajectory.steps)  # type: ignore[arg-type,operator]
        assert len(trajectory.steps) <= 2
        expected = trajectory.steps[-1].info["parts"]["outcome"] == 1.0  # type: ignore[index,call-overload]
        assert (trajectory.status is Status.SUCCESS) == expected


def test_the_reward_is_the_scaled_sum_of_the_parts_that_count() -> None:
    settings = ("recipe.name=turn-ppo", "rewards.scale=0.1", "rewards.format=0.5")
    components = small_components(*settings)
    rolled = [play(components, jobs_of(components), temperature) for temperature in (1.0, 3.0)]
    steps = [s for one in rolled for t in one.trajectories for s in t.steps]
    assert {bool(step.info["strict"]) for step in steps} == {True, False}
    assert {tuple(step.reward_parts) for step in steps} == {("task", "format")}
    for step in steps:
        every = step.info["parts"]
        assert step.reward == pytest.approx(0.1 * (every["task"] + every["format"]))  # type: ignore[index,call-overload,operator]
        assert every["format"] == 0.5 * step.info["strict"]  # type: ignore[index,call-overload,operator]
    assert any(step.reward_parts["task"] != 0 for step in steps)


def test_described_states_are_matched_with_true_ones_where_they_count() -> None:
    components = small_components("recipe.name=vagen-full", "agent.strategy=grounding_world_modeling")
    shown = components.play_demonstrations(4, 0.0, 0)
    for step in (step for t in shown for step in t.steps):
        assert set(step.reward_parts) == {"task", "format", "grounding", "world_modeling"}
        assert step.reward_parts["grounding"] == pytest.approx(0.1 * 0.5)
        assert step.reward_parts["world_modeling"] == pytest.approx(0.1 * 0.5)
        assert step.info["state"].keys() == {"natural_language"}  # type: ignore[union-attr]


# --- ends ---------------------------------------------------------------------------------------


def test_a_timeout_cuts_episodes_and_keeps_the_state_they_stood_in(
    components: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(components.engine)
    monkeypatch.setattr(episodes, "time", SimpleNamespace(perf_counter=lambda: slow.now_s))
    components.runner.rollout.sampler = slow
    try:
        rolled = play(components, jobs_of(components, group_size=2), timeout_s=5.0)
    finally:
        components.runner.rollout.sampler = components.engine
    assert slow.num_calls == 1 and rolled.failures == []
    cut = [t for t in rolled.trajectories if t.status is Status.TRUNCATED]
    assert cut
    for trajectory in cut:
        (step,) = trajectory.steps
        exact = np.concatenate([step.state.prompt_ids, step.action.action_ids])  # type: ignore[union-attr]
        after = trajectory.final_state.prompt_ids  # type: ignore[union-attr]
        assert after.size > exact.size
        np.testing.assert_array_equal(after[: exact.size], exact)


class Slow:
    """An engine that takes its time."""

    def __init__(self, engine: object) -> None:
        self._engine, self.num_calls, self.now_s = engine, 0, 0.0

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        self.num_calls += 1
        self.now_s += 6.0
        return self._engine.generate_blocking(requests)  # type: ignore[attr-defined,no-any-return]


def test_an_env_that_cuts_an_episode_leaves_the_state_after_its_last_action() -> None:
    components = small_components("recipe.name=grpo", f"env.name={ENVS}:CutLake")
    rolled = play(components, jobs_of(components))
    cut = [t for t in rolled.trajectories if t.status is Status.TRUNCATED]
    assert cut and all(len(t.steps) <= 2 for t in cut)
    for trajectory in cut:
        step = trajectory.steps[-1]
        exact = np.concatenate([step.state.prompt_ids, step.action.action_ids])  # type: ignore[union-attr]
        np.testing.assert_array_equal(trajectory.final_state.prompt_ids[: exact.size], exact)  # type: ignore[union-attr]


def first_prompt(components: Components) -> int:
    (task,) = components.tasks(Split.TRAIN, 1, 0)
    (turn,) = components.envs.reset([task])
    return components.backend.player.open_conversation(turn.observation).state.prompt_ids.size


def test_a_context_that_runs_full_cuts_the_episode_without_a_state_to_go_on_from(
    components: Components,
) -> None:
    tight = small_components("recipe.name=grpo", f"engine.max_length={first_prompt(components) + 10}")
    rolled = play(tight, jobs_of(tight))
    ended = {t.status for t in rolled.trajectories}
    assert Status.TRUNCATED in ended and rolled.failures == []
    for trajectory in rolled.trajectories:
        assert len(trajectory.steps) == 1
        if trajectory.status is Status.TRUNCATED:
            assert trajectory.final_state is None
            assert "must stay free for the action" in trajectory.error


def test_a_first_prompt_that_does_not_fit_is_an_episode_without_steps(components: Components) -> None:
    tight = small_components("recipe.name=grpo", f"engine.max_length={first_prompt(components) + 9}")
    rolled = play(tight, jobs_of(tight))
    assert {t.status for t in rolled.trajectories} == {Status.TRUNCATED}
    assert all(t.steps == [] and t.final_state is None for t in rolled.trajectories)


@pytest.mark.parametrize("place", ["begin", "act", "observe"])
def test_an_env_that_raises_is_tried_again_without_disturbing_the_others(place: str) -> None:
    settings = ("recipe.name=grpo", f"env.name={ENVS}:BrokenLake", f"env.options.place={place}")
    BrokenLake.num_raised = 10**9
    components = small_components(*settings)
    jobs = jobs_of(components)
    calm = play(components, jobs).trajectories
    components = small_components(*settings, "env.options.times=3")
    BrokenLake.num_raised = 0
    rolled = play(components, jobs, retries=2)
    assert BrokenLake.num_raised == 3
    assert rolled.num_retries == 3 and rolled.failures == []
    assert written(rolled.trajectories) == written(calm)


def test_what_keeps_failing_is_handed_back_apart(components: Components) -> None:
    BrokenLake.num_raised = 0
    broken = small_components("recipe.name=grpo", f"env.name={ENVS}:BrokenLake", "env.options.rows=[0]")
    jobs = jobs_of(broken, num_tasks=8, group_size=1)
    rolled = play(broken, jobs, retries=1)
    assert len(rolled.trajectories) + len(rolled.failures) == 8
    assert rolled.failures and rolled.trajectories
    for trajectory in rolled.failures:
        assert trajectory.status is Status.INFRA_ERROR and not trajectory.is_trainable
        assert "raised RuntimeError: the simulator is gone" in trajectory.error
    assert rolled.num_retries == len(rolled.failures)


def test_a_reward_that_is_no_number_is_the_envs_failure() -> None:
    components = small_components("recipe.name=grpo", f"env.name={ENVS}:RichLake", "env.options.reward=1e308")
    rolled = play(components, jobs_of(components))
    assert rolled.failures
    assert all("gave the reward inf; rewards must be finite" in t.error for t in rolled.failures)


def test_equal_boards_share_an_anchor_and_others_do_not(components: Components) -> None:
    jobs = jobs_of(components, num_tasks=3, group_size=2)
    trajectories = play(components, jobs).trajectories
    firsts = [t.steps[0].anchor for t in trajectories]
    assert firsts[0] == firsts[1] and firsts[2] == firsts[3] and len(set(firsts)) == 3


def test_a_task_of_another_env_is_a_failure_with_a_reason(components: Components) -> None:
    rolled = play(components, [Job(Task("chess", {"board": "8"}), "g", 0)])
    assert "belongs to 'chess'" in rolled.failures[0].error
