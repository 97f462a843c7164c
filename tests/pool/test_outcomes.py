"""Judged outcomes: beside the status, corrected later, and what success means where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pool.made import TASK, step, trajectory

from stepwell.core import InputError, Outcome, OutcomeSource, Status, make_id
from stepwell.pool import Filter, Pool, open_pool
from stepwell.rewards import apply_outcomes

outcomes = st.builds(
    Outcome, st.floats(0, 1), st.sampled_from(OutcomeSource), st.sampled_from(["", "orm-3", "anna"])
)
shared_pool = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)


def test_the_newest_outcome_counts_and_every_one_is_kept(pool: Pool) -> None:
    pool.add([trajectory("a", status=Status.FAILURE), trajectory("b")])
    given = [Outcome(0.2, "outcome_model", "orm-3"), Outcome(1.0, "human")]
    for outcome in given:
        pool.assign_outcome("a", outcome)
    found = pool.get("a")
    assert [entry.outcome for entry in found.outcome_history] == given
    assert found.trajectory.outcome == found.entry.outcome == given[-1]
    assert found.trajectory.status is Status.FAILURE and found.trajectory.is_success
    assert pool.get("b").outcome_history == () and pool.get("b").trajectory.is_success
    assert pool.stats().num_outcomes == 2
    served = {t.id: t.outcome for group in pool.take("me", 2) for t in group.trajectories}
    assert served == {"a": given[-1], "b": None}
    assert {t.id: t.is_success for t in pool.trajectories()} == {"a": True, "b": True}


def test_an_open_trajectory_can_be_judged_and_an_unknown_one_cannot(pool: Pool) -> None:
    pool.begin(TASK, id="a")
    pool.assign_outcome("a", Outcome(0.75, "checker"))
    assert pool.count(Filter(is_success=True)) == pool.count(Filter(is_success=False)) == 0  # not over yet
    pool.append("a", 0, [step(0)])
    pool.finish("a", Status.TRUNCATED)
    assert pool.count(Filter(is_success=True)) == 1
    with pytest.raises(InputError, match="'b' is not in the pool"):
        pool.assign_outcome("b", Outcome(1.0, "human"))


def test_outcomes_given_together_are_all_stored_or_none(pool: Pool) -> None:
    pool.add([trajectory("a"), trajectory("b")])
    no = Outcome(0.25, "outcome_model", "orm-3")
    with pytest.raises(InputError, match="'c' is not in the pool"):
        pool.assign_outcomes({"a": no, "b": no, "c": no})
    assert pool.stats().num_outcomes == 0 and pool.get("a").trajectory.is_success
    pool.assign_outcomes({"a": no, "b": no})
    assert [entry.outcome for entry in pool.find(Filter(is_success=False))] == [no, no]


@shared_pool
@given(
    cases=st.lists(st.tuples(st.sampled_from(Status), st.lists(outcomes, max_size=3)), max_size=6),
    with_first=st.booleans(),
)
def test_filters_agree_with_what_is_read(
    pool: Pool, cases: list[tuple[Status, list[Outcome]]], with_first: bool
) -> None:
    tag = make_id("case")
    made = [trajectory(make_id("t"), status=status) for status, _ in cases]
    for one, (_, judged) in zip(made, cases, strict=True):
        one.outcome = judged[0] if judged and with_first else None
    pool.add(made, tags=[tag])
    for one, (_, judged) in zip(made, cases, strict=True):
        for outcome in judged[with_first:]:
            pool.assign_outcome(one.id, outcome)
        assert [entry.outcome for entry in pool.get(one.id).outcome_history] == judged
    read = list(pool.trajectories(Filter(tags=[tag])))
    assert [t.outcome for t in read] == [judged[-1] if judged else None for _, judged in cases]
    solved = [entry.id for entry in pool.find(Filter(tags=[tag], is_success=True))]
    failed = [entry.id for entry in pool.find(Filter(tags=[tag], is_success=False))]
    assert solved == [t.id for t in read if t.is_success]
    assert failed == [t.id for t in read if not t.is_success and t.status is not Status.INFRA_ERROR]


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_outcomes_travel_with_a_file_and_older_files_have_none(
    pool: Pool, tmp_path: Path, ending: str
) -> None:
    pool.add([trajectory("a"), trajectory("b")])
    pool.assign_outcome("a", Outcome(0.25, "endpoint", "gpt"))
    pool.assign_outcome("a", Outcome(0.125, "human"))
    file = tmp_path / f"x.{ending}"
    pool.export(file)
    with open_pool(tmp_path / "other.db") as other:
        assert other.import_(file) == 2
        assert other.get("a").outcome_history == pool.get("a").outcome_history
        assert not other.get("a").trajectory.is_success and other.get("b").trajectory.outcome is None
        assert [entry.id for entry in other.find(Filter(is_success=False))] == ["a"]


def test_a_parquet_file_without_the_column_of_outcomes_is_read(pool: Pool, tmp_path: Path) -> None:
    import pyarrow.parquet

    pool.add([trajectory("a")])
    pool.export(tmp_path / "x.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "x.parquet")
    pyarrow.parquet.write_table(table.drop_columns(["outcomes"]), tmp_path / "old.parquet")
    with open_pool(tmp_path / "other.db") as other:
        assert other.import_(tmp_path / "old.parquet") == 1
        assert other.get("a").outcome_history == ()


def test_an_outcome_decides_the_outcome_part_where_it_counts() -> None:
    def paid(status: Status, outcome: Outcome | None) -> list[dict[str, float]]:
        steps = [step(0), step(1)]
        for number, each in enumerate(steps):
            each.assign_reward({"format": 0.5, "outcome": 2.0 * (number == 1 and status is Status.SUCCESS)})
        one = trajectory("a", steps, status=status)
        one.outcome = outcome
        assert apply_outcomes([one], scale=2.0) == (outcome is not None)
        return [each.reward_parts for each in one.steps]

    won, lost = Outcome(0.5, "outcome_model"), Outcome(0.49, "outcome_model")
    nothing, success = {"format": 0.5, "outcome": 0.0}, {"format": 0.5, "outcome": 2.0}
    assert paid(Status.FAILURE, won) == [nothing, success]
    assert paid(Status.SUCCESS, lost) == [nothing, nothing]
    assert paid(Status.SUCCESS, None) == [nothing, success]
    assert paid(Status.INFRA_ERROR, won) == [nothing, nothing]
    plain = trajectory("a", [step(0, reward=1.0)])
    plain.outcome = lost
    apply_outcomes([plain])
    assert plain.steps[0].reward_parts == {"task": 1.0}  # the part does not count there


@pytest.mark.parametrize(
    ("probability", "source", "message"),
    [(1.5, "human", "from 0 to 1"), (float("nan"), "human", "from 0 to 1"), (1.0, "me", "one of checker")],
)
def test_an_outcome_that_says_nothing_is_refused(probability: float, source: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Outcome(probability, source)
