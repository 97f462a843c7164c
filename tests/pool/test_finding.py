"""Lists and filters, tags, versions and statistics."""

from __future__ import annotations

import pytest
from tests.pool.made import TASK, fill, step, trajectory

from stepwell.core import InputError, Status, Task
from stepwell.pool import Channel, Filter, Pool

OTHER = Task("maze", {"size": 3})


@pytest.fixture
def filled(pool: Pool) -> Pool:
    """Four finished trajectories that differ in everything, and an open one."""
    pool.add([trajectory("a", [step(0, version=1, reward=1.0)])], tags=["good", "x"])
    pool.add([trajectory("b", [step(0, version=2, reward=-1.0)], status=Status.FAILURE)], channel="eval")
    pool.add([trajectory("c", [step(0, version=3), step(1, version=5)], task=OTHER, group="g")], tags=["x"])
    pool.add([trajectory("d", [], status=Status.INFRA_ERROR)], channel="user")
    pool.begin(TASK, id="open")
    pool.append("open", 0, [step(0), step(1)])
    return pool


def ids(pool: Pool, **options: object) -> str:
    return " ".join(entry.id for entry in pool.find(Filter(**options)))  # type: ignore[arg-type]


FOUND: list[tuple[dict[str, object], str]] = [
    ({}, "a b c d open"),
    ({"channel": "train"}, "a c open"),
    ({"channel": Channel.EVAL}, "b"),
    ({"statuses": ["success"]}, "a c"),
    ({"statuses": [Status.FAILURE, Status.INFRA_ERROR]}, "b d"),
    ({"statuses": []}, ""),
    ({"min_version": 2}, "b c"),
    ({"max_version": 4}, "a b"),
    ({"min_version": 3, "max_version": 5}, "c"),
    ({"min_version": 4}, ""),
    ({"min_reward": 0.0}, "a"),
    ({"max_reward": 0.0}, "b"),
    ({"tags": ["x"]}, "a c"),
    ({"tags": ["x", "good"]}, "a"),
    ({"without_tags": ["good"]}, "b c d open"),
    ({"tags": ["x"], "without_tags": ["good"]}, "c"),
    ({"task_id": OTHER.id}, "c"),
    ({"env": "lake"}, "a b d open"),
    ({"group": "g"}, "c"),
    ({"group": "a"}, "a"),
    ({"is_open": True}, "open"),
    ({"is_open": False}, "a b c d"),
    ({"ids": ["d", "a", "nobody"]}, "a d"),
    ({"ids": []}, ""),
    ({"since_s": 0.0}, "a b c d open"),
    ({"until_s": 1.0}, ""),
]


def test_a_filter_finds_exactly_what_fits(filled: Pool) -> None:
    for options, expected in FOUND:
        where = Filter(**options)  # type: ignore[arg-type]
        assert ids(filled, **options) == expected, options
        assert filled.count(where) == len(expected.split()), options
        assert [t.id for t in filled.trajectories(where)] == expected.split(), options


def test_times_are_those_of_the_beginning(filled: Pool) -> None:
    moment = next(filled.find(Filter(ids=["c"]))).created_s
    assert ids(filled, since_s=moment) == "c d open"
    assert ids(filled, until_s=moment) == "a b"


def test_lists_go_both_ways_and_end_where_told(filled: Pool) -> None:
    assert [e.id for e in filled.find(newest_first=True, limit=2)] == ["open", "d"]
    assert [e.id for e in filled.find(limit=1)] == ["a"]
    assert list(filled.find(limit=0)) == []


def test_a_list_longer_than_a_page_is_whole_and_in_order(pool: Pool) -> None:
    pool.add([trajectory(f"t{n:04}", []) for n in range(1203)])
    expected = [f"t{n:04}" for n in range(1203)]
    assert [e.id for e in pool.find()] == expected
    assert [e.id for e in pool.find(newest_first=True)] == expected[::-1]
    assert [e.id for e in pool.find(limit=700)] == expected[:700]
    assert [t.id for t in pool.trajectories()] == expected


def test_an_entry_says_what_there_is(filled: Pool) -> None:
    found = {entry.id: entry for entry in filled.find()}
    assert (found["c"].num_steps, found["c"].first_version, found["c"].last_version) == (2, 3, 5)
    assert (found["c"].group, found["c"].state, found["c"].tags) == ("g", "ready", ("x",))
    assert (found["open"].num_steps, found["open"].status, found["open"].state) == (2, None, "filling")
    assert found["open"].num_bytes > 100 and found["open"].is_open
    assert (found["d"].state, found["d"].is_served, found["d"].reward) == ("filling", False, None)


def test_a_listing_may_be_changed_while_it_is_read(pool: Pool) -> None:
    fill(pool, "g", size=4)
    for entry in pool.find():
        pool.tag([entry.id], "seen")
    assert pool.count(Filter(tags=["seen"])) == 4


@pytest.mark.parametrize(
    "options", [{"channel": "x"}, {"statuses": ["won"]}, {"tags": "x"}, {"ids": "a"}, {"statuses": "success"}]
)
def test_a_filter_that_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Filter(**options)  # type: ignore[arg-type]


def test_tags_come_and_go_and_all_ids_must_exist(filled: Pool) -> None:
    filled.tag(["b", "c"], "y")
    filled.tag(["c"], "y")
    assert ids(filled, tags=["y"]) == "b c"
    filled.untag(["c"], "y")
    filled.untag(["c"], "y")
    assert ids(filled, tags=["y"]) == "b"
    with pytest.raises(InputError, match="'nobody' is not in the pool"):
        filled.tag(["a", "nobody"], "y")
    assert ids(filled, tags=["y"]) == "b"


def test_versions_are_kept_in_the_order_they_were_published(pool: Pool) -> None:
    pool.publish_version(1, "f1", {"run": "x"})
    pool.publish_version(2, "f2")
    pool.publish_version(1, "f1", {"run": "again"})
    pool.publish_version(1, "other")  # another run's version 1
    found = [(v.version, v.fingerprint, v.source) for v in pool.versions()]
    assert found == [(1, "f1", {"run": "x"}), (2, "f2", {}), (1, "other", {})]


def test_statistics_count_what_is_there(filled: Pool) -> None:
    filled.report("a", "x")
    filled.reward("a", 2.0)
    filled.publish_version(1, "f")
    filled.take("me", 1)
    filled.acknowledge("me", ["a"], 4)
    stats = filled.stats()
    train = stats.channels[Channel.TRAIN]
    assert (train.num_trajectories, train.num_open, train.num_steps) == (3, 1, 5)
    assert train.statuses == {"success": 2}
    assert train.groups == {"consumed": 1, "ready": 1, "filling": 1}
    assert train.num_bytes == sum(e.num_bytes for e in filled.find(Filter(channel="train")))
    assert stats.channels[Channel.USER].statuses == {"infra_error": 1}
    assert stats.tags == {"good": 1, "x": 2}
    assert stats.consumers == {"me": (0, 1, 4)}
    assert (stats.num_rewards, stats.num_reports, stats.num_versions) == (1, 1, 1)
    assert stats.disk_bytes > train.num_bytes and stats.num_blobs == 0


def test_an_id_is_known_from_its_beginning_on(pool: Pool) -> None:
    assert not pool.has("one")
    pool.begin(Task("lake", {"n": 1}), id="one")
    assert pool.has("one") and not pool.has("On e'; DROP TABLE steps; --")
