"""The tasks of a run, by phase where they follow from what was solved; and replay of earlier successes."""

from stepwell.curriculum.feeds import FixedFeed, TaskFeed
from stepwell.curriculum.perplexity import PerplexityBand, ScoredTrajectory, choose_steps, compute_perplexity
from stepwell.curriculum.phase_files import FedTask, PhaseFiles
from stepwell.curriculum.phases import PhasedFeed, PhaseRequest, PhaseResults, TaskGenerator
from stepwell.curriculum.replay_buffer import ReplayBuffer, ReplayedSteps
from stepwell.curriculum.score_files import ScoreFiles

__all__ = [
    "FedTask",
    "FixedFeed",
    "PerplexityBand",
    "PhaseFiles",
    "PhaseRequest",
    "PhaseResults",
    "PhasedFeed",
    "ReplayBuffer",
    "ReplayedSteps",
    "ScoreFiles",
    "ScoredTrajectory",
    "TaskFeed",
    "TaskGenerator",
    "choose_steps",
    "compute_perplexity",
]
