"""Tools are told once: by a template that asks for calls as replies are read, else by the system text."""

from __future__ import annotations

import pytest
from tests.envs.tool_envs import LOOK, Notes
from tests.rendering.conftest import make_tokenizer

from stepwell.agents import Agent
from stepwell.config.run import AgentConfig
from stepwell.core import ImageStore, Observation
from stepwell.rendering import Renderer
from stepwell.rollout.first_messages import make_user_message, start_conversation


@pytest.mark.parametrize(
    ("family", "by_template", "roles"),
    [
        ("grouped_tools", True, ["system", "user"]),
        ("llama", False, ["system", "user"]),
        ("mistral", False, ["user"]),
        ("chatml", False, ["system", "user"]),
    ],
)
def test_tools_are_told_by_the_template_or_by_the_agent(
    family: str, by_template: bool, roles: list[str]
) -> None:
    agent = Agent(Notes().description, AgentConfig())
    told = make_user_message("Begin.", Observation("Begin."), ImageStore())
    prompt = start_conversation(agent, Renderer(make_tokenizer(family)), told).prompt
    assert prompt.tools == ((LOOK,) if by_template else ())
    assert ("<tools>" in prompt.messages[0].text) != by_template
    assert [message.role for message in prompt.messages] == roles
    assert prompt.text.count("Reads a note.") == 1 and prompt.text.count("Reply: <tool_call>") == 1
