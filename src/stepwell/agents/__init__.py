"""Observations to prompts and replies to actions: reasoning strategies, state forms, parsers.

Texts only: what becomes of them as token ids is `rendering`'s business.
"""

from stepwell.agents.agent import Agent
from stepwell.agents.history import Past
from stepwell.agents.reply import Reply, read_reply, write_reply
from stepwell.agents.strategy import STRATEGIES, Field, Strategy, Tag, strategy_named

__all__ = [
    "STRATEGIES",
    "Agent",
    "Field",
    "Past",
    "Reply",
    "Strategy",
    "Tag",
    "read_reply",
    "strategy_named",
    "write_reply",
]
