"""Jobs of odd agents, the processes that play them, and whether a process is still there."""

from __future__ import annotations

import time
from pathlib import Path

from stepwell.core import Task
from stepwell.rollout import AgentJob, AgentProcesses

ODD = Path(__file__).parent / "odd_agents.py"
NOWHERE = "http://127.0.0.1:9/s/one"  # the discard port: nobody answers


def job(name: str, timeout_s: float = 20.0, base_url: str = NOWHERE, **content: object) -> AgentJob:
    return AgentJob(name, Task("odd", {"name": name, **content}), base_url, timeout_s=timeout_s)  # type: ignore[dict-item]


def processes(function: str, **settings: object) -> AgentProcesses:
    quick = {"grace_s": 2.5, "block_timeout_s": 20.0, "backoff_s": 0.02} | settings
    return AgentProcesses(f"{ODD}:{function}", **quick)  # type: ignore[arg-type]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def gone(pids: list[int], within_s: float = 60.0) -> bool:
    until = time.monotonic() + within_s
    while any(is_alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.01)
    return not any(is_alive(pid) for pid in pids)
