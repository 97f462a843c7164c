"""Workers: simulators and generators as processes that share memory, or as machines behind HTTP."""

from stepwell.rollout.workers.generator import ProcessGenerator
from stepwell.rollout.workers.process import WorkerProcess
from stepwell.rollout.workers.simulator import ProcessSimulator

__all__ = ["ProcessGenerator", "ProcessSimulator", "WorkerProcess"]
