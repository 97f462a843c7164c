"""The agent: turns observations into prompts, and replies into actions.

    agent = Agent(env.description, AgentConfig(strategy="free_think"))
    agent.system_prompt()            the system message: everything that stays the same
    agent.first_prompt(observation)  the first user message; agent.next_prompt(...) every later one
    agent.tools                      tools that a chat template can describe instead of the system message
    agent.read(reply)                what the reply does, and whether it has exactly the requested form
    agent.write(["Up"])              a reply in exactly that form, for demonstrations

With `memory = "dialogue"` a prompt is the whole conversation so far. With `"steps"` every turn has its
own prompt: the system message and one user message, which holds the observation and a short summary
of the earlier turns (`history.py`).

An agent is stateless: episodes may share one. Its texts depend only on the environment's description,
the settings, the observation and the earlier turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.agents.history import PastTurn, format_history
from stepwell.agents.prompt import describe_reply_form, write_system_prompt
from stepwell.agents.reply import Reply, join_actions, read_reply, write_reply
from stepwell.agents.strategy import Field, Strategy, find_strategy
from stepwell.config.run import AgentConfig
from stepwell.core.env_description import EnvDescription, StateForm
from stepwell.core.observation import Observation
from stepwell.core.renamed import renamed_arguments, renamed_members
from stepwell.core.tools import ToolSchema


@renamed_members(system="system_prompt", first="first_prompt", next="next_prompt", world="description")
class Agent:
    """The text interface of a policy in one environment. `strategy` replaces the one named in `config`."""

    @renamed_arguments(world="description")
    def __init__(
        self, description: EnvDescription, config: AgentConfig, strategy: Strategy | None = None
    ) -> None:
        self.description = description
        self.config = config
        self.strategy = strategy or find_strategy(config.strategy)
        self.form = choose_state_form(description, config)
        tells = config.tell_problems
        self.tells_problems = bool(description.actions.tools) if tells is None else tells
        self._system = self._write_system_prompt(with_tools=True)
        self._system_without_tools = self._write_system_prompt(with_tools=False)

    @property
    def keeps_dialogue(self) -> bool:
        """Whether a prompt continues the previous one; otherwise every turn has a new prompt."""
        return self.config.memory == "dialogue"

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        """The tools that the agent is told about; none without the guide."""
        return self.description.actions.callable_tools if self.config.guide else ()

    def system_prompt(self, *, with_tools: bool = True) -> str:
        """The system message: guide, tools, actions, form of a reply, and an example if there is one."""
        return self._system if with_tools else self._system_without_tools

    def first_prompt(self, observation: Observation) -> str:
        """The first user message of an episode."""
        return self._describe_observation(observation)

    def next_prompt(self, observation: Observation, past: Sequence[PastTurn] = ()) -> str:
        """The user message of a later turn, after the turns of `past`."""
        told = self._describe_observation(observation)
        if not self.keeps_dialogue:
            most = self.config.max_history_chars
            done = format_history(self.description.actions, past, most, with_lost=self.tells_problems)
            return f"{told}\n{done}" if told and done else told or done
        if not self.tells_problems or not past or not past[-1].lost:
            return told
        what = (
            "Your last reply could not be read"
            if not past[-1].actions
            else "Not all of your last reply was done"
        )
        problem = f"{what}: {past[-1].lost}."
        return f"{problem}\n{told}" if told else problem

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
        if not self.config.remind:
            return text
        line = describe_reply_form(self.strategy, self.description.actions)
        return f"{text}\n{line}" if text else line

    def _write_system_prompt(self, *, with_tools: bool) -> str:
        return write_system_prompt(
            self.description, self.strategy, self.form, with_guide=self.config.guide, with_tools=with_tools
        )


def choose_state_form(description: EnvDescription, config: AgentConfig) -> StateForm:
    """The form in `config`, or that of the environment's first example, which suits it best."""
    if config.state_form is not None:
        return StateForm(config.state_form)
    return next(iter(description.examples), StateForm.NATURAL_LANGUAGE)
