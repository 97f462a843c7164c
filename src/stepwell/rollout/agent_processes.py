"""A user's agent as the rollout: its function plays episodes in processes that may die.

    run ─► ┌ _hand_out ─► worker processes ─► _listen ─► over: result, or another try ┐ ─► results
           └─ _watch: time limits, loops that stand still, deaths ◄────────────────────┘

Whose fault it is decides what an episode costs
* The agent's (it raises, returns nonsense, exits, crashes or blocks its process, never ends): one
  `agent_error`, never tried again, because what the policy said may have led there. `failure` names
  its kind (`agent_outcome.FAILURES`).
* The system's (gateway unreachable, process lost through no doing of its own): tried again up to
  `retries` times, after a pause where the gateway was at fault; then one `infra_error`.

When a process dies, or is ended because it occupies more than `memory_mb`, the episode whose code it
was in is to blame; the others that ran in it are tried again elsewhere. Where that is not known (code
in threads), each of them is tried again in a process of its own, and who takes that one down too is
to blame. A process killed from outside while it waits is nobody's fault.

Invariants
* Every job has exactly one result, and results come in the order of jobs.
* A number is given to each try and never again: what a lost process says late means nothing.
* However `run` ends, an exception or Ctrl-C included, no episode goes on; after `close`, or when
  this process dies in any way, no worker is left, nor what it forked.
"""

from __future__ import annotations

import itertools
import os
import selectors
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from stepwell.core import JSON, ConfigError, InfraError, InputError, Task
from stepwell.rollout.agent_process import AgentProcess

TICK_S, FULL_PIPE_S = 0.25, 0.002
MAX_FAILED_STARTS = 3
AgentStatus = Literal["done", "agent_error", "infra_error"]


@dataclass(frozen=True, slots=True)
class AgentJob:
    """One episode to play. `base_url` is the session's root at the gateway, without `/v1`."""

    id: str
    task: Task
    base_url: str
    api_key: str = "none"
    model: str = "policy"
    seed: int = 0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.endswith("/"):
            raise InputError(f"base_url {self.base_url!r} must be an http address without a slash at its end")
        if not self.timeout_s > 0:
            raise InputError(f"timeout_s of job {self.id} is {self.timeout_s}; give seconds > 0")

    def to_wire(self) -> dict[str, Any]:
        """The job as JSON values."""
        task = {name: getattr(self.task, name) for name in ("env", "content", "instruction", "seed")}
        return {
            "task": task | {"tags": list(self.task.tags)},
            "base_url": self.base_url,
            "api_key": self.api_key,
            "model": self.model,
            "seed": self.seed,
            "timeout_s": self.timeout_s,
        }


@dataclass(frozen=True, slots=True)
class AgentResult:
    """What came of a job.

    `reward` and `success` are None where the agent did not say. `step_rewards`, if it gave any,
    has one number per call of the model, in order. `info` is the rest of the dict it returned.
    `failure` is the kind of an agent_error, one of `agent_outcome.FAILURES`.
    """

    id: str
    status: AgentStatus
    reward: float | None = None
    success: bool | None = None
    step_rewards: tuple[float, ...] | None = None
    error: str = ""
    wall_s: float = 0.0
    num_tries: int = 1
    timed_out: bool = False
    failure: str = ""
    info: dict[str, JSON] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Try:
    """One attempt at a job."""

    place: int
    job: AgentJob
    number: int
    num_tries: int = 1
    is_alone: bool = False
    not_before_s: float = 0.0
    started_s: float = 0.0
    cancelled_s: float | None = None

    def result(self, status: AgentStatus, error: str, **rest: Any) -> AgentResult:
        wall_s = time.monotonic() - self.started_s if self.started_s else 0.0
        fields = {"wall_s": wall_s, "num_tries": self.num_tries} | rest
        return AgentResult(self.job.id, status, error=error, **fields)


@dataclass(slots=True, eq=False)
class _Worker:
    process: AgentProcess
    running: dict[int, _Try] = field(default_factory=dict)


class AgentProcesses:
    """Plays jobs with the agent `target` (`module:function`) in `num_processes` worker processes.

    Each plays up to `concurrency` episodes at once. Output of the agent goes to `log_folder`, one
    file per process. `environment` is added to this process's own. An event loop that one episode
    holds for `block_timeout_s` is taken for dead; `grace_s` is what a cancelled one may take to end.
    A process that occupies more than `memory_mb`, with what it started, is ended (None: no limit).
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
        self._environment = _worker_environment(environment or {})
        self._workers: list[_Worker | None] = [None] * num_processes
        self._selector = selectors.DefaultSelector()
        self._numbers = itertools.count(1)
        self._num_failed_starts, self._last_end = 0, ""
        self._lock = threading.Lock()
        self._round = _Round([], {}, None, None)
        try:
            self._start_first()
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
        """Play every job; results in order, and told to `on_result` as they come.

        Before another try, `on_retry` is told how the last one ended (as an infra_error) and gives
        the job to play instead: the same episode in a session of its own. Without it, the same job.
        """
        if len({job.id for job in jobs}) < len(jobs):
            raise InputError("jobs: two have the same id; give each its own")
        if not self._lock.acquire(blocking=False):
            raise InputError("run is already under way in another thread; wait for it, or use two of these")
        try:
            tries = [_Try(place, job, next(self._numbers)) for place, job in enumerate(jobs)]
            self._round = _Round(tries, {}, on_result, on_retry)
            while len(self._round.results) < len(jobs):
                self._staff()
                self._hand_out()
                self._listen()
                self._watch()
            return [self._round.results[place] for place in range(len(jobs))]
        except BaseException:
            self._end_all()
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """End every process; calling it twice is fine."""
        self._end_all()
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Of the workers that live now."""
        return [worker.process.child.pid for worker in self._workers if worker is not None]

    # --- processes ------------------------------------------------------------------------

    def _start_first(self) -> None:
        """Find out, before anything is played, whether there is such an agent."""
        worker = self._start(0)
        while worker.process.ready is None:
            self._listen()
            self._watch()
            if self._workers[0] is not worker:
                raise ConfigError(f"agent {self.target!r}: {self._last_end}")

    def _start(self, slot: int) -> _Worker:
        hello = {
            "target": self.target,
            "path": [os.path.abspath(path) for path in sys.path],
            "concurrency": self.concurrency,
        }
        process = AgentProcess(hello, self.log_folder / f"agent-{slot}.log", self._environment)
        worker = self._workers[slot] = _Worker(process)
        self._selector.register(process.results, selectors.EVENT_READ, worker)
        return worker

    def _staff(self) -> None:
        """As many processes as there is work for."""
        num_open = len(self._round.waiting) + sum(len(w.running) for w in self._workers if w is not None)
        for slot, worker in enumerate(self._workers[:num_open]):
            if worker is None:
                self._start(slot)

    def _remove(self, worker: _Worker) -> tuple[str, bool]:
        self._selector.unregister(worker.process.results)
        self._workers[self._workers.index(worker)] = None
        how, from_outside = worker.process.kill()
        return f"its process {how}", from_outside

    def _end_all(self) -> None:
        for worker in self._workers:
            if worker is not None:
                self._remove(worker)

    # --- one turn of the loop -------------------------------------------------------------

    def _hand_out(self) -> None:
        now = time.monotonic()
        for attempt in list(self._round.waiting):
            if attempt.not_before_s > now:
                continue
            worker = self._free_worker(attempt.is_alone)
            if worker is None and not attempt.is_alone:
                return  # no room for anyone
            if worker is not None:
                self._round.waiting.remove(attempt)
                attempt.started_s = now
                worker.running[attempt.number] = attempt
                worker.process.send({"play": attempt.number, "job": attempt.job.to_wire()})

    def _free_worker(self, is_alone: bool) -> _Worker | None:
        free = [w for w in self._workers if w is not None and self._has_room(w, 1 if is_alone else None)]
        return min(free, key=lambda worker: len(worker.running), default=None)

    def _has_room(self, worker: _Worker, limit: int | None) -> bool:
        ready = worker.process.ready
        if ready is None or any(attempt.is_alone for attempt in worker.running.values()):
            return False
        most = 1 if ready["needs_environment"] else self.concurrency
        return len(worker.running) < min(most, limit or most)

    def _listen(self) -> None:
        """Wait for news, at most a tick, and take it in."""
        is_sent = all([worker.process.flush() for worker in self._workers if worker is not None])
        for key, _ in self._selector.select(TICK_S if is_sent else FULL_PIPE_S):
            worker: _Worker = key.data
            messages, is_open = worker.process.receive()
            for message in messages:
                self._heard(worker, message)
            if not is_open and worker in self._workers:
                worker.process.await_end()
                self._died(worker)

    def _heard(self, worker: _Worker, message: dict[str, Any]) -> None:
        if "refused" in message:
            raise ConfigError(message["refused"])
        if "ready" in message:
            worker.process.ready = message
            self._num_failed_starts = 0
            return
        attempt = worker.running.pop(message["over"], None)
        if attempt is None:
            return
        fields = {key: message[key] for key in _RESULT_FIELDS if key in message}
        if "step_rewards" in fields:
            fields["step_rewards"] = tuple(fields["step_rewards"])
        result = attempt.result(message["status"], message.get("error", ""), **fields)
        if result.status == "infra_error":
            self._again(attempt, result, pause_s=self.backoff_s * 2 ** (attempt.num_tries - 1))
        else:
            self._settle(attempt, result)

    def _watch(self) -> None:
        now = time.monotonic()
        for worker in [worker for worker in self._workers if worker is not None]:
            process = worker.process
            process.child.trim_log(self.max_log_bytes)
            if process.child.has_died():
                self._take_in_and_bury(worker)
            elif self.memory_mb is not None and (used_mb := process.measure_memory_mb()) > self.memory_mb:
                self._end_large(worker, used_mb)
            elif process.ready is None:
                if now - process.started_s > self.start_timeout_s:
                    self._died(worker)
            else:
                self._watch_episodes(worker, now)

    def _watch_episodes(self, worker: _Worker, now: float) -> None:
        holder, held_s = worker.process.measure_hold(now)
        if held_s > self.block_timeout_s:
            why = (
                f"it held the event loop for {held_s:.0f} s; await what takes long, or use asyncio.to_thread"
            )
            self._stop(worker, holder, why)
            return
        for attempt in worker.running.values():
            if now < attempt.started_s + attempt.job.timeout_s:
                continue
            if attempt.cancelled_s is None and worker.process.ready["is_async"]:  # type: ignore[index]
                attempt.cancelled_s = now
                worker.process.send({"cancel": attempt.number})
            elif attempt.cancelled_s is None or now > attempt.cancelled_s + self.grace_s:
                if holder not in (0, attempt.number) and held_s > self.grace_s / 2:
                    continue  # it cannot hear: another holds the loop, and is dealt with above
                self._stop(worker, attempt.number, f"no end within {attempt.job.timeout_s:g} s")
                return

    # --- ends -----------------------------------------------------------------------------

    def _take_in_and_bury(self, worker: _Worker) -> None:
        for message in worker.process.receive()[0]:
            self._heard(worker, message)
        self._died(worker)

    def _died(self, worker: _Worker) -> None:
        """A process ended, or is past talking to: find out whose doing that was."""
        was_ready, holder = worker.process.ready is not None, worker.process.find_holder()
        how, from_outside = self._remove(worker)
        if not was_ready:
            self._start_failed(how)
        blamed = 0 if from_outside and holder not in worker.running else _find_blamed(worker, holder)
        self._part(worker, blamed, how, "crashed")

    def _end_large(self, worker: _Worker, used_mb: float) -> None:
        """End a process that occupies too much."""
        was_ready, blamed = (
            worker.process.ready is not None,
            _find_blamed(worker, worker.process.find_holder()),
        )
        how, _ = self._remove(worker)
        why = (
            f"its process occupied {used_mb:,.0f} MB, more than own_agent.memory_mb = {self.memory_mb:,.0f}; "
            f"let the agent keep less, or raise the limit; {how}"
        )
        if not was_ready:
            self._start_failed(why)
        self._part(worker, blamed, why, "out_of_memory")

    def _stop(self, worker: _Worker, blamed: int, why: str) -> None:
        how, _ = self._remove(worker)
        self._part(worker, blamed, f"{why}; {how}", "timed_out")

    def _part(self, worker: _Worker, blamed: int | None, why: str, failure: str) -> None:
        """One result for the blamed episode, another try for those that were with it."""
        is_late = failure == "timed_out"
        for attempt in worker.running.values():
            if attempt.number == blamed:
                self._settle(attempt, attempt.result("agent_error", why, timed_out=is_late, failure=failure))
                continue
            attempt.is_alone |= blamed is None
            self._again(attempt, attempt.result("infra_error", f"lost with others: {why}"), pause_s=0.0)

    def _start_failed(self, how: str) -> None:
        self._last_end = f"it did not start: {how}"
        self._num_failed_starts += 1
        if self._num_failed_starts >= MAX_FAILED_STARTS:
            raise InfraError(f"agent {self.target!r}: {self._num_failed_starts} times in a row {how}")

    def _again(self, attempt: _Try, result: AgentResult, pause_s: float) -> None:
        if attempt.num_tries > self.retries:
            self._settle(attempt, result)
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

    def _settle(self, attempt: _Try, result: AgentResult) -> None:
        self._round.results[attempt.place] = result
        if self._round.on_result is not None:
            self._round.on_result(result)


@dataclass(slots=True, eq=False)
class _Round:
    """The jobs of one `run`."""

    waiting: list[_Try]
    results: dict[int, AgentResult]
    on_result: Callable[[AgentResult], None] | None
    on_retry: Callable[[AgentJob, AgentResult], AgentJob] | None


_RESULT_FIELDS = ("reward", "success", "step_rewards", "wall_s", "timed_out", "failure", "info")


def _find_blamed(worker: _Worker, holder: int) -> int | None:
    """Who ends with its process: whose code the loop was in (0: nobody who still runs), else the only one.

    None: one of several, nobody knows which.
    """
    if holder:
        return holder if holder in worker.running else 0
    return next(iter(worker.running)) if len(worker.running) == 1 else None


def _worker_environment(added: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, unbuffered output, and no proxy between an agent and this machine."""
    environment = {**os.environ, **added, "PYTHONUNBUFFERED": "1"}
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(filter(None, [environment.get(name), "127.0.0.1", "localhost"]))
    return environment
