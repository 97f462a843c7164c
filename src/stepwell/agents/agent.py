"""The agent's words: a world's observations as prompts, and replies as actions.

    agent = Agent(env.world, AgentConfig(strategy="free_think"))
    agent.system()            the system message: everything that stays the same
    agent.first(observation)  the first user message; agent.next(...) every later one
    agent.read(reply)         what the reply does, and whether it has exactly the asked form
    agent.write(["Up"])       a reply in exactly that form, for demonstrations

An agent is stateless: two episodes may share one, and its texts are a function of world,
settings and observation alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.agents.prompt import reply_line, system_prompt
from stepwell.agents.reply import Reply, join_actions, read_reply, write_reply
from stepwell.agents.strategy import Field, Strategy, strategy_named
from stepwell.config.run import AgentConfig
from stepwell.core.observation import Observation
from stepwell.core.world import StateForm, World


class Agent:
    """Speaks for a policy in one world. `strategy` replaces the one that `config` names."""

    def __init__(self, world: World, config: AgentConfig, strategy: Strategy | None = None) -> None:
        self.world = world
        self.config = config
        self.strategy = strategy or strategy_named(config.strategy)
        self.form = StateForm(config.state_form)
        self._system = system_prompt(world, self.strategy, self.form, with_guide=config.guide)

    def system(self) -> str:
        """The system message: guide, actions, form of a reply, and the world's example if it has one."""
        return self._system

    def first(self, observation: Observation) -> str:
        """The user message that opens an episode."""
        return self._told(observation)

    def next(self, observation: Observation) -> str:
        """The user message of a later turn."""
        return self._told(observation)

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
        return f"{text}\n{reply_line(self.strategy)}" if text else reply_line(self.strategy)
