"""The contract of a prompt style: prompts explain the reply format, and replies in that format can be parsed.

A style (`agents.Strategy`) is tested on three small environments with different kinds of actions: a few
names, free text, and tool calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepwell.agents import Agent, Field, Strategy, find_strategy
from stepwell.config.run import AgentConfig
from stepwell.core.contract_report import ContractReport, run_checks
from stepwell.core.env_description import ActionSpace, EnvDescription
from stepwell.core.errors import ContractError
from stepwell.core.tools import ToolCall, ToolSchema

_TOOL = ToolSchema(
    "look",
    "look at a place",
    {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
)
_ACTIONS = (
    (ActionSpace(("Up", "Down"), max_per_turn=2), ("Up", "Down")),
    (ActionSpace(), ("forty two",)),
    (ActionSpace(tools=(_TOOL,)), (ToolCall("look", {"at": "door"}).text,)),
)
_FIELDS = (Field.OBSERVATION, Field.REASONING, Field.PREDICTION)


def check_prompt_style(name: str | Strategy) -> ContractReport:
    """Report whether a prompt style keeps its contract."""
    style = find_strategy(name)
    envs = [(EnvDescription("checked", "Reach the goal.", space, 3), actions) for space, actions in _ACTIONS]
    agents = tuple((Agent(env, AgentConfig(), style), actions) for env, actions in envs)
    return run_checks(f"prompt style {style.name}", CHECKS, StyleProbe(style, agents))


@dataclass(frozen=True)
class StyleProbe:
    """The style, and an agent that uses it in each environment, with actions of that environment."""

    style: Strategy
    agents: tuple[tuple[Agent, tuple[str, ...]], ...]


def prompts_say_the_form_of_a_reply(probe: StyleProbe) -> str:
    opening = probe.style.marks[0].text
    for agent, _ in probe.agents:
        prompt = agent.system_prompt()
        thinking = [mark.text for mark in probe.style.marks[:-2]]
        if any(text not in prompt for text in thinking):
            raise ContractError(f"the system prompt does not show {', '.join(thinking)}")
    return f"replies begin with {opening}"


def replies_in_the_form_are_read_back(probe: StyleProbe) -> str:
    said = {field.value: f"some {field.value}" for field in _FIELDS}
    for agent, actions in probe.agents:
        reply = agent.read(agent.write(list(actions), **said))
        if not reply.is_strict or reply.actions != actions:
            raise ContractError(
                f"a reply in the required form is not read as such: {reply.problem or reply.actions}"
            )
        for field in probe.style.fields:
            if field in _FIELDS and getattr(reply, field.value) != said[field.value]:
                raise ContractError(f"{field.value} is read back as {getattr(reply, field.value)!r}")
    return f"{', '.join(probe.style.fields)} in {len(probe.agents)} environments"


def truncated_replies_are_not_strict(probe: StyleProbe) -> str:
    count = 0
    for agent, actions in probe.agents:
        whole = agent.write(list(actions), reasoning="because", observation="here", prediction="there")
        for end in range(len(whole)):
            count += 1
            if agent.read(whole[:end]).is_strict:
                raise ContractError(f"{whole[:end]!r} counts as the required form, though its end is missing")
    return f"{count} replies cut short are read, and none counts as the required form"


CHECKS: tuple[Callable[[StyleProbe], str], ...] = (
    replies_in_the_form_are_read_back,
    prompts_say_the_form_of_a_reply,
    truncated_replies_are_not_strict,
)
