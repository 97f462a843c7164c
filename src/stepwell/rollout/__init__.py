"""Playing episodes: many at once in step with each other, by a user's own agent, and by the oracle."""

from stepwell.rollout.agent_processes import AgentJob, AgentProcesses, AgentResult
from stepwell.rollout.demonstrations import OracleSampler, demonstrate
from stepwell.rollout.episodes import BlockingSampler, Job, Rolled, Rollout

__all__ = [
    "AgentJob",
    "AgentProcesses",
    "AgentResult",
    "BlockingSampler",
    "Job",
    "OracleSampler",
    "Rolled",
    "Rollout",
    "demonstrate",
]
