"""Producers: what was accepted is there, may be handed in again, and never changes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pool.made import TASK, dialogue, step, trajectories, trajectory
from tests.properties import examples

from stepwell.core import InputError, Status, Step, Task, TokenState
from stepwell.pool import Channel, Pool, open_pool

shared_pool = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(25))
_numbers = itertools.count()


@shared_pool
@given(st.data())
def test_a_trajectory_comes_back_bit_for_bit(pool: Pool, data: st.DataObject) -> None:
    made = data.draw(trajectories(f"t{next(_numbers)}"))
    pool.add([made])
    assert pool.get(made.id).trajectory == made


@shared_pool
@given(st.data())
def test_adding_at_once_and_step_by_step_is_the_same(pool: Pool, data: st.DataObject) -> None:
    made = data.draw(trajectories(f"t{next(_numbers)}"))
    pool.begin(made.task, id=made.id, group=made.group)
    for number, each in enumerate(made.steps):
        pool.append(made.id, number, [each])
    pool.finish(
        made.id, made.status, error=made.error, final_state=made.final_state, timings=made.timings,
        info=made.info,
    )  # fmt: skip
    found = pool.get(made.id)
    assert found.trajectory == made
    pool.add([made], group_sizes=1)  # the same again is no change
    assert pool.get(made.id) == found


def test_everything_about_a_trajectory_is_kept(pool: Pool) -> None:
    id = pool.begin(
        TASK, group="g", group_size=3, channel="user", source={"from": "gateway", "n": 1}, tags=("a", "b")
    )
    pool.append(id, 0, [step(0, version=4), step(1, version=6)])
    pool.report(id, "looks fine")
    pool.report(id, {"score": [1, None]})
    pool.finish(id, Status.TRUNCATED, final_state=TokenState(np.arange(3)), timings={"env_s": 0.5})
    found = pool.get(id)
    assert (found.channel, found.group_size, found.tags) == (Channel.USER, 3, ("a", "b"))
    assert found.source == {"from": "gateway", "n": 1}
    assert [report.body for report in found.reports] == ["looks fine", {"score": [1, None]}]
    assert found.versions == (4, 6)
    assert found.trajectory.task == TASK and found.trajectory.group == "g"
    assert found.trajectory.final_state == TokenState(np.arange(3))
    assert found.finished_s is not None and found.created_s <= found.finished_s


def test_begin_again_is_the_same_trajectory_unless_it_differs(pool: Pool) -> None:
    assert pool.begin(TASK, id="a") == pool.begin(TASK, id="a") == "a"
    with pytest.raises(InputError, match="another task or group"):
        pool.begin(Task("lake", {"board": "other"}), id="a")
    with pytest.raises(InputError, match="another task or group"):
        pool.begin(TASK, id="a", group="g")
    assert pool.count() == 1


def test_appending_again_changes_nothing_and_other_bytes_are_refused(pool: Pool) -> None:
    steps = dialogue(4)
    pool.begin(TASK, id="a")
    pool.append("a", 0, steps[:2])
    pool.append("a", 0, steps[:2])
    pool.append("a", 1, steps[1:])  # overlaps what is there
    with pytest.raises(InputError, match="already has a different step 3"):
        pool.append("a", 3, [step(99)])
    with pytest.raises(InputError, match="already has a different step 0"):
        pool.append("a", 0, [step(99), step(100), *steps[2:], step(5)])
    pool.finish("a", Status.SUCCESS)
    pool.append("a", 2, steps[2:])
    with pytest.raises(InputError, match="step 4 is too late"):
        pool.append("a", 4, [step(4)])
    assert pool.get("a").trajectory.steps == steps


def test_steps_may_arrive_out_of_order_and_leave_gaps(pool: Pool) -> None:
    steps = dialogue(6)
    pool.begin(TASK, id="a")
    for number in (3, 1, 5):
        pool.append("a", number, [steps[number]])
    pool.finish("a", Status.SUCCESS)
    found = pool.get("a")
    assert found.numbers == (1, 3, 5)
    assert found.trajectory.steps == [steps[1], steps[3], steps[5]]


def test_steps_off_the_path_are_stored_but_not_served(pool: Pool) -> None:
    steps = [step(n, version=n) for n in range(4)]
    pool.begin(TASK, id="a")
    pool.append("a", 0, steps)
    pool.finish("a", Status.SUCCESS, path=[0, 2])
    (taken,) = pool.take("me", 1)
    assert taken.trajectories[0].steps == [steps[0], steps[2]]
    assert pool.get("a").trajectory.steps == [steps[0], steps[2]]
    assert pool.get("a").versions == (0, 2)
    whole = pool.get("a", with_branches=True)
    assert whole.trajectory.steps == steps and whole.path == (0, 2)


@pytest.mark.parametrize("path", [[0, 7], [1, 0], [1, 1]])
def test_a_path_must_name_stored_steps_in_order(pool: Pool, path: list[int]) -> None:
    pool.begin(TASK, id="a")
    pool.append("a", 0, [step(0), step(1)])
    with pytest.raises(InputError, match="path"):
        pool.finish("a", Status.SUCCESS, path=path)
    assert pool.get("a").is_open


def test_an_open_trajectory_can_be_read_and_gone_on_with_elsewhere(place: str) -> None:
    steps = dialogue(5)
    with open_pool(place) as first:
        first.begin(TASK, id="a")
        first.append("a", 0, steps[:2])
    with open_pool(place) as second:  # as after a restart: it does not know what was written last
        found = second.get("a")
        assert found.is_open and found.trajectory.steps == steps[:2]
        second.append("a", 2, steps[2:])
        second.finish("a", Status.SUCCESS)
        assert second.get("a").trajectory.steps == steps


def test_a_dialogue_takes_little_more_room_than_what_is_new_in_it(pool: Pool) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50_000, 2000)
    long = [Step.from_tokens(ids[: 200 * (n + 1)], [1, 2, 3]) for n in range(10)]
    pool.begin(TASK, id="each")
    for number, each in enumerate(long):
        pool.append("each", number, [each])
    pool.begin(TASK, id="last")
    pool.append("last", 0, long[-1:])
    for id in ("each", "last"):
        pool.finish(id, Status.SUCCESS)
    sizes = {entry.id: entry.num_bytes for entry in pool.find()}
    assert sizes["each"] < 1.6 * sizes["last"]
    assert pool.get("each").trajectory.steps == long


def test_times_that_no_clock_gives_are_refused_before_they_are_stored(pool: Pool) -> None:
    id = pool.begin(TASK)
    for seconds in (-1.0, float("inf")):
        with pytest.raises(InputError, match="give seconds >= 0"):
            pool.finish(id, Status.SUCCESS, timings={"env_s": seconds})
    assert pool.get(id).trajectory.timings == {}


def test_finishing_twice_is_fine_and_with_another_status_refused(pool: Pool) -> None:
    pool.begin(TASK, id="a")
    pool.finish("a", Status.FAILURE)
    pool.finish("a", Status.FAILURE)
    with pytest.raises(InputError, match="already finished as failure"):
        pool.finish("a", Status.SUCCESS)


def test_adding_is_all_or_nothing(pool: Pool) -> None:
    pool.add([trajectory("a", group="g")])
    with pytest.raises(InputError, match="already complete"):
        pool.add([trajectory("b"), trajectory("c", group="g")])
    assert [entry.id for entry in pool.find()] == ["a"]


def test_a_group_has_one_size_and_one_channel(pool: Pool) -> None:
    pool.begin(TASK, id="a", group="g", group_size=2)
    for options in ({"group_size": 3}, {"group_size": 2, "channel": "eval"}):
        with pytest.raises(InputError, match="has channel 'train' and size 2"):
            pool.begin(TASK, group="g", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channel": "other"}, "channel 'other' is unknown"),
        ({"id": "a\nb"}, "id must be"),
        ({"id": "x" * 501}, "id must be"),
        ({"group": "\0"}, "group must be"),
        ({"tags": ["ok", ""]}, "tag must be"),
        ({"group_size": 0}, "group_size is 0"),
        ({"source": {"x": float("nan")}}, "source cannot be written as JSON"),
    ],
)
def test_what_cannot_be_kept_is_refused(pool: Pool, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pool.begin(TASK, **options)  # type: ignore[arg-type]
    assert pool.count() == 0


def test_unknown_ids_are_named(pool: Pool) -> None:
    for call in (
        lambda: pool.append("nobody", 0, [step(0)]),
        lambda: pool.finish("nobody", Status.SUCCESS),
        lambda: pool.reward("nobody", 1.0),
        lambda: pool.report("nobody", "x"),
        lambda: pool.get("nobody"),
        lambda: pool.tag(["nobody"], "x"),
    ):
        with pytest.raises(InputError, match="'nobody' is not in the pool"):
            call()


def test_text_that_databases_dislike_survives(pool: Pool) -> None:
    nasty = "zero \0, lone \ud800, quote ' and ☃"
    made = trajectory("a", [step(0)], status=Status.AGENT_ERROR)
    made.error = nasty
    made.info = {"said": nasty}
    pool.add([made], source={nasty.replace("\ud800", ""): nasty})
    pool.report("a", nasty)
    assert pool.get("a").trajectory == made
    assert pool.get("a").reports[0].body == nasty
