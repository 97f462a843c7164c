"""Processes of agents: what cannot be played is refused before, and nothing is left behind after."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.rollout.odd_jobs import NOWHERE, ODD, gone, is_alive, job, processes

from stepwell.core import ConfigError, InputError, Task
from stepwell.rollout import AgentJob, AgentProcesses, AgentResult

# --- refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no_such_module_here:play", "there is no module 'no_such_module_here'"),
        ("no/such/file.py:play", "there is no file no/such/file.py"),
        ("agent", "must have the form module:function"),
        (f"{ODD}:nothing", "has no 'nothing'. Its functions: double, plain"),
        (f"{ODD}:NOT_A_FUNCTION", "is a value of type int, not a function"),
        (f"{ODD}:asks_too_much", "asks for 'temperature'; it may ask, by name, for task, base_url"),
        (f"{ODD}:yields", "it must return its reward"),
    ],
)
def test_a_wrong_target_is_refused_before_anything_is_played(target: str, said: str) -> None:
    with pytest.raises(ConfigError, match="agent") as caught:
        AgentProcesses(target)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("code", "said"),
    [("1/0", "ZeroDivisionError"), ("import os; os._exit(7)", "exit code 7"), ("a b", "SyntaxError")],
)
def test_a_module_that_breaks_on_import_is_refused_with_the_reason(
    tmp_path: Path, code: str, said: str
) -> None:
    (tmp_path / "broken.py").write_text(code)
    with pytest.raises(ConfigError) as caught:
        AgentProcesses(f"{tmp_path}/broken.py:play")
    assert said in str(caught.value)


def test_a_module_in_the_present_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lying_here.py").write_text("async def play(task, base_url):\n    return 0.25\n")
    monkeypatch.chdir(tmp_path)
    with AgentProcesses("lying_here:play") as agents:
        assert agents.run([job("a")])[0].reward == 0.25


def test_wrong_jobs_are_refused() -> None:
    with pytest.raises(InputError, match="base_url"):
        AgentJob("a", Task("odd", {}), "127.0.0.1:80")
    with pytest.raises(InputError, match="timeout_s"):
        AgentJob("a", Task("odd", {}), NOWHERE, timeout_s=0)
    with pytest.raises(ConfigError, match="concurrency"):
        processes("double", concurrency=0)
    with processes("double") as agents, pytest.raises(InputError, match="same id"):
        agents.run([job("a", n=1), job("a", n=2)])


# --- nothing is left behind ---------------------------------------------------------------


def test_closing_ends_workers_and_what_they_forked() -> None:
    with processes("does") as agents:
        (result,) = agents.run([job("a", how="fork_forever")])
        pids = [*agents.pids, int(result.info["forked"])]  # type: ignore[arg-type]
        assert all(is_alive(pid) for pid in pids)
    assert gone(pids)
    assert not agents.log_folder.exists()


def test_a_result_that_nobody_can_take_ends_the_children() -> None:
    def broken(result: AgentResult) -> None:
        raise RuntimeError("no room")

    with processes("who", num_processes=2) as agents:
        pids = agents.pids
        with pytest.raises(RuntimeError, match="no room"):
            agents.run([job("a"), job("b", sleep=30)], broken)
        assert agents.pids == [] and gone(pids)
        assert agents.run([job("c")])[0].status == "done"  # and it can go on afterwards


def _trainer(tmp_path: Path, how: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A process that plays an episode which never ends, and the pids of its workers and their forks."""
    code = f"""
        import sys, threading
        sys.path.insert(0, {str(ODD.parent)!r})
        from stepwell.core import Task
        from stepwell.rollout import AgentJob, AgentProcesses
        jobs = [AgentJob(how, Task("odd", {{"how": how}}), {NOWHERE!r}) for how in ("fork_forever", {how!r})]
        with AgentProcesses("odd_agents:does", log_folder={str(tmp_path)!r}) as agents:
            tell = lambda result: print(*agents.pids, result.info["forked"], flush=True)
            agents.run(jobs, tell)
    """
    trainer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert trainer.stdout is not None
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(pids) == 2 and all(is_alive(pid) for pid in pids)
    time.sleep(0.2)  # until the other episode is where it never ends
    return trainer, pids


@pytest.mark.parametrize("how", ["never", "spin", "hold_python"])
def test_no_worker_outlives_a_parent_that_is_killed(tmp_path: Path, how: str) -> None:
    trainer, pids = _trainer(tmp_path, how)
    trainer.kill()
    trainer.communicate()
    assert gone(pids)


def test_an_interrupt_ends_the_children(tmp_path: Path) -> None:
    trainer, pids = _trainer(tmp_path, "never")
    trainer.send_signal(signal.SIGINT)
    _, said = trainer.communicate(timeout=60)
    assert "KeyboardInterrupt" in said and gone(pids)
