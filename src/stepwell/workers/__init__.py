"""Asynchronous runs: simulators and generators as workers, the queue between them, and staleness."""

from stepwell.core.lazy import lazy_names

__all__ = ["ProcessGenerator", "ProcessSimulator", "WorkerProcess"]
__getattr__ = lazy_names(
    "stepwell.workers",
    {"ProcessGenerator": "generator", "ProcessSimulator": "simulator", "WorkerProcess": "worker_process"},
)
