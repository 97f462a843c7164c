"""Consumers: complete groups, in order, each to one of them, and back after a crash."""

from __future__ import annotations

import threading
import time

import pytest
from sqlalchemy import update
from tests.pool.made import TASK, fill, step, trajectory

from stepwell.core import InputError, Status
from stepwell.pool import Filter, Pool, open_pool
from stepwell.pool.schema import groups


def names(pool: Pool, consumer: str = "me", num_groups: int = 9, **options: object) -> list[str]:
    return [taken.group for taken in pool.take(consumer, num_groups, **options)]  # type: ignore[arg-type]


def test_the_oldest_complete_groups_come_first_and_once(pool: Pool) -> None:
    for name in ("a", "b", "c"):
        pool.begin(TASK, id=f"{name}0", group=name, group_size=2)
    fill(pool, "d")
    for name in ("c", "a"):  # complete in another order than begun; b stays incomplete
        pool.begin(TASK, id=f"{name}1", group=name, group_size=2)
        pool.finish(f"{name}1", Status.SUCCESS)
        pool.finish(f"{name}0", Status.FAILURE)
    assert names(pool, num_groups=2) == ["a", "c"]
    assert names(pool) == ["d"]
    assert names(pool) == []


def test_a_group_is_served_with_its_trajectories_in_the_order_they_began(pool: Pool) -> None:
    for index in range(3):
        pool.begin(TASK, id=f"t{index}", group="g", group_size=3)
        pool.append(f"t{index}", 0, [step(index)])
    for index in (2, 0, 1):
        pool.finish(f"t{index}", Status.SUCCESS)
    (taken,) = pool.take("me", 1)
    assert [t.id for t in taken.trajectories] == ["t0", "t1", "t2"]
    assert [t.steps for t in taken.trajectories] == [[step(0)], [step(1)], [step(2)]]


def test_an_infrastructure_failure_does_not_complete_a_group_and_is_not_served(pool: Pool) -> None:
    pool.begin(TASK, id="a", group="g", group_size=2)
    pool.finish("a", Status.SUCCESS)
    pool.begin(TASK, id="b", group="g", group_size=2)
    pool.finish("b", Status.INFRA_ERROR, error="worker died")
    assert names(pool) == []
    pool.begin(TASK, id="c", group="g", group_size=2)
    pool.finish("c", Status.AGENT_ERROR, error="nonsense")
    (taken,) = pool.take("me", 1)
    assert [t.id for t in taken.trajectories] == ["a", "c"]


def test_one_that_finishes_late_is_stored_only_and_nothing_new_joins_a_complete_group(pool: Pool) -> None:
    for id in ("a", "b"):
        pool.begin(TASK, id=id, group="g", group_size=1)
    pool.finish("b", Status.SUCCESS)
    pool.finish("a", Status.SUCCESS)
    assert [t.id for t in pool.take("me", 5)[0].trajectories] == ["b"]
    assert {entry.id: entry.is_served for entry in pool.find()} == {"a": False, "b": True}
    with pytest.raises(InputError, match="group 'g' is already complete"):
        pool.begin(TASK, id="c", group="g", group_size=1)


def test_channels_do_not_mix(pool: Pool) -> None:
    pool.add([trajectory("e")], channel="eval")
    pool.add([trajectory("u")], channel="user")
    assert names(pool) == []
    assert names(pool, channel="user") == ["u"]
    assert names(pool, channel="eval") == ["e"]


def test_a_filter_takes_groups_all_of_whose_trajectories_fit(pool: Pool) -> None:
    fill(pool, "old", size=2, version=1)
    fill(pool, "new", size=2, version=5)
    pool.add(
        [
            trajectory("m/0", [step(0, version=1)], group="m"),
            trajectory("m/1", [step(0, version=5)], group="m"),
        ]
    )
    assert names(pool, where=Filter(min_version=5)) == ["new"]
    pool.tag(["old/0"], "bad")
    assert names(pool, where=Filter(without_tags=["bad"])) == ["m"]
    assert names(pool) == ["old"]


def an_hour_passes(pool: Pool) -> None:
    """For leases: each has an hour less to go."""
    later = update(groups).values(lease_until_s=groups.c.lease_until_s - 3600)
    pool._db.write(lambda connection: connection.execute(later).rowcount)


def test_a_lease_that_ran_out_goes_to_another_consumer_but_not_to_its_holder(place: str) -> None:
    with open_pool(place) as slow, open_pool(place) as other:
        fill(slow, "g")
        assert names(slow, "slow") == ["g"]
        assert names(other, "other") == []
        an_hour_passes(slow)
        assert names(slow, "slow") == []
        assert names(other, "other") == ["g"]
        with pytest.raises(InputError, match="'slow' does not hold group 'g': it is leased, held by 'other'"):
            slow.acknowledge("slow", ["g"], 1)
        other.acknowledge("other", ["g"], 1)


def test_a_restarted_consumer_gets_its_own_lost_lease_when_it_ran_out(place: str) -> None:
    with open_pool(place) as before:
        fill(before, "g")
        assert names(before, lease_s=0.05) == ["g"]
    time.sleep(0.1)
    with open_pool(place) as after:
        assert names(after) == ["g"]


def test_renewing_keeps_a_lease_alive(place: str) -> None:
    with open_pool(place) as mine, open_pool(place) as other:
        fill(mine, "g")
        assert names(mine) == ["g"]
        an_hour_passes(mine)
        assert mine.renew("me") == 1
        assert names(other, "other") == []
        assert mine.renew("nobody") == 0


def test_groups_given_back_are_ready_again(pool: Pool) -> None:
    fill(pool, "a")
    fill(pool, "b")
    assert names(pool) == ["a", "b"]
    assert pool.give_back(["a"]) == 1
    assert names(pool) == ["a"]
    pool.acknowledge("me", ["b"], 1)
    assert pool.give_back(["b"]) == 0


def test_what_a_checkpoint_does_not_hold_comes_back_on_resume(pool: Pool) -> None:
    for name in "abcd":
        fill(pool, name)
    for checkpoint, name in enumerate("abc", 1):
        assert names(pool, num_groups=1) == [name]
        pool.acknowledge("me", [name], checkpoint)
    assert names(pool) == ["d"]  # taken, never acknowledged
    assert pool.restore("me", 2) == 2
    assert names(pool) == ["c", "d"]
    pool.acknowledge("me", ["c", "d"], 3)
    assert pool.restore("me", 3) == 0
    assert pool.restore("other", None) == 0
    assert pool.restore("me", None) == 4
    assert names(pool) == list("abcd")


def test_a_group_that_comes_back_has_the_same_trajectories(pool: Pool) -> None:
    for id in ("a", "b", "c"):
        pool.begin(TASK, id=id, group="g", group_size=2)
    for id in ("c", "a"):
        pool.finish(id, Status.SUCCESS)
    first = pool.take("me", 1)[0].trajectories
    pool.finish("b", Status.SUCCESS)
    pool.restore("me", None)
    assert pool.take("me", 1)[0].trajectories == first


def test_only_the_holder_acknowledges_and_twice_is_once(pool: Pool) -> None:
    fill(pool, "a")
    with pytest.raises(InputError, match="it is ready"):
        pool.acknowledge("me", ["a"], 1)
    assert names(pool) == ["a"]
    pool.acknowledge("me", ["a", "a"], 1)
    pool.acknowledge("me", ["a"], 1)
    for consumer, checkpoint in (("me", 2), ("other", 1)):
        with pytest.raises(InputError, match="it is consumed, held by 'me'"):
            pool.acknowledge(consumer, ["a"], checkpoint)
    with pytest.raises(InputError, match="'x' is not in the pool"):
        pool.acknowledge("me", ["x"], 1)


def test_acknowledging_is_all_or_nothing(pool: Pool) -> None:
    fill(pool, "a")
    fill(pool, "b")
    assert names(pool, num_groups=1) == ["a"]
    with pytest.raises(InputError, match="does not hold group 'b'"):
        pool.acknowledge("me", ["a", "b"], 1)
    assert pool.stats().consumers == {"me": (1, 0, None)}


def test_taking_waits_for_a_group_and_no_longer_than_asked(place: str) -> None:
    with open_pool(place) as consumer, open_pool(place) as producer:
        start = time.monotonic()
        assert names(consumer, wait_s=0.1) == []
        assert 0.1 <= time.monotonic() - start < 5
        late = threading.Timer(0.2, lambda: fill(producer, "g"))
        late.start()
        assert names(consumer, wait_s=20) == ["g"]
        assert time.monotonic() - start < 15
        late.join()


@pytest.mark.parametrize(
    "options", [{"num_groups": 0}, {"lease_s": 0.0}, {"lease_s": float("inf")}, {"consumer": ""}]
)
def test_a_take_that_makes_no_sense_is_refused(pool: Pool, options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        pool.take(**{"consumer": "me", "num_groups": 1, **options})  # type: ignore[arg-type]
