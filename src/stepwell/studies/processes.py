"""The worker processes of a study: one run each.

Invariants
* A worker belongs to no terminal: only the study gets Ctrl-C, and passes on exactly one interrupt (a second
  one would cost the checkpoint).
* A worker does not outlive the study: it reads a pipe from the study and stops in order when the pipe
  closes, also after kill -9.
* Cores are divided: each worker computes with `cores // workers` threads.
* Every worker inherits the study's lock, so the lock is free only when the last worker has ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stepwell.config.study import PlannedRun
from stepwell.core.child_process import ChildProcess, describe_exit, limit_threads
from stepwell.core.fork_server import MODEL_MODULES
from stepwell.studies.run_status import ERROR_FILE

if TYPE_CHECKING:
    from stepwell.studies.ray_runs import RayRunProcess, RayRuns


@dataclass(eq=False)
class RunWorker:
    """A process that trains one run, here or on a cluster."""

    run: PlannedRun
    folder: Path
    process: ChildProcess | RayRunProcess
    started: float


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run whose worker has ended. `problem` is empty unless it failed."""

    run: PlannedRun
    problem: str
    wall_s: float
    is_lost: bool = False  # with its machine, which says nothing about the run


@dataclass(eq=False)
class WorkerPool:
    """At most `size` runs at a time, their output in `logs/NAME.log`."""

    folder: Path
    size: int
    num_threads: int
    keep: str
    lock: int
    cluster: RayRuns | None = None
    workers: list[RunWorker] = field(default_factory=list)
    is_interrupted: bool = False

    @property
    def has_room(self) -> bool:
        return len(self.workers) < self.size

    def start(self, run: PlannedRun) -> None:
        """Start or resume a run."""
        log = self.folder / "logs" / f"{run.name}.log"
        log.parent.mkdir(exist_ok=True)
        job = {
            "config": run.config.model_dump(mode="json"),
            "keep": self.keep,
            "elsewhere": {name: config.model_dump(mode="json") for name, config in run.elsewhere.items()},
        }
        process = self._start_process(log, json.dumps(job))
        folder = Path(run.config.folder) / run.name
        self.workers.append(RunWorker(run, folder, process, time.monotonic()))

    def _start_process(self, log: Path, line: str) -> ChildProcess | RayRunProcess:
        if self.cluster is not None:
            return self.cluster.start_run(log, line)
        process = ChildProcess(
            [sys.executable, "-m", "stepwell.studies.worker"],
            environment=os.environ | limit_threads(self.num_threads),
            log=log,
            pass_fds=(self.lock,),
            imports=MODEL_MODULES,
            keeps_server=True,
        )
        process.send_line(line)
        return process

    def poll(self) -> list[EndedRun]:
        """The workers that have ended since the last call."""
        gone = [worker for worker in self.workers if worker.process.has_died()]
        self.workers = [worker for worker in self.workers if worker not in gone]
        return [self._describe_end(worker) for worker in gone]

    def interrupt(self) -> None:
        """Ask every worker, once, to save and stop."""
        if not self.is_interrupted:
            self.is_interrupted = True
            for worker in self.workers:
                worker.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End every worker now; a later session resumes it from its last checkpoint."""
        for worker in self.workers:
            worker.process.kill()

    def release_all(self) -> None:
        """Release the workers: each notices, saves and stops."""
        for worker in self.workers:
            worker.process.release()

    def _describe_end(self, worker: RunWorker) -> EndedRun:
        code = worker.process.kill()
        is_lost = not isinstance(worker.process, ChildProcess) and worker.process.was_lost
        has_said_why = (worker.folder / ERROR_FILE).exists()  # else it was interrupted before it started
        is_fine = code in (0, 130) or (self.is_interrupted and (code < 0 or not has_said_why))
        return EndedRun(
            worker.run,
            "" if is_fine or is_lost else self._explain_failure(worker, code),
            time.monotonic() - worker.started,
            is_lost,
        )

    def _explain_failure(self, worker: RunWorker, code: int) -> str:
        """Why it failed; also written beside the run."""
        file = worker.folder / ERROR_FILE
        if code == 1 and file.exists():
            return file.read_text(encoding="utf-8").strip()
        log = self.folder / "logs" / f"{worker.run.name}.log"
        problem = f"its process {describe_exit(code)}; see {log}"
        if worker.folder.exists():
            file.write_text(problem + "\n", encoding="utf-8")
        return problem
