"""A user's agent as the rollout: its function plays episodes in processes that may die.

    run ─► ┌ _hand_out_attempts ─► processes ─► _read_messages ─► a result, or another attempt ┐ ─► results
           └─ _watch_workers: time limits, blocked loops, deaths ◄────────────────────────────┘

Who is at fault decides what happens to an episode
* The agent (it raises, returns a wrong value, exits, crashes or blocks its process, never ends): one
  `agent_error`, never tried again, because a reply of the policy may have caused it. `failure` names its kind
  (`agent_outcome.FAILURES`).
* The system (the gateway is unreachable, a process was lost for other reasons): tried again up to `retries`
  times, after a pause if the gateway was at fault. After that, one `infra_error`.

When a process dies, or is ended because it uses more than `memory_mb`, the episode whose code it ran is to
blame; when it is ended because some of its episodes are out of time, those are. The others are tried again
elsewhere. If the episode is not known (code in threads), each is tried again in a process of its own, and the
one that kills that process too is to blame. If a process is killed from outside while it waits, no episode is
to blame.

Invariants
* Every job has exactly one result, and results are in the order of the jobs.
* Each attempt has a number that is never used again: late messages of a lost process mean nothing.
* However `run` ends, an exception or Ctrl-C included, no episode continues. After `close`, or when this
  process dies in any way, no agent process is left, nor anything that it forked.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from stepwell.core import ConfigError, InfraError, InputError
from stepwell.rollout.agent_jobs import AgentJob, AgentResult, Attempt, Round
from stepwell.rollout.agent_process import FULL_PIPE_S, AgentProcess

TICK_S = 0.25
MAX_FAILED_STARTS = 3


@dataclass(slots=True, eq=False)
class _Worker:
    process: AgentProcess
    running: dict[int, Attempt] = field(default_factory=dict)


class AgentProcesses:
    """Plays jobs with the agent `target` (`module:function`) in `num_processes` processes.

    Each process plays up to `concurrency` episodes at once. The agent's output goes to `log_folder`, one file
    per process. `environment` is added to this process's own. An event loop that one episode blocks for
    `block_timeout_s` counts as dead; a cancelled episode has `grace_s` to end. A process that uses more than
    `memory_mb`, together with what it started, is ended (None: no limit).
    """

    def __init__(
        self,
        target: str,
        *,
        num_processes: int = 1,
        concurrency: int = 16,
        retries: int = 2,
        backoff_s: float = 1.0,
        grace_s: float = 3.0,
        block_timeout_s: float = 30.0,
        start_timeout_s: float = 120.0,
        memory_mb: float | None = None,
        log_folder: Path | None = None,
        max_log_bytes: int = 64 << 20,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        for name, value in (("num_processes", num_processes), ("concurrency", concurrency)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        self.target = target
        self.num_processes, self.concurrency, self.retries = num_processes, concurrency, retries
        self.backoff_s, self.grace_s, self.block_timeout_s = backoff_s, grace_s, block_timeout_s
        self.start_timeout_s, self.max_log_bytes, self.memory_mb = start_timeout_s, max_log_bytes, memory_mb
        self._own_folder = None if log_folder else tempfile.mkdtemp(prefix="stepwell-agents-")
        self.log_folder = Path(log_folder or self._own_folder)  # type: ignore[arg-type]
        self.log_folder.mkdir(parents=True, exist_ok=True)
        self._environment = _make_environment(environment or {})
        self._workers: list[_Worker | None] = [None] * num_processes
        self._selector = selectors.DefaultSelector()
        self._numbers = itertools.count(1)
        self._num_failed_starts, self._last_end = 0, ""
        self._lock = threading.Lock()
        self._round = Round([], {})
        self._places_each = concurrency
        try:
            self._start_first_process()
        except BaseException:
            self.close()
            raise

    # --- playing --------------------------------------------------------------------------

    def run(
        self,
        jobs: Sequence[AgentJob],
        on_result: Callable[[AgentResult], None] | None = None,
        *,
        on_retry: Callable[[AgentJob, AgentResult], AgentJob] | None = None,
    ) -> list[AgentResult]:
        """Play every job; results in order. `on_result` gets each one as it comes.

        Before another attempt, `on_retry` gets the job and how it ended (an infra_error) and returns the job
        to play instead: the same episode in a new session. Without `on_retry`, the same job is played.
        """
        if len({job.id for job in jobs}) < len(jobs):
            raise InputError("jobs: two have the same id; ids must be unique")
        with self._lock_out_others():
            tries = [Attempt(place, job, next(self._numbers)) for place, job in enumerate(jobs)]
            self._round = Round(tries, {}, on_result, on_retry)
            while len(self._round.results) < len(jobs):
                self._play_turn()
            return [self._round.results[place] for place in range(len(jobs))]

    @contextlib.contextmanager
    def _lock_out_others(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise InputError("run is already active in another thread; wait, or use two AgentProcesses")
        try:
            yield
        except BaseException:
            self._end_workers()
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """End every process. Calling it twice is fine."""
        self._end_workers()
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_places(self) -> int:
        """Episodes that can run at once."""
        return self.num_processes * self._places_each

    @property
    def pids(self) -> list[int]:
        """Process ids of the running processes."""
        return [worker.process.child.pid for worker in self._workers if worker is not None]

    # --- processes ------------------------------------------------------------------------

    def _start_first_process(self) -> None:
        """Find out whether the agent can be loaded, before any episode."""
        worker = self._start_process(0)
        while worker.process.ready is None:
            self._read_messages()
            self._watch_workers()
            if self._workers[0] is not worker:
                raise ConfigError(f"agent {self.target!r}: it did not start: {self._last_end}")

    def _start_process(self, number: int) -> _Worker:
        hello = {
            "target": self.target,
            "path": [os.path.abspath(path) for path in sys.path],
            "concurrency": self.concurrency,
        }
        process = AgentProcess(hello, self.log_folder / f"agent-{number}.log", self._environment)
        worker = self._workers[number] = _Worker(process)
        self._selector.register(process.results, selectors.EVENT_READ, worker)
        return worker

    def _start_missing(self) -> None:
        """Start as many processes as there is work for."""
        num_open = len(self._round.waiting) + sum(len(w.running) for w in self._workers if w is not None)
        for number, worker in enumerate(self._workers[:num_open]):
            if worker is None:
                self._start_process(number)

    def _remove_worker(self, worker: _Worker) -> tuple[str, bool]:
        self._selector.unregister(worker.process.results)
        self._workers[self._workers.index(worker)] = None
        how, from_outside = worker.process.kill()
        return f"its process {how}", from_outside

    def _end_workers(self) -> None:
        for worker in self._workers:
            if worker is not None:
                self._remove_worker(worker)

    # --- one turn of the loop -------------------------------------------------------------

    def _play_turn(self) -> None:
        self._start_missing()
        self._hand_out_attempts()
        self._read_messages()
        self._watch_workers()

    def _hand_out_attempts(self) -> None:
        now = time.monotonic()
        for attempt in list(self._round.waiting):
            if attempt.not_before_s > now:
                continue
            worker = self._find_free_worker(attempt.is_alone)
            if worker is None and not attempt.is_alone:
                return  # every process is full
            if worker is not None:
                self._round.waiting.remove(attempt)
                attempt.started_s = now
                worker.running[attempt.number] = attempt
                worker.process.send_message({"play": attempt.number, "job": attempt.job.to_json()})

    def _find_free_worker(self, is_alone: bool) -> _Worker | None:
        free = [w for w in self._workers if w is not None and self._has_room(w, 1 if is_alone else None)]
        return min(free, key=lambda worker: len(worker.running), default=None)

    def _has_room(self, worker: _Worker, limit: int | None) -> bool:
        ready = worker.process.ready
        if ready is None or any(attempt.is_alone for attempt in worker.running.values()):
            return False
        most = 1 if ready["needs_environment"] else self.concurrency
        return len(worker.running) < min(most, limit or most)

    def _read_messages(self) -> None:
        """Wait for messages, at most a tick, and handle them."""
        is_sent = all([worker.process.flush_unsent() for worker in self._workers if worker is not None])
        for key, _ in self._selector.select(TICK_S if is_sent else FULL_PIPE_S):
            if key.data is None:  # another thread calls (`agent_service.py`)
                os.read(key.fd, 4096)
                continue
            worker: _Worker = key.data
            messages, is_open = worker.process.receive_messages()
            for message in messages:
                self._handle_message(worker, message)
            if not is_open and worker in self._workers:
                worker.process.await_end()
                self._handle_death(worker)

    def _handle_message(self, worker: _Worker, message: dict[str, Any]) -> None:
        if "refused" in message:
            raise ConfigError(message["refused"])
        if "ready" in message:
            worker.process.ready = message
            self._places_each = 1 if message["needs_environment"] else self.concurrency
            self._num_failed_starts = 0
            return
        attempt = worker.running.pop(message["over"], None)
        if attempt is None:
            return
        result = attempt.read_result(message)
        if result.status == "infra_error":
            self._retry_or_settle(attempt, result, pause_s=self.backoff_s * 2 ** (attempt.num_tries - 1))
        else:
            self._round.settle(attempt, result)

    def _watch_workers(self) -> None:
        now = time.monotonic()
        for worker in [worker for worker in self._workers if worker is not None]:
            process = worker.process
            process.child.trim_log(self.max_log_bytes)
            if process.child.has_died():
                self._collect_dead_worker(worker)
            elif self.memory_mb is not None and (used_mb := process.measure_memory_mb()) > self.memory_mb:
                self._end_large_worker(worker, used_mb)
            elif process.ready is None:
                if now - process.started_s > self.start_timeout_s:
                    self._handle_death(worker)
            else:
                self._watch_episodes(worker, now)

    def _watch_episodes(self, worker: _Worker, now: float) -> None:
        holder, held_s = worker.process.measure_hold(now)
        if held_s > self.block_timeout_s:
            why = f"it blocked the event loop for {held_s:.0f} s; await slow calls, or use asyncio.to_thread"
            self._stop_worker(worker, {holder}, why)
            return
        overdue = [a for a in worker.running.values() if now >= a.started_s + a.job.timeout_s]
        if worker.process.ready["is_async"]:  # type: ignore[index]
            for attempt in [attempt for attempt in overdue if attempt.cancelled_s is None]:
                attempt.cancelled_s = now
                worker.process.send_message({"cancel": attempt.number})
            overdue = [a for a in overdue if a.cancelled_s is not None and now > a.cancelled_s + self.grace_s]
        if held_s > self.grace_s / 2 and holder:  # another episode blocks the loop; it is handled above
            overdue = [attempt for attempt in overdue if attempt.number == holder]
        if overdue:
            late = {attempt.number for attempt in overdue}
            self._stop_worker(worker, late, f"no end within {overdue[0].job.timeout_s:g} s")

    # --- ends -----------------------------------------------------------------------------

    def _collect_dead_worker(self, worker: _Worker) -> None:
        for message in worker.process.receive_messages()[0]:
            self._handle_message(worker, message)
        self._handle_death(worker)

    def _handle_death(self, worker: _Worker) -> None:
        """Find out who is to blame for a process that ended or no longer answers."""
        was_ready, holder = worker.process.ready is not None, worker.process.find_holder()
        how, from_outside = self._remove_worker(worker)
        self._last_end = how
        if not was_ready:
            self._count_failed_start(how)
        blamed = set() if from_outside and holder not in worker.running else _find_blamed(worker, holder)
        self._settle_worker(worker, blamed, how, "crashed")

    def _end_large_worker(self, worker: _Worker, used_mb: float) -> None:
        """End a process that uses too much memory."""
        was_ready, blamed = (
            worker.process.ready is not None,
            _find_blamed(worker, worker.process.find_holder()),
        )
        how, _ = self._remove_worker(worker)
        why = (
            f"its process used {used_mb:,.0f} MB, more than own_agent.memory_mb = {self.memory_mb:,.0f}; "
            f"let the agent use less, or raise the limit; {how}"
        )
        self._last_end = why
        if not was_ready:
            self._count_failed_start(why)
        self._settle_worker(worker, blamed, why, "out_of_memory")

    def _stop_worker(self, worker: _Worker, blamed: set[int], why: str) -> None:
        place = worker.process.ask_place(min(blamed), partial(self._handle_message, worker))
        how, _ = self._remove_worker(worker)
        why = f"{why}; {how}" + (f"; it was at\n{place}" if place else "")
        self._settle_worker(worker, blamed, why, "timed_out")

    def _settle_worker(self, worker: _Worker, blamed: set[int] | None, why: str, failure: str) -> None:
        """One result for each episode to blame, another attempt for those that were with it.

        None: it is not known which is to blame.
        """
        is_late = failure == "timed_out"
        for attempt in worker.running.values():
            if blamed is not None and attempt.number in blamed:
                self._round.settle(
                    attempt, attempt.make_result("agent_error", why, timed_out=is_late, failure=failure)
                )
                continue
            attempt.is_alone |= blamed is None
            self._retry_or_settle(
                attempt, attempt.make_result("infra_error", f"lost together with others: {why}"), pause_s=0.0
            )

    def _count_failed_start(self, how: str) -> None:
        self._num_failed_starts += 1
        if self._num_failed_starts >= MAX_FAILED_STARTS:
            raise InfraError(f"agent {self.target!r}: {self._num_failed_starts} times in a row {how}")

    def _retry_or_settle(self, attempt: Attempt, result: AgentResult, pause_s: float) -> None:
        if attempt.num_tries > self.retries:
            self._round.settle(attempt, result)
            return
        on_retry = self._round.on_retry
        job = on_retry(attempt.job, result) if on_retry is not None else attempt.job
        self._round.waiting.append(
            replace(
                attempt,
                job=job,
                number=next(self._numbers),
                num_tries=attempt.num_tries + 1,
                not_before_s=time.monotonic() + pause_s,
                cancelled_s=None,
            )
        )


def _find_blamed(worker: _Worker, holder: int) -> set[int] | None:
    """The episode to blame: the one whose code the loop ran (empty: none that still runs), or the only one.

    None: one of several, not known which.
    """
    if holder:
        return {holder} & set(worker.running)
    return set(worker.running) if len(worker.running) == 1 else None


def _make_environment(added: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, with unbuffered output and no proxy for addresses of this machine."""
    environment = {**os.environ, **added, "PYTHONUNBUFFERED": "1"}
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(filter(None, [environment.get(name), "127.0.0.1", "localhost"]))
    return environment
