"""Playing episodes: in lock step, by a user's own agent, by an outside model, and by the oracle.

Names are imported on first use: a simulator process needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepwell.core.lazy import lazy_names

if TYPE_CHECKING:
    from stepwell.rollout.agent_jobs import AgentJob, AgentResult
    from stepwell.rollout.agent_processes import AgentProcesses
    from stepwell.rollout.demonstrations import OracleSampler, demonstrate
    from stepwell.rollout.episode import Episode
    from stepwell.rollout.episodes import BlockingSampler, Rollout
    from stepwell.rollout.jobs import Job, RolloutResult
    from stepwell.rollout.player import LanguagePlayer, Player

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
    "Rollout",
    "RolloutResult",
    "demonstrate",
]

__getattr__ = lazy_names(
    __name__,
    {
        "AgentJob": "agent_jobs",
        "AgentProcesses": "agent_processes",
        "AgentResult": "agent_jobs",
        "BlockingSampler": "episodes",
        "Episode": "episode",
        "Job": "jobs",
        "LanguagePlayer": "player",
        "OracleSampler": "demonstrations",
        "Player": "player",
        "RolloutResult": "jobs",
        "Rollout": "episodes",
        "demonstrate": "demonstrations",
    },
)
