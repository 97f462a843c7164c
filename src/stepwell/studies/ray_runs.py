"""Runs of a study on a Ray cluster: an actor on some node starts the run's process there and watches it.

    WorkerPool.start ─► RayRuns.start_run ─► RunActor on a node with room ─► python -m stepwell.studies.worker
    poll, interrupt, kill ─► RayRunProcess ─► the actor ─► that process

Invariants
* The study's folder must be the same on every node (a shared disk): runs are written where they always are.
* When the actor or the study dies, the run's standard input closes: it saves and stops in order.
* A run whose node is lost is not a failed run: it is started again, elsewhere, from its last checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.core.child_process import ChildProcess, limit_threads
from stepwell.core.errors import ConfigError
from stepwell.workers.ray_cluster import connect_ray, import_ray

_POLL_S = 0.1
_LOST = -signal.SIGKILL


class RunActor:
    """Inside an actor: one run as a process of its node."""

    def start_run(self, cwd: str, log: str, num_threads: int, line: str) -> None:
        """Start the process. `line` says what to run."""
        try:
            os.chdir(cwd)
            file = Path(log).open("a")  # noqa: SIM115
        except OSError as error:
            raise ConfigError(
                f"node {os.uname().nodename} does not see {error.filename}: a study on a cluster needs a "
                "folder that all nodes share"
            ) from error
        file.close()
        self._child = ChildProcess(
            [sys.executable, "-m", "stepwell.studies.worker"],
            environment=os.environ | limit_threads(num_threads),
            log=Path(log),
        )
        self._child.send_line(line)

    def wait_for_end(self) -> int:
        """Its exit code, once it has ended."""
        while self._child.exit_code is None:
            time.sleep(_POLL_S)
        return self._child.kill()

    def send_signal(self, number: int) -> None:
        """Send a signal to the process."""
        self._child.send_signal(number)


class RayRunProcess:
    """A run on the cluster, as `WorkerPool` sees a process."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._end = actor.wait_for_end.remote()
        self._code: int | None = None
        self.was_lost = False

    def has_died(self) -> bool:
        """Whether it has ended, or its node is gone."""
        ray = import_ray()
        if self._code is None and ray.wait([self._end], timeout=0)[0]:
            try:
                self._code = int(ray.get(self._end))
            except ray.exceptions.RayError:
                self._code, self.was_lost = _LOST, True
        return self._code is not None

    def send_signal(self, number: int) -> None:
        """Send a signal to the process."""
        if self._code is None:
            self._actor.send_signal.remote(number)

    def kill(self) -> int:
        """End the actor, and with it the run; returns its exit code."""
        if self._code is None:
            self._code = _LOST
        import_ray().kill(self._actor)
        return self._code

    def release(self) -> None:
        """Let the run notice that nobody waits for it: it saves and stops."""
        if self._code is None:
            self.send_signal(signal.SIGINT)


@dataclass
class RayRuns:
    """Starts runs on the nodes of a cluster."""

    address: str
    num_threads: int
    needs_gpu: bool = False

    def __post_init__(self) -> None:
        connect_ray(self.address)

    @property
    def num_places(self) -> int:
        """Runs that the cluster has room for."""
        found = import_ray().cluster_resources()
        places = int(found.get("CPU", 0.0) // self.num_threads)
        return max(1, min(places, int(found.get("GPU", 0.0)))) if self.needs_gpu else max(1, places)

    def start_run(self, log: Path, line: str) -> RayRunProcess:
        """Start a run on a node with room."""
        remote: Any = import_ray().remote
        make = remote(RunActor).options(
            num_cpus=self.num_threads, num_gpus=int(self.needs_gpu), max_concurrency=4, max_restarts=0
        )
        actor = make.remote()
        ray = import_ray()
        try:
            ray.get(actor.start_run.remote(os.getcwd(), str(log.absolute()), self.num_threads, line))
        except ray.exceptions.RayTaskError as error:  # the node does not see the folder
            raise error.as_instanceof_cause() from error
        return RayRunProcess(actor)
