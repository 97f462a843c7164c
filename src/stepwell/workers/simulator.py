"""A simulator in a process of its own, on this machine or, with a `launcher`, elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell.core import JSON, InputError
from stepwell.workers.clients import SimulatorClient
from stepwell.workers.worker_process import WorkerProcess


class ProcessSimulator(SimulatorClient):
    """Hosts `num_batches` batches of the environment `env_name` in one process.

    With `with_state`, every turn has the true state. Further settings are those of `WorkerProcess`:
    `num_threads`, `environment`, `heartbeat_s`, `hang_s`, `start_timeout_s`, `max_restarts`.
    """

    def __init__(
        self,
        name: str,
        env_name: str,
        options: Mapping[str, Any] | None = None,
        num_batches: int = 1,
        batch_size: int = 1,
        *,
        with_state: bool = False,
        timeout_s: float | None = None,
        **process: Any,
    ) -> None:
        if num_batches < 1 or batch_size < 1:
            raise InputError(f"num_batches ({num_batches}) and batch_size ({batch_size}) must be at least 1")
        worker = create_simulator_process(
            name, env_name, options, num_batches, batch_size, with_state=with_state, **process
        )
        super().__init__(worker, num_batches, batch_size, timeout_s=timeout_s)


def create_simulator_process(
    name: str,
    env_name: str,
    options: Mapping[str, Any] | None,
    num_batches: int,
    batch_size: int,
    *,
    with_state: bool = False,
    **process: Any,
) -> WorkerProcess:
    """The process of a simulator."""
    settings: dict[str, JSON] = {
        "env": env_name,
        "options": dict(options or {}),
        "num_batches": num_batches,
        "batch_size": batch_size,
        "with_state": with_state,
    }
    return WorkerProcess(name, "simulator", settings, **process)
