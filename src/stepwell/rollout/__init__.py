"""Playing episodes: many at once in step with each other, by a user's own agent, and by the oracle.

Names are imported when first used: a simulator's process needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_HOMES = {
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
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
