"""Collection: the oldest first, groups whole, and never what somebody still needs."""

from __future__ import annotations

import os

import numpy as np
import pytest
from sqlalchemy import update
from tests.pool.made import TASK, fill, step, trajectory

from stepwell.core import ImageSpan, InputError, Status, Step
from stepwell.pool import Filter, GcResult, Pool
from stepwell.pool.schema import trajectories


def left(pool: Pool) -> str:
    return " ".join(entry.id for entry in pool.find())


def consume(pool: Pool, checkpoint: int) -> None:
    (taken,) = pool.take("me", 1)
    pool.acknowledge("me", [taken.group], checkpoint)


def test_only_consumed_training_data_goes_and_not_the_newest_checkpoint(pool: Pool) -> None:
    for name in "abcd":
        fill(pool, name, size=2)
    for checkpoint in (1, 2):
        consume(pool, checkpoint)
    pool.take("me", 1)  # c is leased, d is ready
    assert pool.gc(max_bytes=0).num_trajectories == 2
    assert left(pool) == "b/0 b/1 c/0 c/1 d/0 d/1"
    assert pool.restore("me", 1) == 2  # b, whose checkpoint was never written, and c
    assert [taken.group for taken in pool.take("me", 9)] == ["b", "c", "d"]


def test_data_nobody_took_goes_only_when_asked_for_and_a_leased_group_never(pool: Pool) -> None:
    for name in "ab":
        fill(pool, name)
    pool.take("me", 1)
    assert pool.gc(max_bytes=0) == GcResult()
    assert pool.gc(max_bytes=0, unconsumed=True).num_trajectories == 1
    assert left(pool) == "a/0"


def test_other_channels_wait_for_nobody_but_open_ones_and_kept_ones_stay(pool: Pool) -> None:
    for name in ("a", "b", "c"):
        pool.add([trajectory(name)], channel="user")
    pool.begin(TASK, id="open", channel="user", group="g", group_size=2)
    pool.begin(TASK, id="sibling", channel="user", group="g", group_size=2)
    pool.finish("sibling", Status.SUCCESS)
    pool.tag(["b"], "keep")
    pool.gc(max_bytes=0)
    assert left(pool) == "b open sibling"


def test_the_oldest_go_until_the_size_fits(pool: Pool) -> None:
    for name in "abcd":
        pool.add([trajectory(name)], channel="eval")
    size = next(pool.find()).num_bytes
    collected = pool.gc(max_bytes=2 * size)
    assert (collected.num_trajectories, collected.num_steps, collected.num_bytes) == (2, 2, 2 * size)
    assert left(pool) == "c d"
    assert pool.gc(max_bytes=2 * size) == GcResult()


def test_what_finished_long_ago_goes_by_age(pool: Pool) -> None:
    pool.add([trajectory("old")], channel="eval")
    earlier = update(trajectories).values(finished_s=trajectories.c.finished_s - 3600)
    pool._db.write(lambda connection: connection.execute(earlier).rowcount)
    pool.add([trajectory("new")], channel="eval")
    assert pool.gc(max_age_s=1800).num_trajectories == 1
    assert left(pool) == "new"
    assert pool.gc() == GcResult()


def test_a_channel_can_be_collected_alone_and_a_dry_run_removes_nothing(pool: Pool) -> None:
    pool.add([trajectory("e")], channel="eval")
    pool.add([trajectory("u")], channel="user")
    would = pool.gc(max_bytes=0, channel="user", dry_run=True)
    assert would.num_trajectories == 1 and left(pool) == "e u"
    assert pool.gc(max_bytes=0, channel="user") == would
    assert left(pool) == "e"


def test_everything_of_a_removed_trajectory_is_gone_and_its_name_is_free(pool: Pool) -> None:
    pool.add([trajectory("a", [step(0), step(1)])], channel="eval", tags=["x"])
    pool.reward("a", 1.0)
    pool.report("a", "x")
    pool.gc(max_bytes=0)
    stats = pool.stats()
    assert (stats.num_rewards, stats.num_reports, stats.tags) == (0, 0, {})
    pool.add([trajectory("a", [step(7)])], channel="eval")
    assert pool.get("a").trajectory.steps == [step(7)]


def test_a_writer_that_missed_a_removal_does_not_continue_the_removed_steps(pool: Pool) -> None:
    shared = list(range(100))
    pool.begin(TASK, id="a", channel="eval")
    pool.append("a", 0, [Step.from_tokens(shared, [1])])
    known = pool._recent.get_bases("a")
    pool.finish("a", Status.SUCCESS)
    pool.gc(max_bytes=0)
    pool.begin(TASK, id="a", channel="eval")
    pool._recent.remember("a", known[0] or 0, known[1])  # as a process that did not see any of it
    later = Step.from_tokens([*shared, 1, 5], [2])
    pool.append("a", 0, [later])
    assert pool.get("a").trajectory.steps == [later]


def test_images_go_with_the_last_trajectory_that_shows_them(pool: Pool) -> None:
    keys = [pool.blobs.put_image(np.full((2, 2, 3), n, np.uint8)) for n in range(3)]
    fresh = pool.blobs.put_image(np.full((2, 2, 3), 9, np.uint8))
    for index, name in enumerate("ab"):
        spans = tuple(ImageSpan(key, n, 1) for n, key in enumerate(keys[index : index + 2]))
        pool.add([trajectory(name, [Step.from_tokens([1, 2, 3], [4], images=spans)])], channel="eval")
    for key in keys:
        os.utime(pool.blobs.get_path(key), (0, 0))
    size = next(pool.find()).num_bytes
    assert pool.gc(max_bytes=size).num_blobs == 1  # a's first image; b shows the second
    assert [key in pool.blobs for key in (*keys, fresh)] == [False, True, True, True]
    pool.blobs.put_image(np.full((2, 2, 3), 2, np.uint8))  # stored again, so young again
    assert pool.gc(max_bytes=0).num_blobs == 1
    assert [key in pool.blobs for key in (*keys, fresh)] == [False, False, True, True]


@pytest.mark.parametrize("options", [{"max_bytes": -1}, {"max_age_s": float("nan")}])
def test_limits_that_make_no_sense_are_refused(pool: Pool, options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="must be a finite number"):
        pool.gc(**options)  # type: ignore[arg-type]


def test_a_large_collection_shrinks_the_file(pool: Pool) -> None:
    rng = np.random.default_rng(0)
    big = [Step.from_tokens(rng.integers(0, 2**31, 2000), [1]) for _ in range(40)]
    pool.add([trajectory(f"t{n}", big[n : n + 1]) for n in range(40)], channel="eval")
    pool.gc(max_bytes=0)
    assert pool.count(Filter()) == 0
    if pool._db.path is not None:  # about 330 kB of steps are gone; the empty tables take 213 kB
        assert pool.stats().disk_bytes < 300_000
