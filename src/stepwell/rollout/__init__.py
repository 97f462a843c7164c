"""Playing episodes: many at once in step with each other, by a user's own agent, and by the oracle.

Names are imported when first used: a simulator's process needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepwell.core.lazy import lazy_names

if TYPE_CHECKING:
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

__getattr__ = lazy_names(
    __name__,
    {
        "AgentJob": "agent_processes",
        "AgentProcesses": "agent_processes",
        "AgentResult": "agent_processes",
        "BlockingSampler": "episodes",
        "Episode": "player",
        "Job": "jobs",
        "LanguagePlayer": "player",
        "OracleSampler": "demonstrations",
        "Player": "player",
        "Rolled": "jobs",
        "Rollout": "episodes",
        "demonstrate": "demonstrations",
    },
)
