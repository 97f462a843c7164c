"""The agent's words: a world's observations as prompts, and replies as actions.

    agent = Agent(env.world, AgentConfig(strategy="free_think"))
    agent.system()            the system message: everything that stays the same
    agent.first(observation)  the first user message; agent.next(...) every later one
    agent.tools               what a chat template may be asked to tell, in place of system()
    agent.read(reply)         what the reply does, and whether it has exactly the asked form
    agent.write(["Up"])       a reply in exactly that form, for demonstrations

With `memory = "dialogue"` a prompt is the whole conversation so far. With `"steps"` every turn has a
prompt of its own: the system message and one user message, which holds the observation and, in a few
lines, what was done so far (`history.py`).

An agent is stateless: two episodes may share one, and its texts are a function of world,
settings, observation and the turns so far.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.agents.history import Past, history_text
from stepwell.agents.prompt import reply_line, system_prompt
from stepwell.agents.reply import Reply, join_actions, read_reply, write_reply
from stepwell.agents.strategy import Field, Strategy, strategy_named
from stepwell.config.run import AgentConfig
from stepwell.core.env_description import EnvDescription, StateForm
from stepwell.core.observation import Observation
from stepwell.core.tools import ToolSchema


class Agent:
    """Speaks for a policy in one world. `strategy` replaces the one that `config` names."""

    def __init__(self, world: EnvDescription, config: AgentConfig, strategy: Strategy | None = None) -> None:
        self.world = world
        self.config = config
        self.strategy = strategy or strategy_named(config.strategy)
        self.form = form_of(world, config)
        tells = config.tell_problems
        self.tells_problems = bool(world.actions.tools) if tells is None else tells
        self._system = self._system_prompt(with_tools=True)
        self._system_without_tools = self._system_prompt(with_tools=False)

    @property
    def keeps_dialogue(self) -> bool:
        """Whether prompts go on from the last one, or are made afresh for every turn."""
        return self.config.memory == "dialogue"

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        """The tools an agent is told of; none where it is told no guide."""
        return self.world.actions.callable_tools if self.config.guide else ()

    def system(self, *, with_tools: bool = True) -> str:
        """The system message: guide, tools, actions, form of a reply, and the world's example if any."""
        return self._system if with_tools else self._system_without_tools

    def first(self, observation: Observation) -> str:
        """The user message that opens an episode."""
        return self._told(observation)

    def next(self, observation: Observation, past: Sequence[Past] = ()) -> str:
        """The user message of a later turn, after the turns of `past`."""
        told = self._told(observation)
        if not self.keeps_dialogue:
            most = self.config.max_history_chars
            done = history_text(self.world.actions, past, most, with_lost=self.tells_problems)
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
        """What a reply does and says; never raises."""
        return read_reply(self.strategy, self.world.actions, reply)

    def write(
        self, actions: Sequence[str], *, observation: str = "", reasoning: str = "", prediction: str = ""
    ) -> str:
        """A reply that does `actions`, in exactly the asked form; fields without a tag are left out."""
        fields = {
            Field.OBSERVATION: observation,
            Field.REASONING: reasoning,
            Field.PREDICTION: prediction,
            Field.ANSWER: join_actions(self.world.actions, actions),
        }
        return write_reply(self.strategy, self.world.actions, fields)

    def _told(self, observation: Observation) -> str:
        text = observation.text
        if observation.images and not text:
            text = (
                "The picture shows the state."
                if len(observation.images) == 1
                else ("The pictures show the state.")
            )
        if not self.config.remind:
            return text
        line = reply_line(self.strategy, self.world.actions)
        return f"{text}\n{line}" if text else line

    def _system_prompt(self, *, with_tools: bool) -> str:
        return system_prompt(
            self.world, self.strategy, self.form, with_guide=self.config.guide, with_tools=with_tools
        )


def form_of(world: EnvDescription, config: AgentConfig) -> StateForm:
    """The form that is asked for, or the first that the world has an example of: it suits the world best."""
    if config.state_form is not None:
        return StateForm(config.state_form)
    return next(iter(world.examples), StateForm.NATURAL_LANGUAGE)
