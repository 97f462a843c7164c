"""Observations as messages: the agent's words, and the pictures beside them.

Pictures stand before the words that speak of them. They are named by content hash in the message;
their pixels go into the renderer's `Pictures`, where the engine and the trainer find them.
"""

from __future__ import annotations

from stepwell.core import Observation, Pictures
from stepwell.rendering import ImagePart, Message, TextPart


def user_message(text: str, observation: Observation, pictures: Pictures) -> Message:
    """What an agent is told of an observation, and shown of it."""
    if not observation.images:
        return Message.user(text)
    shown = [ImagePart(pictures.add(image)) for image in observation.images]
    return Message.user([*shown, TextPart(text)])
