"""The tasks of a run, by phase where they follow from what was solved; and replay of earlier successes."""

from stepwell.curriculum.evolver import TaskEvolver
from stepwell.curriculum.feeds import FixedFeed, TaskFeed
from stepwell.curriculum.instruction_evolver import InstructionEvolver
from stepwell.curriculum.perplexity import PerplexityBand, ScoredTrajectory, choose_steps, compute_perplexity
from stepwell.curriculum.phase_files import DroppedTask, PhaseFiles, SourcedTask
from stepwell.curriculum.phases import PhasedFeed, PhaseRequest, PhaseResults, TaskGenerator
from stepwell.curriculum.replay_buffer import ReplayBuffer, ReplayedSteps
from stepwell.curriculum.score_files import ScoreFiles
from stepwell.curriculum.selection import ScreenResult, TaskScreen

__all__ = [
    "DroppedTask",
    "FixedFeed",
    "InstructionEvolver",
    "PerplexityBand",
    "PhaseFiles",
    "PhaseRequest",
    "PhaseResults",
    "PhasedFeed",
    "ReplayBuffer",
    "ReplayedSteps",
    "ScoreFiles",
    "ScoredTrajectory",
    "ScreenResult",
    "SourcedTask",
    "TaskEvolver",
    "TaskFeed",
    "TaskGenerator",
    "TaskScreen",
    "choose_steps",
    "compute_perplexity",
]
