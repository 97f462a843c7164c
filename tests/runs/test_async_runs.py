"""Asynchronous runs, whole: real environments, a real engine, the same loop."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.runs.small import notes, small_config, timeless
from tests.runs.test_robots import config as robot_config
from tests.variants import keep_quick

from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, Status
from stepwell.curriculum import PhaseFiles
from stepwell.monitors import LogEntry, Monitor
from stepwell.monitors.jsonl import JsonlMonitor, read_entries
from stepwell.pool import Filter, open_pool
from stepwell.runs.build import worker_groups
from stepwell.runs.build.worker_groups import WorkerGroups
from stepwell.runs.plan.run_plan import plan_run
from stepwell.runs.run import train
from stepwell.workers.staleness import GroupBuffer

GROUPS = (
    "recipe.name=rloo",
    "workers.processes=false",
    "workers.simulators.num_workers=2",
    "workers.simulators.env_batches=2",
    "workers.simulators.batch_size=2",
    "workers.generators.max_wait_ms=1",
    "train.num_updates=4",
    "eval.num_tasks=4",
)


def run(folder: Path, mode: str, *settings: str, name: str = "run") -> Path:
    return train(small_config(*GROUPS, f"workers.mode={mode}", *settings, folder=folder, name=name))


def updates(folder: Path) -> list[LogEntry]:
    return [entry for entry in timeless(folder) if entry.kind == "update"]


def stored(folder: Path) -> list:  # type: ignore[type-arg]
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        return list(pool.find(Filter(channel="train")))


MODES = ("sync", "rollout_async", "train_async", "stream")


@pytest.mark.parametrize("mode", keep_quick(MODES, ("sync", "stream").__contains__))
def test_every_mode_plays_as_many_episodes_in_whole_groups_within_the_bound(
    mode: str, tmp_path: Path
) -> None:
    folder = run(tmp_path, mode)
    found = updates(folder)
    assert [entry.update for entry in found] == [1, 2, 3, 4]
    played = stored(folder)
    assert len(played) == 4 * 8 and {entry.state for entry in played} == {"consumed"}
    assert all(entry.group_size == 2 and entry.is_served for entry in played)
    behind = [entry.values["staleness/max"] for entry in found]
    assert max(behind) <= {"sync": 0, "rollout_async": 0, "train_async": 1, "stream": 2}[mode]
    assert ("correction" in found[-1].values) == (behind[-1] > 0)
    assert (folder / "timeline.json").exists()


@pytest.mark.parametrize(
    "settings", [("train_async",), ("stream",), ("sync", "workers.sync_interval=2")], ids=" ".join
)
def test_a_loss_that_does_not_declare_old_samples_is_refused_where_there_are_some(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    mode, *more = settings
    own = "recipe.loss.function=tests.contracts.examples:detached"  # @loss() alone
    with pytest.raises(ConfigError, match=r"does not say what it does with samples of older weights"):
        run(tmp_path, mode, own, *more)
    with pytest.raises(ConfigError, match=r'old_samples="corrected"'):
        plan_run(small_config(*GROUPS, own, f"workers.mode={mode}", *more))
    for fresh in ("off", "sync", "rollout_async"):
        assert "what would be done" in plan_run(small_config(*GROUPS, own, f"workers.mode={fresh}"))


@pytest.mark.slow
def test_a_stream_of_stale_data_is_learnt_from(tmp_path: Path) -> None:
    settings = (
        "train.num_updates=28",
        "train.num_tasks=2",
        "train.tasks_per_update=2",
        "train.group_size=16",
        "train.optimizer.learning_rate=4e-4",
        "recipe.kl_coef=0.02",
        "eval.num_tasks=0",
    )
    found = updates(run(tmp_path, "stream", *settings))
    success = [entry.values["success"] for entry in found]
    assert sum(success[-4:]) / 4 > sum(success[:4]) / 4 + 0.1
    assert max(entry.values["staleness/max"] for entry in found) >= 1


@pytest.mark.slow
def test_weights_go_to_the_generators_every_few_updates_and_before_an_evaluation(tmp_path: Path) -> None:
    folder = run(tmp_path, "stream", "workers.sync_interval=2", "train.num_updates=5")
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        assert [version.version for version in pool.versions()] == [0, 2, 4, 5]  # 5: for the evaluation
    assert {entry.first_version for entry in stored(folder)} <= {0, 2, 4}


@pytest.mark.slow
def test_an_epoch_is_several_updates(tmp_path: Path) -> None:
    folder = run(tmp_path, "rollout_async", "workers.rollout_epochs=2", "train.num_updates=5")
    assert [entry.values["staleness/max"] for entry in updates(folder)] == [0, 1, 0, 1, 0]


def test_a_critics_recipe_streams_single_trajectories_in_batches_of_its_own_size(tmp_path: Path) -> None:
    phased = ("curriculum.updates_per_phase=1", "train.num_tasks=40")
    settings = ("recipe.name=steppo", "workers.global_batch=5", "train.num_updates=3", *phased)
    folder = run(tmp_path, "stream", *settings)
    played = stored(folder)
    assert len(played) == 15 and {entry.group_size for entry in played} == {1}
    phases = [PhaseFiles(folder / "tasks").read_phase(phase) for phase in (1, 2)]
    number = {entry.task_id: int(entry.group.rpartition("/g")[2]) for entry in played}
    assert {each.task.id for each in phases[0]} == {id for id, place in number.items() if place < 8}
    assert {id for id, place in number.items() if place >= 8} <= {each.task.id for each in phases[1]}


@pytest.mark.slow
@pytest.mark.parametrize("head", ["token", "flow"])
def test_a_robot_policy_streams_through_the_same_groups(head: str, tmp_path: Path) -> None:
    settings = (*GROUPS[1:6], "workers.mode=stream", "workers.global_batch=12", "train.num_updates=3")
    more = (f"policy.vla.head={head}", "warm_start.max_updates=2", "monitor.report=false", "eval.num_tasks=4")
    folder = train(robot_config(*settings, *more, folder=tmp_path))
    assert len(stored(folder)) == 36
    assert updates(folder)[-1].values["staleness/max"] <= 2


def test_what_an_asynchronous_run_cannot_do_is_refused_before_it_starts(tmp_path: Path) -> None:
    for setting, reason in (
        ("workers.sync_interval=5", "workers.max_staleness"),
        ("workers.placement=hybrid", "at least two devices"),
        ("workers.generators.shard=odd", "workers.generators.shard"),
        ("offline.pool=somewhere.db", "an offline run plays nothing"),
        (
            "recipe.loss.function=tests.contracts.examples:good_loss",
            "does not say what it does",
        ),
    ):
        with pytest.raises(ConfigError, match=reason):
            run(tmp_path, "stream", setting)
    assert not (tmp_path / "run").exists()


class _Interrupts(JsonlMonitor):
    """A record that asks for a stop when it hears of an update."""

    def record(self, entry: LogEntry) -> None:
        super().record(entry)
        if entry.kind == "update" and entry.update == 2:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_an_interrupt_drains_and_a_resumed_run_goes_on_with_what_was_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched(config: RunConfig) -> list[Monitor]:
        return [_Interrupts()]

    with monkeypatch.context() as patched:
        patched.setattr("stepwell.runs.run._make_monitors", watched)
        folder = run(tmp_path, "stream", "train.num_updates=6")
    assert updates(folder)[-1].update == 2
    before = {entry.id: entry.status for entry in stored(folder)}
    assert len(before) >= 16 and Status.INFRA_ERROR not in before.values()
    train(resume=folder)
    assert [entry.update for entry in updates(folder)] == [1, 2, 3, 4, 5, 6]
    after = stored(folder)
    assert before.keys() <= {entry.id for entry in after} and len(after) == 6 * 8  # nothing played twice
    assert {entry.state for entry in after} == {"consumed"}


def test_an_interrupt_while_episodes_are_waited_for_stops_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_begin = GroupBuffer.may_begin

    def until_two(self: GroupBuffer) -> bool:
        return self.num_taken < 2 and may_begin(self)

    class Interrupts(JsonlMonitor):
        def record(self, entry: LogEntry) -> None:
            super().record(entry)
            if entry.kind == "update" and entry.update == 2:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    with monkeypatch.context() as patched:
        patched.setattr(GroupBuffer, "may_begin", until_two)
        patched.setattr("stepwell.runs.run._make_monitors", lambda config: [Interrupts()])
        folder = run(tmp_path, "train_async")
    assert (folder / "checkpoints" / "update-000002").is_dir()
    assert '"status": "interrupted"' in (folder / "summary.json").read_text()
    train(resume=folder)
    assert [entry.update for entry in updates(folder)] == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_group_that_was_cut_short_is_finished_by_the_resumed_run(tmp_path: Path) -> None:
    folder = run(tmp_path, "stream", "train.num_updates=3")
    seeds = np.random.default_rng([0, 50, 11]).integers(2**62, size=2)  # those of group 50
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        half = pool.get(next(pool.find(Filter(channel="train"))).id).trajectory
        half = replace(half, id="half", group="run/g50", info={**half.info, "seed": int(seeds[1])})
        pool.add([half], group_sizes=2, tags=("run",))
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("num_updates = 3", "num_updates = 5"))
    train(resume=folder)
    played = stored(folder)
    assert len(played) == 5 * 8 and {entry.state for entry in played} == {"consumed"}
    members = [entry.id for entry in played if entry.group == "run/g50"]
    assert len(members) == 2 and "half" in members


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> list[WorkerGroups]:
    """The groups of the runs that are started from now on."""
    seen: list[WorkerGroups] = []
    start = worker_groups.WorkerGroups.start.__func__  # type: ignore[attr-defined]

    def watched(cls: type[WorkerGroups], *args: object) -> WorkerGroups:
        seen.append(start(cls, *args))
        return seen[-1]

    monkeypatch.setattr(worker_groups.WorkerGroups, "start", classmethod(watched))
    return seen


@pytest.mark.slow
def test_killed_workers_are_replaced_and_their_episodes_played_again(
    tmp_path: Path, running: list[WorkerGroups]
) -> None:
    killed: list[int] = []

    def kill() -> None:
        """One simulator and one generator, each while it has something to do."""
        while not running:
            time.sleep(0.01)
        for workers in (running[0]._simulators, running[0]._generators):
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                pid = workers[0].read_health().pid if running[0].stream.buffer is not None else None
                if pid is not None and running[0].driver.num_live:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                    break
                time.sleep(0.002)

    killer = threading.Thread(target=kill)
    killer.start()
    folder = run(
        tmp_path,
        "stream",
        "workers.processes=true",
        "workers.simulators.num_workers=1",
        "train.num_updates=12",
        "train.max_env_retries=0",
    )
    killer.join()
    assert len(killed) == 2
    played = stored(folder)
    failed = [entry for entry in played if entry.status is Status.INFRA_ERROR]
    assert failed and all(not entry.is_served for entry in failed)
    assert len(played) - len(failed) == 12 * 8
    last = [entry for entry in read_entries(folder / "metrics.jsonl") if entry.kind == "update"][-1]
    assert last.values["simulators/restarts"] == last.values["generators/restarts"] == 1
    for pid in killed:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    summary = json.loads((folder / "summary.json").read_text())
    restarts = [note for note in notes(folder) if note.startswith("restart 1 of worker")]
    assert len(restarts) == 2 and all("was killed by SIGKILL" in note for note in restarts)
    others = [note for note in notes(folder) if note not in restarts]
    assert others[0].startswith("every ratio is 1: one minibatch and one pass")
    assert others[1:] == summary["diagnosis"]  # that it learnt nothing, and no more


@pytest.mark.slow
def test_a_run_tunes_its_queue_while_it_plays(tmp_path: Path) -> None:
    bad = ("workers.generators.max_batch=1", "workers.generators.max_wait_ms=200", "train.num_updates=8")
    folder = run(tmp_path, "stream", "workers.tune=true", *bad)
    assert len(updates(folder)) == 8
    told = [note for note in notes(folder) if "tun" in note]
    assert len(told) == 1 and re.match(r"tuned in \d+ windows|tuning found nothing better in \d+", told[0])
    assert int(re.findall(r"in (\d+) windows", told[0])[0]) >= 2
    used = [
        (entry.values["generators/max_batch"], entry.values["generators/max_wait_ms"])
        for entry in read_entries(folder / "metrics.jsonl")
        if entry.kind == "update"
    ]
    assert (1.0, 200.0) in used and len(set(used)) >= 2  # it tried something else
