"""Agents whose jobs come one by one, from another thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepwell.core import ConfigError, InputError, Task
from stepwell.rollout import AgentJob, AgentResult
from stepwell.rollout.agent_service import AgentService

ODD = Path(__file__).parent / "odd_agents.py"
NOWHERE = "http://127.0.0.1:9/s/one"


def make_job(id: str, **content: float) -> AgentJob:
    return AgentJob(id, Task("odd", content), NOWHERE, timeout_s=60.0)  # type: ignore[arg-type]


@contextmanager
def served(service: AgentService, on_result: Callable[[AgentResult], None]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=service.serve, args=(on_result,))
    thread.start()
    try:
        yield thread
    finally:
        service.stop_serving()
        thread.join(30)
        service.close()


def test_jobs_of_other_threads_are_played_as_they_come_and_each_has_one_result() -> None:
    results: queue.Queue[AgentResult] = queue.Queue()
    service = AgentService(f"{ODD}:double", num_processes=2, concurrency=3)
    assert service.num_places == 6
    with served(service, results.put):
        found = []
        for start in (0, 4, 8):  # the second and third wake a loop that has nothing to do
            service.submit_jobs([make_job(str(n), n=n) for n in range(start, start + 4)])
            found += [results.get(timeout=30) for _ in range(4)]
        with pytest.raises(InputError, match="already active"):
            service.run([make_job("a", n=1)])
    assert sorted((int(result.id), result.reward) for result in found) == [(n, 2.0 * n) for n in range(12)]
    assert results.empty() and not service._round.results  # nothing of long runs is kept


def test_a_stop_ends_what_still_runs_and_its_processes() -> None:
    results: queue.Queue[AgentResult] = queue.Queue()
    service = AgentService(f"{ODD}:who", concurrency=2)
    with served(service, results.put) as thread:
        service.submit_jobs([make_job("quick"), make_job("slow", sleep=600)])
        assert results.get(timeout=30).id == "quick"
        assert service.pids
        service.stop_serving()
        thread.join(30)
        assert not thread.is_alive() and results.empty() and not service.pids


def test_an_agent_that_cannot_be_loaded_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="has no 'nobody'"):
        AgentService(f"{ODD}:nobody")


def test_an_agent_that_reads_its_address_from_the_environment_has_one_place_in_each_process() -> None:
    with AgentService(f"{ODD}:from_environment", num_processes=3, concurrency=8) as service:
        assert service.num_places == 3
