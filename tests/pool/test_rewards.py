"""Rewards that come late: corrections with a history, and new scores for what is stored."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pool.made import TASK, step, trajectory
from tests.properties import examples

from stepwell.core import InputError, Status, Step, Trajectory, make_id
from stepwell.pool import Filter, Pool

shared_pool = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(25))


def parts(pool: Pool, id: str) -> list[dict[str, float]]:
    return [each.reward_parts for each in pool.get(id).trajectory.steps]


def total(pool: Pool, id: str) -> float | None:
    return next(pool.find(Filter(ids=[id]))).reward


def test_the_newest_value_of_a_part_counts_and_every_one_is_kept(pool: Pool) -> None:
    pool.add([trajectory("a", [step(0, reward=0.5), step(1)])])
    assert total(pool, "a") == 0.5
    pool.reward("a", 1.0, step=1, source="judge")
    pool.reward("a", 0.25, step=1, part="format")
    pool.reward("a", -1.0, step=1, source="person")
    pool.reward("a", 2.0, step=0)
    assert parts(pool, "a") == [{"task": 2.0}, {"task": -1.0, "format": 0.25}]
    assert [s.reward for s in pool.get("a").trajectory.steps] == [2.0, -0.75]
    assert total(pool, "a") == 1.25
    history = [(r.step, r.part, r.value, r.source) for r in pool.get("a").reward_history]
    assert history == [
        (1, "task", 1.0, "judge"), (1, "format", 0.25, ""), (1, "task", -1.0, "person"), (0, "task", 2.0, ""),
    ]  # fmt: skip


def test_a_reward_for_no_step_is_one_for_the_last_step_of_the_path(pool: Pool) -> None:
    pool.begin(TASK, id="a")
    pool.reward("a", 1.0)  # before there is any step
    pool.append("a", 0, [step(n) for n in range(4)])
    assert parts(pool, "a")[-1] == {"task": 1.0}
    pool.finish("a", Status.SUCCESS, path=[0, 2])
    assert [s.reward for s in pool.get("a").trajectory.steps] == [None, 1.0]
    pool.reward("a", 3.0)
    assert [s.reward for s in pool.get("a", with_branches=True).trajectory.steps] == [None, None, 3.0, None]
    assert total(pool, "a") == 3.0


def test_a_reward_without_parts_counts_as_the_task_part(pool: Pool) -> None:
    bare = Step.from_tokens([1], [2], reward=0.5)
    pool.add([trajectory("a", [bare]), trajectory("b", [bare])])
    pool.reward("a", 2.0)
    pool.reward("b", 2.0, part="format")
    assert parts(pool, "a") == [{"task": 2.0}]
    assert parts(pool, "b") == [{"task": 0.5, "format": 2.0}]


def test_corrections_reach_what_is_served(pool: Pool) -> None:
    pool.add([trajectory("a", [step(0, reward=0.0)])])
    pool.reward("a", 1.0)
    assert pool.take("me", 1)[0].trajectories[0].total_reward == 1.0


def test_a_reward_for_a_step_that_is_not_there_is_refused(pool: Pool) -> None:
    pool.add([trajectory("a", [step(0), step(1)]), trajectory("empty", [])])
    with pytest.raises(InputError, match="has no step 2; it has steps 0 to 1"):
        pool.reward("a", 1.0, step=2)
    with pytest.raises(InputError, match="finished without steps"):
        pool.reward("empty", 1.0)
    with pytest.raises(InputError, match="rewards must be finite"):
        pool.reward("a", float("nan"))
    assert pool.get("a").reward_history == ()


@shared_pool
@given(
    given_first=st.lists(st.none() | st.floats(-10, 10), min_size=1, max_size=4),
    later=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["task", "format"]), st.floats(-10, 10)), max_size=6
    ),
)
def test_the_listed_sum_is_the_sum_of_what_is_read(
    pool: Pool, given_first: list[float | None], later: list[tuple[int, str, float]]
) -> None:
    id = make_id("t")
    pool.add([trajectory(id, [step(n, reward=value) for n, value in enumerate(given_first)])])
    for number, part, value in later:
        pool.reward(id, value, step=number % len(given_first), part=part)
    values = [each.reward for each in pool.get(id).trajectory.steps if each.reward is not None]
    assert total(pool, id) == (pytest.approx(sum(values)) if values else None)


def test_rescoring_writes_corrections_and_only_where_something_changes(pool: Pool) -> None:
    pool.add([trajectory(f"t{n}", [step(0, reward=float(n)), step(1)]) for n in range(3)])

    def score(found: Trajectory) -> list[dict[str, float]]:
        return [{"task": 2.0 if found.id == "t2" else 5.0}, {"judge": 1.0} if found.id == "t1" else {}]

    where = Filter(min_reward=1.0)
    assert pool.rescore(score, where, source="judge-2") == 1  # t2 has those values already
    assert parts(pool, "t1") == [{"task": 5.0}, {"judge": 1.0}]
    assert parts(pool, "t0") == [{"task": 0.0}, {}] and pool.get("t2").reward_history == ()
    assert {entry.source for entry in pool.get("t1").reward_history} == {"judge-2"}
    assert pool.rescore(score, where, source="again") == 0
    with pytest.raises(InputError, match="1 values for 2 steps"):
        pool.rescore(lambda found: [{}], where, source="short")


def test_rescoring_respects_the_path(pool: Pool) -> None:
    pool.begin(TASK, id="a")
    pool.append("a", 0, [step(n) for n in range(3)])
    pool.finish("a", Status.SUCCESS, path=[1, 2])
    pool.rescore(lambda found: [{"task": 1.0}, {"task": 2.0}], source="s")
    assert [s.reward for s in pool.get("a", with_branches=True).trajectory.steps] == [None, 1.0, 2.0]
