"""The tasks of a run: one list, or tasks by phase that follow from what was solved and what was not."""

from stepwell.curriculum.feeds import FixedFeed, TaskFeed
from stepwell.curriculum.phase_files import FedTask, PhaseFiles
from stepwell.curriculum.phases import PhasedFeed, PhaseRequest, PhaseResults, TaskGenerator

__all__ = [
    "FedTask",
    "FixedFeed",
    "PhaseFiles",
    "PhaseRequest",
    "PhaseResults",
    "PhasedFeed",
    "TaskFeed",
    "TaskGenerator",
]
