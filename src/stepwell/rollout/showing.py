"""What an agent is told, as messages: its words, the tools, and the pictures beside them.

Pictures stand before the words that speak of them. They are named by content hash in the message;
their pixels go into the renderer's `Pictures`, where the engine and the trainer find them.
"""

from __future__ import annotations

from stepwell.agents import Agent
from stepwell.core import Observation, Pictures, ToolSchema
from stepwell.rendering import ImagePart, Message, Renderer, TextPart, ToolFormat


def opening(agent: Agent, renderer: Renderer) -> tuple[Message, tuple[ToolSchema, ...]]:
    """The system message of an agent, and the tools that the chat template is to tell of in it.

    Replies are read in one spelling of tool calls. A template that asks for another one, or for none,
    is given no tools: then the system message tells of them itself.
    """
    is_ours = renderer.report.tools and renderer.report.tool_format is ToolFormat.HERMES
    tools = agent.tools if is_ours else ()
    return Message.system(agent.system(with_tools=not tools)), tools


def user_message(text: str, observation: Observation, pictures: Pictures) -> Message:
    """What an agent is told of an observation, and shown of it."""
    if not observation.images:
        return Message.user(text)
    shown = [ImagePart(pictures.add(image)) for image in observation.images]
    return Message.user([*shown, TextPart(text)])
