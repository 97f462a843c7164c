"""Agents that misbehave cost one result each, and nothing is left behind: with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rollout.odd_jobs import NOWHERE, gone, job, processes
from tests.variants import keep_quick

from stepwell.core import Task
from stepwell.rollout import AgentJob, AgentProcesses, AgentResult


def kill_when_playing(agents: AgentProcesses, num_episodes: int) -> None:
    """Kill the only process a moment after it got so many episodes, which only wait."""
    worker = agents._workers[0]
    assert worker is not None

    def wait_and_kill() -> None:
        while len(worker.running) < num_episodes:
            time.sleep(0.01)
        time.sleep(0.3)  # until they wait
        os.kill(worker.process.child.pid, signal.SIGKILL)

    threading.Thread(target=wait_and_kill, daemon=True).start()


@pytest.fixture(scope="module")
def doing() -> Iterator[AgentProcesses]:
    with processes("does", num_processes=2, concurrency=4, block_timeout_s=3.0) as shared:
        yield shared


# --- what an agent is given and gives back ------------------------------------------------


def test_a_process_imports_nothing_of_settings_and_players() -> None:
    code = "import sys, stepwell.rollout.agent_worker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"stepwell.config", "stepwell.agents", "stepwell.rollout.player", "pydantic", "torch"}
    assert not heavy & set(done.stdout.split())


def test_results_come_in_the_order_of_jobs_with_the_rewards_returned() -> None:
    told: list[str] = []
    with processes("double", num_processes=2, concurrency=3) as agents:
        results = agents.run([job(f"{n}", n=n) for n in range(20)], lambda result: told.append(result.id))
    assert [result.reward for result in results] == [2.0 * n for n in range(20)]
    assert {result.status for result in results} == {"done"}
    assert sorted(told, key=int) == [f"{n}" for n in range(20)]


def test_a_plain_function_runs_in_threads_and_its_draws_follow_from_the_seed() -> None:
    jobs = [AgentJob(f"{n}", Task("odd", {"n": n}), NOWHERE, seed=n % 2) for n in range(4)]
    with processes("plain", concurrency=4) as agents:
        results = agents.run(jobs)
    assert [(result.reward, result.success) for result in results] == [(float(n), True) for n in range(4)]
    drawn = [result.info["drawn"] for result in results]
    assert drawn[0] == drawn[2] != drawn[1] == drawn[3]
    assert results[0].info["steps"] == 3


def test_an_agent_gets_what_it_asks_for_by_name() -> None:
    task = Task("lake", {"board": "SG"}, instruction="cross", tags=("easy", "small"))
    with processes("everything") as agents:
        (result,) = agents.run([AgentJob("a", task, "http://h:1/s/x", "key", "m", 5)])
    *said, drawn, own = result.info["said"]  # type: ignore[misc]
    assert said[:4] == ["lake", "cross", ["easy", "small"], task.id]
    assert said[4:] == ["http://h:1/s/x/v1", "http://h:1/s/x", "key", "m", 5]
    assert own == 7 and 0 < drawn < 1
    assert (result.status, result.reward, result.success) == ("done", None, None)


def test_an_agent_that_asks_for_no_address_finds_its_own_in_the_environment() -> None:
    jobs = [job(f"{n}", base_url=f"http://127.0.0.1:9/s/{n}") for n in range(4)]
    with processes("from_environment", concurrency=4, environment={"ADDED": "yes"}) as agents:
        results = agents.run(jobs)
    for n, result in enumerate(results):
        expected = {
            "OPENAI_BASE_URL": f"http://127.0.0.1:9/s/{n}/v1",
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:9/s/{n}",
            "ANTHROPIC_API_KEY": "none",
        }
        assert result.info["said"] == result.info["after"] == expected
        assert result.info["added"] == "yes"
    assert "ADDED" not in os.environ


def test_a_task_larger_than_a_pipe_arrives_whole() -> None:
    with processes("who", concurrency=2) as agents:
        results = agents.run([job(f"{n}", text="x" * 500_000) for n in range(6)])
    assert {result.status for result in results} == {"done"}


def test_workers_stay_from_run_to_run() -> None:
    with processes("who", num_processes=2) as agents:
        first = {r.info["pid"] for r in agents.run([job(f"{n}") for n in range(4)])}
        before = agents.pids
        second = {r.info["pid"] for r in agents.run([job(f"{n}") for n in range(4)])}
        assert agents.pids == before and len(before) == 2 and first | second <= set(before)
    assert gone(before)


def test_output_goes_to_a_log_that_starts_anew_when_it_is_large(tmp_path: Path) -> None:
    with processes("double", log_folder=tmp_path) as agents:
        agents.run([job("a", n=3)])
        assert "playing 3" in (tmp_path / "agent-0.log").read_text()
    with processes("does", log_folder=tmp_path, max_log_bytes=5000) as agents:
        (result,) = agents.run([job("a", how="print")])
        agents.run([job("b", how="fine")])
        assert result.reward == 1.0
        assert (tmp_path / "agent-0.log").stat().st_size < 5000


# --- what goes wrong ----------------------------------------------------------------------

WRONG = {
    "nan": "what it returned is nan",
    "text": "what it returned is '0.5' (str)",
    "nan_in_dict": "reward is inf",
    "object_in_dict": "must hold JSON values",
    "odd_success": "success is 'yes'",
    "odd_steps": "step_rewards is '123'",
    "raise": "KeyError: 'no such tool'",
    "group": "ValueError: one",
    "unreadable": "str() failed",
    "exit": "SystemExit: 3",
    "exit_in_task": "SystemExit: 4",
    "interrupt": "KeyboardInterrupt",
    "connect_elsewhere": "ConnectError",
}
DEADLY = {
    "hard_exit": "exit code 5",
    "abort": "SIGABRT",
    "segfault": "SIGSEGV",
    "kill_itself": "SIGKILL",
    "close_everything": "Bad file descriptor",
    "write_everywhere": "was stopped",
    "abort_in_thread": "SIGABRT",
    "spin": "blocked the event loop",
    "hold_python": "blocked the event loop",
}


def test_agents_that_raise_exit_or_return_nonsense_cost_one_agent_error_each(doing: AgentProcesses) -> None:
    doing.run([job(f"{n}", how="fine") for n in range(2)])  # until both processes are there
    before = doing.pids
    told: list[AgentResult] = []
    results = doing.run([job(how, how=how) for how in WRONG] + [job("fine", how="fine")], told.append)
    assert {result.status for result in results[:-1]} == {"agent_error"} and results[-1].status == "done"
    for result in results[:-1]:
        assert WRONG[result.id] in result.error
    assert sorted(result.id for result in told) == sorted([*WRONG, "fine"])
    assert doing.pids == before  # no process died of it


QUICK = ("hard_exit", "segfault", "close_everything", "spin")  # an end, a signal, a lost pipe, a time limit


@pytest.mark.parametrize("how", keep_quick(DEADLY, QUICK.__contains__))
def test_an_agent_that_takes_its_process_down_costs_one_agent_error_and_no_other_episode(
    doing: AgentProcesses, how: str
) -> None:
    told: list[AgentResult] = []
    jobs = [job("a", how="fine"), job("b", how=how), job("c", how="fine"), job("d", how="fine")]
    results = doing.run(jobs, told.append)
    assert [result.status for result in results] == ["done", "agent_error", "done", "done"]
    assert DEADLY[how] in results[1].error
    assert sorted(result.id for result in told) == ["a", "b", "c", "d"]
    assert doing.run([job("after", how="int")])[0].reward == 3.0


@pytest.mark.parametrize(("how", "ending"), [("never", "Event().wait()"), ("never_ever", "was stopped")])
def test_an_agent_that_never_ends_is_cancelled_or_else_stopped(
    doing: AgentProcesses, how: str, ending: str
) -> None:
    results = doing.run([job("a", how="fine"), job("b", 0.4, how=how)])
    assert [(result.status, result.timed_out) for result in results] == [
        ("done", False),
        ("agent_error", True),
    ]
    assert "no end within 0.4 s" in results[1].error and ending in results[1].error
    assert 0.2 <= results[1].wall_s < 60  # timed by its process, which starts later than the limit


@pytest.mark.parametrize("how", ["segfault", "spin"])
def test_an_agent_that_crashes_or_blocks_says_where_in_its_code_it_was(
    doing: AgentProcesses, how: str
) -> None:
    (result,) = doing.run([job("a", how=how)])
    assert "odd_agents.py" in result.error and "in does" in result.error


def test_one_that_holds_the_loop_is_blamed_for_it_and_not_who_runs_out_of_time_meanwhile() -> None:
    with processes("does", concurrency=2, block_timeout_s=3.0) as agents:
        results = agents.run([job("late", 1.5, how="fine", sleep=0.1), job("spin", how="spin")])
    assert [(r.status, r.num_tries) for r in results] == [("done", 2), ("agent_error", 1)]


def test_an_agent_that_forks_has_one_result_and_its_copy_is_silent(doing: AgentProcesses) -> None:
    told: list[AgentResult] = []
    results = doing.run([job("a", how="fine"), job("b", how="fork"), job("c", how="fine")], told.append)
    assert [result.num_tries for result in results] == [1, 1, 1]
    assert results[1].info == {"is_copy": False} and len(told) == 3


def test_a_plain_function_that_crashes_is_found_by_trying_again_alone() -> None:
    with processes("plain_does", num_processes=1, concurrency=3) as agents:
        results = agents.run([job("a", how="fine"), job("b", how="abort"), job("c", how="fine")])
    assert [(r.status, r.num_tries) for r in results] == [("done", 2), ("agent_error", 2), ("done", 2)]


def test_a_plain_function_out_of_time_is_stopped_with_its_process() -> None:
    with processes("plain_does", num_processes=1, concurrency=2) as agents:
        before = agents.pids
        results = agents.run([job("a", 0.4, how="sleep"), job("b", how="fine")])
        assert agents.pids != before
    assert (results[0].status, results[0].timed_out) == ("agent_error", True)
    assert results[1].status == "done"


def test_plain_functions_that_are_all_out_of_time_are_each_to_blame_and_say_where_they_are() -> None:
    with processes("plain_does", num_processes=1, concurrency=4) as agents:
        results = agents.run([job(f"{n}", 1.0, how="sleep") for n in range(4)])
    assert {(r.status, r.failure, r.num_tries) for r in results} == {("agent_error", "timed_out", 1)}
    assert all(r.error.startswith("no end within 1 s") and "time.sleep(600)" in r.error for r in results)


@pytest.mark.parametrize("function", ["does", "plain_does"])
def test_an_agent_that_eats_memory_is_ended_and_blamed_for_it(function: str) -> None:
    with processes(function, num_processes=1, concurrency=2, memory_mb=500, block_timeout_s=20) as agents:
        results = agents.run([job("a", how="fine"), job("b", how="eat")])
    assert [(r.status, r.failure) for r in results] == [("done", ""), ("agent_error", "out_of_memory")]
    assert "more than own_agent.memory_mb = 500" in results[1].error


def test_a_failure_says_its_kind(doing: AgentProcesses) -> None:
    kinds = {"raise": "raised", "nan": "bad_return", "abort": "crashed", "never": "timed_out"}
    results = doing.run([job(how, 0.5 if how == "never" else 20.0, how=how) for how in kinds])
    assert {result.id: result.failure for result in results} == kinds


def test_a_traceback_is_cut_to_the_agents_own_frames(doing: AgentProcesses) -> None:
    (result,) = doing.run([job("a", how="library")])
    lines = [line for line in result.error.splitlines() if line.strip(" ~^")]  # Python 3.13 marks whole lines
    assert len(lines) == 4 and "odd_agents.py" in lines[0] and lines[1].strip() == 'json.loads("{")'
    assert lines[2].strip().endswith("library frames below)") and "JSONDecodeError" in lines[3]


def test_a_process_killed_from_outside_is_nobodys_fault() -> None:
    with processes("who", concurrency=2) as agents:
        (victim,) = agents.pids
        kill_when_playing(agents, 2)
        results = agents.run([job("a", sleep=1.0), job("b", sleep=1.0)])
        assert [(r.status, r.num_tries) for r in results] == [("done", 2), ("done", 2)]
        assert victim not in agents.pids
    with processes("who", retries=0) as agents:
        kill_when_playing(agents, 1)
        (result,) = agents.run([job("a", sleep=1.0)])
    assert (result.status, result.num_tries) == ("infra_error", 1) and "SIGKILL" in result.error


def test_an_unreachable_gateway_is_an_infra_error_after_retries_each_in_a_job_of_its_own() -> None:
    asked: list[tuple[str, str]] = []

    def again(before: AgentJob, how: AgentResult) -> AgentJob:
        asked.append((before.base_url, how.status))
        return job("a", how="connect", base_url=f"{before.base_url}x")

    with processes("does", retries=2) as agents:
        (result,) = agents.run([job("a", how="connect")], on_retry=again)
    assert (result.status, result.num_tries) == ("infra_error", 3) and "ConnectError" in result.error
    assert asked == [(NOWHERE, "infra_error"), (f"{NOWHERE}x", "infra_error")]


def test_a_gateway_that_comes_back_costs_nothing(tmp_path: Path) -> None:
    with processes("fails_at_first", backoff_s=0.1) as agents:
        started = time.monotonic()
        (result,) = agents.run([job("a", file=str(tmp_path / "count"), failures=2)])
    assert (result.status, result.reward, result.num_tries) == ("done", 1.0, 3)
    assert time.monotonic() - started > 0.1 + 0.2  # the pause doubles
