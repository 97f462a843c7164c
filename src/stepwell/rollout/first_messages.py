"""Messages to an agent: text, tools and images.

Images stand before the text about them. A message names an image by its content hash. The pixels go into the
renderer's `ImageStore`, where engine and trainer find them.
"""

from __future__ import annotations

from stepwell.agents import Agent
from stepwell.core import ImageStore, Observation
from stepwell.rendering import Conversation, ImagePart, Message, Renderer, TextPart, ToolFormat, fold_system


def start_conversation(agent: Agent, renderer: Renderer, *messages: Message) -> Conversation:
    """A conversation that begins with the agent's system message and these messages.

    Tool calls are read in one format. A chat template with another format, or with none, gets no tools; the
    system message describes them instead. If a template has no system message, its text comes before that of
    the first message.
    """
    report = renderer.report
    tools = agent.tools if report.tools and report.tool_format is ToolFormat.HERMES else ()
    first = (Message.system(agent.system_prompt(with_tools=not tools)), *messages)
    return Conversation(renderer, first if report.system else fold_system(first), tools)


def make_user_message(text: str, observation: Observation, image_store: ImageStore) -> Message:
    """The message for an observation: its images, then the text."""
    if not observation.images:
        return Message.user(text)
    shown = [ImagePart(image_store.add(image)) for image in observation.images]
    return Message.user([*shown, TextPart(text)])
