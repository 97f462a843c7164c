"""The agent: turns observations into prompts, and replies into actions.

    agent = Agent(env.description, AgentConfig(strategy="free_think"))
    agent.system_prompt()            the system message: everything that stays the same
    agent.first_prompt(observation)  the first user message; agent.next_prompt(...) every later one
    agent.tools                      tools that a chat template can describe instead of the system message
    agent.read(reply)                what the reply does, and whether it has exactly the requested form
    agent.write(["Up"])              a reply in exactly that form, for demonstrations

`agent.context` decides what a prompt holds of the earlier turns:

    dialogue      all of them, as messages
    observation   one user message: the present observation and a list of what was done (`history.py`)
    window        the last `context_turns` turns, as messages
    summary       what the policy wrote when it was asked for a summary (`ask_for_summary`), at the beginning
                  of the first user message (`prompt_after_summary`), and the turns since then, as messages

An agent is stateless: episodes may share one. Its texts depend only on the environment's description,
the settings, the observation and the earlier turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.agents.calls import cut_thinking
from stepwell.agents.history import PastTurn, format_history
from stepwell.agents.prompt import describe_reply_form, write_system_prompt
from stepwell.agents.reply import Reply, join_actions, read_reply, write_reply
from stepwell.agents.strategy import Field, Strategy, find_strategy
from stepwell.config.run import AgentConfig
from stepwell.core.env_description import EnvDescription, StateForm
from stepwell.core.observation import Observation
from stepwell.core.tools import ToolSchema

SUMMARY_REQUEST = (
    "Do not act now. Write a short summary of all turns so far: what was done, what was found, what is left "
    "to do. It replaces these turns."
)
SUMMARY_HEAD = "Your summary of the turns so far:"


class Agent:
    """The text interface of a policy in one environment. `strategy` replaces the one named in `config`."""

    def __init__(
        self, description: EnvDescription, config: AgentConfig, strategy: Strategy | None = None
    ) -> None:
        self.description = description
        self.config = config
        self.strategy = strategy or find_strategy(config.strategy)
        self.form = choose_state_form(description, config)
        wanted = config.report_problems
        self.reports_problems = bool(description.actions.tools) if wanted is None else wanted
        self._system = self._write_system_prompt(with_tools=True)
        self._system_without_tools = self._write_system_prompt(with_tools=False)

    @property
    def keeps_dialogue(self) -> bool:
        """Whether every prompt continues the previous one, up to the end of the episode."""
        return self.config.context == "dialogue"

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        """The tools that the prompt describes; none without the guide."""
        return self.description.actions.callable_tools if self.config.guide else ()

    def system_prompt(self, *, with_tools: bool = True) -> str:
        """The system message: guide, tools, actions, form of a reply, and an example if there is one."""
        return self._system if with_tools else self._system_without_tools

    def first_prompt(self, observation: Observation) -> str:
        """The first user message of an episode."""
        return self._describe_observation(observation)

    def next_prompt(self, observation: Observation, past: Sequence[PastTurn] = ()) -> str:
        """The user message of a later turn, after the turns of `past`."""
        current = self._describe_observation(observation)
        if self.config.context == "observation":
            return _join_lines(current, self.list_turns(past))
        if not self.reports_problems or not past or not past[-1].lost:
            return current
        what = (
            "Your last reply could not be read"
            if not past[-1].actions
            else "Not all of your last reply was done"
        )
        return _join_lines(f"{what}: {past[-1].lost}.", current)

    def list_turns(self, past: Sequence[PastTurn]) -> str:
        """What was done in earlier turns, one line each."""
        return format_history(
            self.description.actions,
            past,
            self.config.max_history_chars,
            line_chars=self.description.history_line_chars,
            with_lost=self.reports_problems,
        )

    def ask_for_summary(self, prompt: str) -> str:
        """The user message that asks for a summary instead of an action, after the turn's own `prompt`."""
        return _join_lines(prompt, SUMMARY_REQUEST)

    def read_summary(self, reply: str) -> str:
        """The summary in a reply: what follows the thinking, cut at `max_history_chars`; never raises."""
        text = cut_thinking(self.strategy, reply)[1].strip()
        return text[: self.config.max_history_chars]

    def prompt_after_summary(self, summary: str, prompt: str) -> str:
        """The user message with which a conversation starts again after a summary."""
        return _join_lines(f"{SUMMARY_HEAD}\n{summary}" if summary else "", prompt)

    def read(self, reply: str) -> Reply:
        """The actions and contents of a reply; never raises."""
        return read_reply(self.strategy, self.description.actions, reply)

    def write(
        self, actions: Sequence[str], *, observation: str = "", reasoning: str = "", prediction: str = ""
    ) -> str:
        """A reply with `actions` in exactly the requested form; fields without a tag are left out."""
        fields = {
            Field.OBSERVATION: observation,
            Field.REASONING: reasoning,
            Field.PREDICTION: prediction,
            Field.ANSWER: join_actions(self.description.actions, actions),
        }
        return write_reply(self.strategy, self.description.actions, fields)

    def _describe_observation(self, observation: Observation) -> str:
        text = observation.text
        if observation.images and not text:
            one = len(observation.images) == 1
            text = "The picture shows the state." if one else "The pictures show the state."
        if not self.config.repeat_format:
            return text
        line = describe_reply_form(self.strategy, self.description.actions)
        return f"{text}\n{line}" if text else line

    def _write_system_prompt(self, *, with_tools: bool) -> str:
        return write_system_prompt(
            self.description, self.strategy, self.form, with_guide=self.config.guide, with_tools=with_tools
        )


def _join_lines(*texts: str) -> str:
    return "\n".join(text for text in texts if text)


def choose_state_form(description: EnvDescription, config: AgentConfig) -> StateForm:
    """The form in `config`, or that of the environment's first example, which suits it best."""
    if config.state_form is not None:
        return StateForm(config.state_form)
    return next(iter(description.examples), StateForm.NATURAL_LANGUAGE)
