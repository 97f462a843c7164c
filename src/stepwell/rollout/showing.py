"""What an agent is told, as messages: its words, the tools, and the pictures beside them.

Pictures stand before the words that speak of them. They are named by content hash in the message;
their pixels go into the renderer's `ImageStore`, where the engine and the trainer find them.
"""

from __future__ import annotations

from stepwell.agents import Agent
from stepwell.core import ImageStore, Observation
from stepwell.rendering import Conversation, ImagePart, Message, Renderer, TextPart, ToolFormat, fold_system


def begun(agent: Agent, renderer: Renderer, told: Message) -> Conversation:
    """A conversation that begins with the agent's system message and what it is told first.

    Replies are read in one spelling of tool calls. A template that asks for another one, or for none,
    is given no tools: then the system message tells of them itself. Where a template has no place for a
    system message, it stands at the beginning of the first one.
    """
    report = renderer.report
    tools = agent.tools if report.tools and report.tool_format is ToolFormat.HERMES else ()
    messages = (Message.system(agent.system_prompt(with_tools=not tools)), told)
    return Conversation(renderer, messages if report.system else fold_system(messages), tools)


def user_message(text: str, observation: Observation, pictures: ImageStore) -> Message:
    """What an agent is told of an observation, and shown of it."""
    if not observation.images:
        return Message.user(text)
    shown = [ImagePart(pictures.add(image)) for image in observation.images]
    return Message.user([*shown, TextPart(text)])
