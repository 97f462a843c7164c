"""A user's own agent as the rollout: the same episodes as the built-in one, through a real client."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.runs.small import played, small_config

from stepwell.config.run import OwnAgentConfig
from stepwell.core import (
    AgentError,
    ConfigError,
    EngineError,
    Split,
    Status,
    Step,
    Task,
    TokenAction,
    TokenState,
    Trajectory,
)
from stepwell.monitors.jsonl import read_entries
from stepwell.monitors.replays import load_replays
from stepwell.monitors.summary import read_summary
from stepwell.pool import Filter, open_pool
from stepwell.rollout import Job, Rollout
from stepwell.runs.build.agent_rollout import AgentRollout
from stepwell.runs.build.components import Components
from stepwell.runs.loop.agent_failures import AgentFailures
from stepwell.runs.plan.run_plan import plan_run
from stepwell.runs.run import train

AGENTS = Path(__file__).parent / "lake_agents.py"
OWN = ("own_agent.num_processes=1", "own_agent.concurrency=16")


def own(function: str) -> tuple[str, ...]:
    return (f"own_agent.function={AGENTS}:{function}", *OWN)


@contextmanager
def open_components(folder: Path, *settings: str) -> Iterator[Components]:
    components = Components(small_config(*settings), folder)
    try:
        yield components
    finally:
        components.close()


@pytest.mark.slow
def test_through_the_gateway_the_same_episodes_are_played(tmp_path: Path) -> None:
    with open_components(tmp_path, *own("lake"), "recipe.name=grpo") as components:
        tasks = components.tasks(Split.TRAIN, 6, 0)
        jobs = [
            Job(task, f"g{i}", 1000 + 7 * i + k, "eval") for i, task in enumerate(tasks) for k in range(2)
        ]
        params = components.sampling_params(1.0)
        native = (
            Rollout(components.envs, components.backend.player, components.engine)
            .run(jobs, params)
            .trajectories
        )
        components.engine.forget()
        assert isinstance(components.runner.rollout, AgentRollout)
        rolled = components.runner.rollout.run(jobs, params)
    assert rolled.is_stored and not rolled.failures and rolled.num_retries == 0
    assert len(native) == len(rolled.trajectories) == 12
    for ours, theirs in zip(native, rolled.trajectories, strict=True):
        assert (ours.task.id, ours.status) == (theirs.task.id, theirs.status)
        assert ours.info["num_actions"] == theirs.info["num_actions"]
        assert len(ours.steps) == len(theirs.steps)
        for a, b in zip(ours.steps, theirs.steps, strict=True):
            assert a.state == b.state and a.action.action_ids.tolist() == b.action.action_ids.tolist()  # type: ignore[union-attr]
            np.testing.assert_allclose(a.behavior_logprobs, b.behavior_logprobs, atol=1e-5)
            assert a.reward == pytest.approx(b.reward) and a.sampling == b.sampling


def test_a_run_with_an_own_agent_trains_evaluates_and_leaves_what_any_run_leaves(tmp_path: Path) -> None:
    settings = (*own("lake"), "recipe.name=steppo", "train.num_updates=2", "monitor.report=true")
    folder = train(small_config(*settings, folder=tmp_path))
    summary = read_summary(folder)
    assert summary is not None and summary.status == "finished" and summary.env_steps > 0
    updates = [e for e in read_entries(folder / "metrics.jsonl") if e.kind == "update"]
    assert [e.update for e in updates] == [1, 2]
    assert all(e.values["ratio"] == pytest.approx(1.0, abs=1e-4) for e in updates)
    with closing(open_pool(folder / "pool")) as pool:
        entries = list(pool.find())
    assert Counter(e.channel for e in entries) == {"train": 16, "eval": 12}
    assert {e.state for e in entries if e.channel == "train"} == {"consumed"}
    assert {e.group for e in entries if e.channel == "train"} == {
        f"run/{update}-{i}" for update in (1, 2) for i in range(4)
    }
    assert "Greet" not in (folder / "report.html").read_text()
    replays = load_replays(folder / "replays.json")
    assert replays and all(frame.observation and frame.reply for one in replays for frame in one.frames)
    assert played(folder, 1) == []  # the gateway stored them, with its own provenance


def test_an_agent_that_raises_costs_an_agent_error_and_training_goes_on(tmp_path: Path) -> None:
    settings = (
        *own("sometimes_raises"),
        "recipe.name=reinforce++",
        "train.num_updates=1",
        "eval.num_tasks=0",
    )
    folder = train(small_config(*settings, "train.tasks_per_update=8", folder=tmp_path))
    with closing(open_pool(folder / "pool")) as pool:
        stored = [pool.get(entry.id).trajectory for entry in pool.find(Filter(channel="train"))]
    statuses = Counter(t.status for t in stored)
    assert statuses[Status.AGENT_ERROR] + statuses[Status.SUCCESS] == 16
    assert min(statuses.values()) > 0
    assert all("the tool broke" in t.error for t in stored if t.status is Status.AGENT_ERROR)
    rewards = {t.status: {t.total_reward} for t in stored}
    assert rewards == {Status.AGENT_ERROR: {0.0}, Status.SUCCESS: {0.1}}  # times rewards.scale


def test_what_was_the_agents_fault_is_not_learnt_from_unless_asked_for() -> None:
    config, task = OwnAgentConfig(function="m:f"), Task("t", {})
    step = Step(TokenState(np.array([1])), TokenAction(np.array([2])), np.zeros(1, np.float32))
    fine = Trajectory(task, [step], Status.FAILURE)
    broken = Trajectory(task, [step], Status.AGENT_ERROR, error="the tool broke")
    failures = AgentFailures(config, "run", print)
    assert failures.choose_learnable([fine, broken]) == [fine]
    asked = AgentFailures(config.model_copy(update={"learn_from_errors": True}), "run", print)
    assert asked.choose_learnable([fine, broken]) == [fine, broken]


def test_failures_of_the_agent_are_told_once_counted_and_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (*own("sometimes_raises"), "recipe.name=reinforce++", "monitor.report=true")
    settings += ("monitor.console=true", "own_agent.max_failed_share=1", "train.tasks_per_update=8")
    folder = train(small_config(*settings, folder=tmp_path))
    told = capsys.readouterr().out
    assert told.count("RuntimeError: the tool broke") == 1 and "site-packages" not in told
    updates = [e for e in read_entries(folder / "metrics.jsonl") if e.kind == "update"]
    assert len(updates) == 2
    for entry in updates:
        count = entry.values["agent_failures/raised"]
        assert f"agent failed {count:.0f} raised" in told
    page = (folder / "report.html").read_text()
    assert "Failures of the agent" in page and "RuntimeError: the tool broke" in page
    assert "lake_agents:sometimes_raises" in page and "frozenlake</h1>" not in page
    assert "on lake_agents:sometimes_raises" in told


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        ("always_raises", "raised an exception", "KeyError: 'no_such_field'"),
        ("never_calls", "ended without a call of the model", "never called the model"),
        ("is_refused", "got an error 4xx from the gateway", "messages"),
        ("hangs", "did not end in time", "no end within 1 s"),
    ],
)
def test_an_agent_that_always_fails_stops_the_run_at_once_with_its_first_error(
    function: str, kind: str, words: str, tmp_path: Path
) -> None:
    settings = (*own(function), "recipe.name=grpo", "train.episode_timeout_s=1", "eval.num_tasks=2")
    with pytest.raises(AgentError) as stopped:
        train(small_config(*settings, folder=tmp_path))
    told = str(stopped.value)
    assert "held-out evaluation: all 2 episodes failed in the agent" in told
    assert f"2 {kind}" in told and words in told and "own_agent.max_failed_share" in told
    assert f"--resume {tmp_path / 'run'}" in told
    summary = read_summary(tmp_path / "run")
    assert summary is not None and summary.status == "failed" and summary.success_after is None


def test_an_agent_that_never_returns_a_reward_is_told_at_the_first_evaluation(tmp_path: Path) -> None:
    folder = train(small_config(*own("forgets"), "recipe.name=grpo", "train.num_updates=1", folder=tmp_path))
    told = [entry.text for entry in read_entries(folder / "metrics.jsonl") if "gave no reward" in entry.text]
    assert len(told) == 1 and told[0].startswith("held-out evaluation: ")


def test_the_limit_of_memory_reaches_the_agents_processes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did not start: .* more than own_agent\.memory_mb = 1;"):
        train(small_config(*own("lake"), "own_agent.memory_mb=1", "recipe.name=grpo", folder=tmp_path))


def test_a_share_above_the_limit_stops_the_run_and_a_mended_agent_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "broken"
    flag.touch()
    monkeypatch.setenv("LAKE_AGENT_FAILS", str(flag))
    settings = (*own("fails_later"), "recipe.name=reinforce++", "eval.num_tasks=0", "train.num_updates=3")
    with pytest.raises(AgentError, match="update 1: all 8 episodes failed in the agent"):
        train(small_config(*settings, folder=tmp_path))
    flag.unlink()
    folder = train(resume=tmp_path / "run")
    summary = read_summary(folder)
    assert summary is not None and summary.status == "finished"
    assert "the tool broke" in summary.more["agent_errors"]["raised"]
    updates = [e for e in read_entries(folder / "metrics.jsonl") if e.kind == "update"]
    assert [("loss" in e.values, e.values["success"]) for e in updates] == [
        (False, 0.0),
        (True, 1.0),
        (True, 1.0),
    ]


def test_the_share_is_taken_over_a_window_of_updates() -> None:
    def episodes(num_failed: int) -> list[Trajectory]:
        task = Task("t", {})
        fine = [Trajectory(task, [], Status.SUCCESS)] * (4 - num_failed)
        return [Trajectory(task, [], Status.AGENT_ERROR, error="x")] * num_failed + fine

    def last_answer(*counts: int) -> list[bool]:
        failures = AgentFailures(OwnAgentConfig(function="m:f"), "run", lambda text: None)
        return [failures.watch("u", episodes(n), is_update=True) is not None for n in counts]

    assert last_answer(4) == [True]
    assert last_answer(0, 4, 0, 4, 0, 4) == [False] * 5 + [True]  # 12 of the last 20 episodes
    assert last_answer(2, 2, 2, 2, 2, 2) == [False] * 6  # not more than half


def test_the_plan_of_an_own_agent_with_its_own_tasks_names_both(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps({"name": f"n{i}"}) for i in range(40)))
    settings = (*own("greets"), f"own_agent.tasks={tmp_path / 'tasks.jsonl'}", "recipe.name=grpo")
    told = plan_run(small_config(*settings, "warm_start.num_demos=64"))  # as presets have it
    assert "warm start  no demonstrations, since no oracle solves tasks of your own" in " ".join(
        told.split("\n")
    )
    assert "lake_agents:greets" in told and "tasks.jsonl: 8 for training, 5 held out" in told
    assert "frozenlake" not in told
    with pytest.raises(ConfigError, match="has no 'greet'"):
        plan_run(small_config(*settings, f"own_agent.function={AGENTS}:greet"))


def test_rewards_that_do_not_fit_the_calls_are_the_agents_error(tmp_path: Path) -> None:
    with open_components(tmp_path, *own("miscounts"), "recipe.name=grpo") as components:
        (task,) = components.tasks(Split.TRAIN, 1, 0)
        (played,) = components.runner.rollout.run(
            [Job(task, "g", 1, "eval")], components.sampling_params(1.0)
        ).trajectories
    assert played.status is Status.AGENT_ERROR and played.total_reward == 0.0
    assert "2 step_rewards, but called the model 1 times" in played.error


@pytest.mark.slow
def test_an_engine_that_fails_costs_infra_errors_and_no_update(tmp_path: Path) -> None:
    with open_components(tmp_path, *own("lake"), "recipe.name=grpo", "train.max_env_retries=0") as components:
        jobs = [Job(task, "g", i) for i, task in enumerate(components.tasks(Split.TRAIN, 2, 0))]
        rollout = components.runner.rollout
        assert isinstance(rollout, AgentRollout)

        class Broken:
            async def generate(self, requests: object) -> list[object]:
                raise EngineError("the device fell off the bus")

        rollout.sessions.gateway.sampler = Broken()  # type: ignore[assignment]
        rolled = rollout.run(jobs, components.sampling_params(1.0))
        assert [t.status for t in rolled.failures] == [Status.INFRA_ERROR] * 2
        assert not rolled.trajectories
        assert components.pool.take("someone", 9) == []


def test_tasks_may_come_from_a_file_and_a_presets_demonstrations_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"name{i}" for i in range(40)]
    lines = [json.dumps({"name": name}) for name in names] + [json.dumps({"name": "X", "split": "held_out"})]
    (tmp_path / "tasks.jsonl").write_text("\n".join([*lines, "", lines[0]]))
    settings = (*own("greets"), f"own_agent.tasks={tmp_path / 'tasks.jsonl'}", "recipe.name=grpo")
    settings += ("warm_start.num_demos=64", "monitor.console=true", "train.num_updates=1")
    folder = train(small_config(*settings, "eval.num_tasks=2", folder=tmp_path))
    assert (
        "warm start: no demonstrations, since no oracle solves tasks of your own" in capsys.readouterr().out
    )
    with closing(open_pool(folder / "pool")) as pool:
        stored = [pool.get(entry.id) for entry in pool.find()]
    assert {s.trajectory.task.env for s in stored} == {"tasks"}
    trained = {str(s.trajectory.task.content["name"]) for s in stored if s.channel == "train"}
    assert len(trained) == 4 and trained <= set(names)
    assert all(len(s.trajectory.steps) == 1 for s in stored)


def test_what_is_not_marked_is_for_training_where_something_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(20)) + '{"n": 3, "split": "held_out"}')
    components = Components(small_config(f"own_agent.tasks={path}"))
    train, held_out = (components.tasks(split, 99, 0) for split in (Split.TRAIN, Split.HELD_OUT))
    assert {task.content["n"] for task in train} == set(range(20)) - {3}
    assert [task.content for task in held_out] == [{"n": 3}]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("{", "line 1 is not JSON"),
        ('{"a": 1}\n[1]', "line 2 is not an object"),
        ('{"a": 1, "split": "test"}', "split is 'test'"),
        ('{"a": 1, "instruction": 3}', "instruction is 3"),
        ('{"a": 1, "split": "held_out"}', "has no train task"),
        ('{"a": NaN}', "line 1: .*NaN"),
    ],
)
def test_a_bad_file_of_tasks_is_refused_with_its_line(lines: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(lines)
    components = Components(small_config(f"own_agent.tasks={path}"))
    with pytest.raises(ConfigError, match=problem):
        components.tasks(Split.TRAIN, 3, 0)


def test_an_agent_that_is_not_there_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no 'nobody'"):
        train(small_config(*own("nobody"), folder=tmp_path))
    assert not (tmp_path / "run").exists()


def test_an_environment_takes_its_tasks_from_a_file(tmp_path: Path) -> None:
    own_tasks = Components(small_config()).tasks(Split.TRAIN, 3, 0)
    path = tmp_path / "boards.jsonl"
    path.write_text("".join(json.dumps(task.content | {"split": "train"}) + "\n" for task in own_tasks))
    components = Components(small_config(f"env.tasks={path}"))
    found = components.tasks(Split.TRAIN, 9, 0)
    assert {task.id for task in found} == {task.id for task in own_tasks}
    components.check_first_observation()
    components.close()
