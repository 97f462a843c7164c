"""Playing episodes: many at once in step with each other, by a user's own agent, and by the oracle."""

from stepwell.rollout.agent_processes import AgentJob, AgentProcesses, AgentResult
from stepwell.rollout.demonstrations import OracleSampler, demonstrate
from stepwell.rollout.episodes import BlockingSampler, Rollout
from stepwell.rollout.jobs import Job, Rolled
from stepwell.rollout.player import Episode, LanguagePlayer, Player

__all__ = [
    "AgentJob",
    "AgentProcesses",
    "AgentResult",
    "BlockingSampler",
    "Episode",
    "Job",
    "LanguagePlayer",
    "OracleSampler",
    "Player",
    "Rolled",
    "Rollout",
    "demonstrate",
]
