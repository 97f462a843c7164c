"""Staleness is bounded, nothing is begun that could only be dropped, and no setting leaves a run waiting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.config.workers import WorkersConfig
from stepwell.core import ConfigError, Status, Step, Task, Trajectory, VersionSpan
from stepwell.workers.staleness import GroupBuffer, PlayedGroup, check_staleness, compute_min_staleness

MODES = ("sync", "rollout_async", "train_async", "stream")


def group(name: str, version: int) -> PlayedGroup:
    return PlayedGroup(name, [], version)


@settings(deadline=None)
@given(
    mode=st.sampled_from(MODES),
    size=st.integers(1, 5),
    epochs=st.integers(1, 3),
    interval=st.integers(1, 3),
    slack=st.integers(0, 2),
    stale_data=st.sampled_from(["drop", "weight"]),
    seed=st.integers(0, 10**6),
)
def test_a_run_goes_on_and_what_is_learnt_from_is_within_the_bound(
    mode: str, size: int, epochs: int, interval: int, slack: int, stale_data: str, seed: int
) -> None:
    config = WorkersConfig(mode=mode, rollout_epochs=epochs, sync_interval=interval, max_staleness=99)  # type: ignore[arg-type]
    bound = compute_min_staleness(config) + slack
    buffer = GroupBuffer(mode, size, epochs, bound, stale_data, num_updates=8)  # type: ignore[arg-type]
    rng, running, begun, num_dropped = np.random.default_rng(seed), [], 0, 0
    for update in range(1, 9):
        buffer.is_wanted = True
        while (taken := buffer.take_groups()) is None or not taken.groups:
            num_dropped += 0 if taken is None else len(taken.dropped)
            while buffer.may_begin() and len(running) < 6:
                # nothing is begun that could only be dropped
                assert update - 1 - buffer.version <= bound
                buffer.begin_group()
                running.append(group(f"g{begun}", buffer.version))
                begun += 1
            assert running, "the trainer waits, and nothing is played"
            buffer.add_group(running.pop(int(rng.integers(len(running)))))  # any may finish next
        num_dropped += len(taken.dropped)
        assert len(taken.groups) == size
        over = [g for g in taken.groups if update - 1 - g.version > bound]
        assert taken.num_over == len(over) and not (over and stale_data == "drop")
        buffer.is_wanted = False
        if mode in ("sync", "rollout_async"):
            assert not buffer.may_begin()
        for _ in range(int(rng.integers(0, 8))):  # what goes on while the trainer learns
            if buffer.may_begin() and len(running) < 6:
                buffer.begin_group()
                running.append(group(f"g{begun}", buffer.version))
                begun += 1
            elif running and rng.random() < 0.5:
                buffer.add_group(running.pop(int(rng.integers(len(running)))))
        if update % interval == 0:
            buffer.version = update
    assert begun == 8 * size + num_dropped + len(running) + len(buffer.ready)
    assert not buffer.may_begin() and not running and not buffer.ready  # not one more than is needed


def test_in_order_nothing_ever_gets_too_old() -> None:
    buffer, begun = GroupBuffer("stream", 4, max_staleness=2, stale_data="drop"), 0
    running: list[PlayedGroup] = []
    for update in range(1, 30):
        while buffer.may_begin():
            buffer.begin_group()
            running.append(group(f"g{begun}", buffer.version))
            begun += 1
        assert len(running) + len(buffer.ready) == 12
        for _ in range(4):
            buffer.add_group(running.pop(0))
        taken = buffer.take_groups()
        assert taken is not None and taken.dropped == []
        assert max(update - 1 - g.version for g in taken.groups) <= 2
        buffer.version = update


def test_the_oldest_are_learnt_from_first() -> None:
    buffer = GroupBuffer("stream", 2, max_staleness=9, num_taken=3, num_open=3)
    for name, version in (("new", 3), ("old", 1), ("older", 0)):
        buffer.add_group(group(name, version))
    taken = buffer.take_groups()
    assert taken is not None and [g.name for g in taken.groups] == ["older", "old"]


def test_what_is_too_old_is_dropped_or_counted() -> None:
    for stale_data, names, num_over in (("drop", ["b", "c"], 0), ("weight", ["a", "b"], 1)):
        buffer = GroupBuffer("stream", 2, max_staleness=1, stale_data=stale_data, num_taken=3, num_open=3)  # type: ignore[arg-type]
        for name, version in (("a", 1), ("b", 2), ("c", 3)):
            buffer.add_group(group(name, version))
        taken = buffer.take_groups()
        assert taken is not None
        assert ([g.name for g in taken.groups], taken.num_over) == (names, num_over)
        assert [g.name for g in taken.dropped] == (["a"] if stale_data == "drop" else [])


def test_the_version_of_a_group_is_the_oldest_that_had_a_part_in_it() -> None:
    steps = [
        Step.from_tokens([1], [2], policy_version=VersionSpan(4, 5)),
        Step.from_tokens([1], [2], policy_version=6),
    ]
    played = Trajectory(Task("lake", {}), steps, Status.SUCCESS)
    assert PlayedGroup.from_trajectories("g", [played], default=9).version == 4
    assert PlayedGroup.from_trajectories("g", [], default=9).version == 9


@pytest.mark.parametrize(
    ("mode", "epochs", "interval", "needed"),
    [
        ("stream", 4, 1, 0),
        ("stream", 4, 3, 2),
        ("sync", 4, 1, 3),
        ("sync", 4, 4, 3),
        ("train_async", 2, 3, 3),
    ],
)
def test_settings_that_would_wait_forever_are_refused(
    mode: str, epochs: int, interval: int, needed: int
) -> None:
    settings = {"mode": mode, "rollout_epochs": epochs, "sync_interval": interval}
    check_staleness(WorkersConfig(max_staleness=needed, **settings))  # type: ignore[arg-type]
    if needed:
        with pytest.raises(ConfigError, match=rf"workers.max_staleness \({needed - 1}\) is below {needed}"):
            check_staleness(WorkersConfig(max_staleness=needed - 1, **settings))  # type: ignore[arg-type]
