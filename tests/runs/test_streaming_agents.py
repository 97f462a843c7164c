"""A user's own agent with workers: whole runs in every mode, through a real gateway and real processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.runs.small import small_config, timeless
from tests.variants import keep_quick

from stepwell.core import AgentError, Status, Trajectory
from stepwell.monitors import LogEntry
from stepwell.pool import Filter, TrajectorySummary, open_pool
from stepwell.runs.build import worker_groups
from stepwell.runs.build.worker_groups import WorkerGroups
from stepwell.runs.plan.run_plan import plan_run
from stepwell.runs.run import train

AGENTS = Path(__file__).parent / "plain_agents.py"
OWN = (
    "recipe.name=rloo",
    "own_agent.num_processes=2",
    "own_agent.concurrency=6",
    "workers.processes=false",
    "workers.generators.max_wait_ms=1",
    "train.num_updates=3",
    "eval.num_tasks=2",
    "sampling.max_tokens=4",
)


def run(folder: Path, function: str, mode: str, *settings: str) -> Path:
    own = (f"own_agent.function={AGENTS}:{function}", f"workers.mode={mode}")
    return train(small_config(*OWN, *own, *settings, folder=folder))


def updates(folder: Path) -> list[LogEntry]:
    return [entry for entry in timeless(folder) if entry.kind == "update"]


def stored(folder: Path, channel: str = "train") -> list[TrajectorySummary]:
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        return list(pool.find(Filter(channel=channel)))


def load(folder: Path) -> list[Trajectory]:
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        return [pool.get(entry.id).trajectory for entry in pool.find(Filter(channel="train"))]


MODES = ("sync", "rollout_async", "train_async", "stream")


@pytest.mark.parametrize("mode", keep_quick(MODES, ("sync", "stream").__contains__))
def test_every_mode_trains_an_own_agent_on_whole_groups_and_each_episode_once(
    mode: str, tmp_path: Path
) -> None:
    folder = run(tmp_path, "calls_twice", mode)
    found = updates(folder)
    assert [entry.update for entry in found] == [1, 2, 3]
    played = stored(folder)
    assert len(played) == 3 * 8 and {entry.state for entry in played} == {"consumed"}
    assert all(entry.group_size == 2 and entry.is_served and entry.num_steps == 2 for entry in played)
    behind = [entry.values["staleness/max"] for entry in found]
    assert max(behind) <= {"sync": 0, "rollout_async": 0, "train_async": 1, "stream": 2}[mode]
    assert all(entry.values["generators/batch"] > 0 for entry in found)
    assert len(stored(folder, "eval")) == 2 * 2


def test_a_step_has_the_version_that_sampled_it_whatever_was_published_since_its_episode_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIN_AGENT_METRICS", str(tmp_path / "run" / "metrics.jsonl"))
    settings = ("eval.num_tasks=0", "workers.weight_sync=blocking")  # the agent waits for the update alone
    folder = run(tmp_path, "waits_for_an_update", "stream", *settings)
    late = [t for t in load(folder) if t.group == "run/g5"]
    assert len(late) == 2
    for trajectory in late:
        first, second = (step.policy_version for step in trajectory.steps)
        assert first.last == 0 and second.first >= 1
    found = updates(folder)
    assert {entry.state for entry in stored(folder)} == {"consumed"} and len(stored(folder)) == 24
    assert found[0].values["staleness/max"] == 0
    stale = [entry for entry in found if entry.values["staleness/max"] >= 1]
    assert stale and all("correction" in entry.values for entry in stale)


def test_an_agent_that_ends_its_process_costs_its_own_episodes_and_the_others_are_played_again(
    tmp_path: Path,
) -> None:
    settings = ("eval.num_tasks=0", "own_agent.max_failed_share=1", "train.max_env_retries=20")
    folder = run(tmp_path, "crashes", "stream", "own_agent.concurrency=2", *settings)
    played = load(folder)
    lost = [t for t in played if t.status is Status.INFRA_ERROR]
    ended = [t for t in played if t.status is not Status.INFRA_ERROR]
    assert len(ended) == 24 and len({t.info["seed"] for t in ended}) == 24
    for trajectory in ended:
        is_guilty = int(trajectory.info["seed"]) % 2**32 % 5 == 0  # type: ignore[arg-type]
        assert (trajectory.info.get("failure") == "crashed") == is_guilty
        assert (trajectory.status is Status.AGENT_ERROR) == is_guilty
    found = updates(folder)
    assert sum(entry.values["episodes/refilled"] for entry in found) == len(lost)
    assert sum(entry.values.get("agent_failures/crashed", 0.0) for entry in found) == sum(
        t.status is Status.AGENT_ERROR for t in ended
    )
    assert Counter(entry.is_served for entry in stored(folder)) == Counter({True: 24, False: len(lost)})


@pytest.mark.slow
def test_a_run_that_its_agent_stopped_resumes_with_what_was_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "broken"
    flag.touch()
    monkeypatch.setenv("PLAIN_AGENT_FAILS", str(flag))
    with pytest.raises(AgentError, match="update 1: all 8 episodes failed in the agent"):
        run(tmp_path, "fails_if_told", "stream", "eval.num_tasks=0")
    folder, seeds = tmp_path / "run", np.random.default_rng([0, 50, 11]).integers(2**62, size=2)
    before = {entry.id for entry in stored(folder) if entry.is_served}
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        assert not list(pool.find(Filter(is_open=True)))  # what was under way is ended
        half = pool.get(min(before)).trajectory  # as if the process had been killed in mid-group
        half = replace(half, id="half", group="run/g50", info={**half.info, "seed": int(seeds[1])})
        pool.add([half], group_sizes=2, tags=("run",))
        pool.begin(half.task, id="left", group="run/g50", group_size=2, tags=("gateway", "run"))
    flag.unlink()
    train(resume=folder)
    assert [entry.update for entry in updates(folder)] == [1, 2, 3]
    after = {entry.id: entry for entry in stored(folder)}
    served = [entry for entry in after.values() if entry.is_served]
    assert {entry.state for entry in served} == {"consumed"}
    learnt = [entry for entry in served if entry.status is not Status.AGENT_ERROR]
    groups = {entry.group for entry in learnt}
    kept = [entry for entry in served if entry.status is Status.AGENT_ERROR and entry.group in groups]
    assert len(learnt) + len(kept) == 2 * 8  # the first process left only unfinished groups
    assert "half" in {entry.id for entry in kept}
    assert before <= after.keys() and after["left"].status is Status.INFRA_ERROR
    assert Counter(entry.id == "half" for entry in served if entry.group == "run/g50") == {True: 1, False: 1}


@pytest.mark.slow
def test_calls_of_a_killed_generator_are_sampled_again_and_no_episode_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[WorkerGroups] = []
    killed: list[int] = []
    start = worker_groups.WorkerGroups.start.__func__  # type: ignore[attr-defined]

    def start_watched(cls: type[WorkerGroups], *args: object) -> WorkerGroups:
        running.append(start(cls, *args))
        return running[-1]

    def kill() -> None:
        """The generator, while it has a call."""
        until = time.monotonic() + 120
        while not killed and time.monotonic() < until:
            is_playing = running and running[0].stream.buffer is not None
            if is_playing and running[0].queue.measure_loads()[0].num_inflight:
                pid = running[0]._generators[0].read_health().pid
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
            time.sleep(0.001)

    monkeypatch.setattr(worker_groups.WorkerGroups, "start", classmethod(start_watched))
    killer = threading.Thread(target=kill)
    killer.start()
    folder = run(tmp_path, "calls_twice", "stream", "workers.processes=true", "eval.num_tasks=0")
    killer.join()
    played = stored(folder)
    assert len(killed) == 1 and len(played) == 3 * 8
    assert all(entry.is_served and entry.state == "consumed" and entry.num_steps == 2 for entry in played)
    assert updates(folder)[-1].values["generators/restarts"] == 1
    assert max(entry.values["simulators/busy"] for entry in updates(folder)) > 0


def test_the_plan_says_that_agents_play_and_that_there_are_no_simulators() -> None:
    own = f"own_agent.function={AGENTS}:calls_twice"
    told = plan_run(small_config(*OWN, own, "workers.mode=stream"))
    assert "stream: up to 12 episodes = 2 agent processes x 6; inference at 64 samples" in told
    assert "cpu: 1 generator, 1 trainer" in told and "simulator" not in told
