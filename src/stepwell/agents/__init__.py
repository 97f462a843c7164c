"""Observations to prompts and replies to actions: reasoning strategies, state forms, parsers.

Text only: `rendering` turns it into token ids.
"""

from stepwell.agents.agent import Agent
from stepwell.agents.history import PastTurn
from stepwell.agents.reply import Reply, read_reply, write_reply
from stepwell.agents.strategy import STRATEGIES, Field, Strategy, Tag, find_strategy

__all__ = [
    "STRATEGIES",
    "Agent",
    "Field",
    "PastTurn",
    "Reply",
    "Strategy",
    "Tag",
    "find_strategy",
    "read_reply",
    "write_reply",
]
