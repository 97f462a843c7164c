"""The time left of a run: every part counts as often as it is still to come."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runs.small import small_config

from stepwell.config.loading import load_config
from stepwell.core import Status, Step, Task, Trajectory
from stepwell.monitors.jsonl import read_entries
from stepwell.runs.loop.loop_state import LoopState
from stepwell.runs.loop.time_left import TimeLeft
from stepwell.runs.run import train


def make_time_left(*settings: str) -> TimeLeft:
    return TimeLeft(load_config(None, ["eval.num_tasks=8", "eval.every=10", *settings]))


def make_episodes(count: int, turns: int, reply: int) -> list[Trajectory]:
    steps = [Step.from_tokens([1, 2], [3] * reply, reward=0.0) for _ in range(turns)]
    return [Trajectory(Task("world", {"n": n}), steps, Status.SUCCESS) for n in range(count)]


def test_updates_and_evaluations_count_as_often_as_they_are_still_to_come() -> None:
    left = make_time_left("train.num_updates=40")
    left.count_eval(5.0)
    assert left.estimate_s(LoopState(evaluated_at=0), 9.0) is None  # what an update takes is not known
    left.count_update(2.0)
    assert left.estimate_s(LoopState(update=1, evaluated_at=0), 11.0) == pytest.approx(39 * 2.0 + 4 * 5.0)
    before_its_own = left.estimate_s(LoopState(update=10, evaluated_at=0), 29.0)
    assert before_its_own == pytest.approx(30 * 2.0 + 4 * 5.0)
    left.count_eval(3.0)
    after = left.estimate_s(LoopState(update=10, evaluated_at=0), 32.0, is_judged=True)
    assert after == pytest.approx(30 * 2.0 + 3 * 3.0)
    assert left.estimate_s(LoopState(update=40, evaluated_at=30), 99.0) == pytest.approx(3.0)
    assert left.estimate_s(LoopState(update=40, evaluated_at=40), 99.0) == 0.0


def test_a_run_of_no_updates_is_evaluated_once() -> None:
    left = make_time_left("train.num_updates=0", "eval.every=0")
    left.count_update(2.0)
    left.count_eval(5.0)
    assert left.estimate_s(LoopState(), 0.0) == pytest.approx(5.0)
    assert left.estimate_s(LoopState(evaluated_at=0), 0.0) == 0.0


def test_what_comes_after_the_last_evaluation_counts() -> None:
    left = make_time_left("train.num_updates=4")
    left.count_eval(5.0)
    left.count_end(9.0)
    left.count_update(2.0)
    assert left.estimate_s(LoopState(update=1, evaluated_at=0), 20.0) == pytest.approx(3 * 2.0 + 5.0 + 9.0)
    assert left.estimate_s(LoopState(update=4, evaluated_at=4), 40.0) == pytest.approx(9.0)


def test_a_warm_start_tells_the_time_left_of_the_whole_run() -> None:
    settings = ("warm_start.num_demos=64", "train.update_epochs=2", "train.group_size=2")
    left = make_time_left("train.num_updates=40", "train.tasks_per_update=16", *settings)
    left.count_imitation(1.6, 16, 5, 101, later=0)  # 0.1 s for each example
    assert left.estimate_s(LoopState(), 9.0) is None  # nothing was played yet
    left.count_check(2.0, make_episodes(4, 3, 10), make_episodes(4, 3, 10))  # 0.5 s for each episode
    update_s, eval_s = 32 * (0.5 + 2 * 0.1), 8 * 0.5
    assert left.estimate_s(LoopState(), 11.0) == pytest.approx(96 * 1.6 + 40 * update_s + 5 * eval_s)
    left.end_warm_start()
    assert left.estimate_s(LoopState(), 99.0) == pytest.approx(40 * update_s + 5 * eval_s)


@pytest.mark.parametrize(("form", "turns"), [(0.0, 2), (0.5, 3), (1.0, 4)])
def test_a_policy_that_knows_no_form_yet_is_expected_to_need_as_few_turns_and_tokens_as_shown(
    form: float, turns: int
) -> None:
    left = make_time_left("train.num_updates=1", "train.tasks_per_update=4", "train.group_size=1")
    left.count_imitation(0.4, 4, 1, 1, later=0)
    left.count_check(8.0, make_episodes(8, 4, 20), make_episodes(4, 2, 5), form)  # a quarter of the tokens
    update_s = 4 * (8.0 / 8 / 4 * turns / 4 + 0.1 * turns / 2)
    assert left.estimate_s(LoopState(evaluated_at=1), 9.0) == pytest.approx(update_s)


def test_the_start_of_kernels_does_not_count_for_every_update_of_a_warm_start() -> None:
    left = make_time_left("train.num_updates=1", "warm_start.num_demos=64")
    left.count_update(0.0)
    left.count_eval(0.0)
    told = []
    for number, took_s in enumerate((9.0, 3.0, 3.0, 3.0, 2.0, 2.0), 1):
        left.count_imitation(took_s, 16, number, 106, later=0)
        told.append(left.estimate_s(LoopState(update=1, evaluated_at=1), 0.0))
    assert told[3:] == pytest.approx([102 * 3.0, 101 * 2.0, 100 * 2.0])


def test_a_warm_start_with_a_goal_is_expected_to_end_early_and_its_checks_count() -> None:
    settings = ("warm_start.num_demos=64", "warm_start.stop_at=0.5", "warm_start.check_every=10")
    left = make_time_left("train.num_updates=1", *settings)
    left.count_update(0.0)
    left.count_check(2.0, make_episodes(4, 3, 10), make_episodes(4, 3, 10))
    left.count_eval(0.0)
    told = []
    for number in (10, 50, 90, 100):
        left.count_imitation(1.0, 16, number, 100, later=0)
        told.append(left.estimate_s(LoopState(update=1, evaluated_at=1), 0.0))
    assert told == pytest.approx([15 * 1.2, 50 / 3 * 1.2, 10 * 1.2, 0.0])


def test_demonstrations_that_follow_chats_count() -> None:
    left = make_time_left("train.num_updates=1", "warm_start.num_demos=64")
    left.count_update(0.0)
    left.count_eval(0.0)
    left.count_imitation(1.0, 16, 5, 20, later=30)
    assert left.estimate_s(LoopState(update=1, evaluated_at=1), 0.0) == pytest.approx(45.0)


def test_the_time_left_ends_at_the_limit_of_environment_steps() -> None:
    left = make_time_left("train.num_updates=200", "train.max_env_steps=3000")
    left.count_eval(5.0)
    left.count_update(2.0)
    early = left.estimate_s(LoopState(update=1, env_steps=100, evaluated_at=0), 7.0)
    assert early == pytest.approx(29 * 2.0 + 3 * 5.0)
    later = left.estimate_s(LoopState(update=10, env_steps=1000, evaluated_at=10), 30.0)
    assert later == pytest.approx(20 * 2.0 + 2 * 5.0)
    assert left.estimate_s(LoopState(update=30, env_steps=3000, evaluated_at=30), 85.0) == 0.0


def test_the_time_left_ends_at_the_time_limit_which_the_warm_start_comes_before() -> None:
    left = make_time_left("train.num_updates=270", "train.max_seconds=215", "eval.num_tasks=0")
    left.count_imitation(1.0, 16, 10, 100, later=0)
    left.count_update(2.0)
    left.count_end(4.0)
    assert left.estimate_s(LoopState(), 40.0) == pytest.approx(90.0 + 215.0 + 4.0)
    left.end_warm_start()
    told = left.estimate_s(LoopState(update=1, warm_start_s=300.0, evaluated_at=0), 302.0)
    assert told == pytest.approx(213.0 + 4.0)
    assert left.estimate_s(LoopState(update=1, evaluated_at=0), 302.0) == pytest.approx(
        4.0
    )  # none came before


def test_single_long_updates_do_not_move_the_time_left() -> None:
    left = make_time_left("train.num_updates=40", "eval.num_tasks=0")
    for took_s in (13.0, 2.0):
        left.count_update(took_s)
    assert left.estimate_s(LoopState(update=2), 15.0) == pytest.approx(38 * 2.0)
    for k in range(3, 21):
        left.count_update(30.0 if k in (9, 15) else 2.0)
    assert left.estimate_s(LoopState(update=20), 107.0) == pytest.approx(20 * 2.0)


def test_a_run_that_resumes_knows_how_long_its_parts_take() -> None:
    first = make_time_left("train.num_updates=40")
    first.count_update(2.0)
    first.count_eval(5.0)
    first.count_end(9.0)
    resumed = make_time_left("train.num_updates=40")
    resumed.restore(first.as_dict())
    state = LoopState(update=20, evaluated_at=20)
    assert resumed.estimate_s(state, 60.0) == first.estimate_s(state, 60.0) == pytest.approx(59.0)


def test_a_run_tells_the_time_left_from_the_warm_start_to_the_end(tmp_path: Path) -> None:
    warm = ("warm_start.num_demos=8", "warm_start.batch_size=4", "warm_start.epochs=3")
    folder = train(small_config(*warm, "monitor.report=true", folder=tmp_path))
    entries = [entry for entry in read_entries(folder / "metrics.jsonl") if entry.kind != "event"]
    told = [(entry.kind, entry.values.get("step"), entry.left_s) for entry in entries]
    assert [(kind, step) for kind, step, _ in told[:2]] == [("warm_start", 4.0), ("warm_start", 6.0)]
    assert all(left_s is not None and left_s > 0 for _, _, left_s in told)
    assert told[-1][0] == "eval"  # replays and the report come after it
