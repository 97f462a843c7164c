"""Why a conversation does not continue from its recorded ids: a value, not an exception.

A restart is allowed (every step is independent) but never silent: each has a kind, which is
counted, and a reason in words, which is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RestartKind(StrEnum):
    """What stood in the way of an extension."""

    AFRESH = "afresh"  # history="template": not a failure, and not counted as one
    TOOLS_CHANGED = "tools_changed"
    HISTORY_CHANGED = "history_changed"  # earlier messages were rewritten, cut or summarised
    TURN_CHANGED = "turn_changed"  # the assistant's turn is not the one that was sampled
    TEMPLATE_REWRITES = "template_rewrites"  # the template writes earlier turns differently now


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an extension was not made."""

    kind: RestartKind
    reason: str
