"""The agent's side of one conversation: a policy, the engine that samples from it, a renderer.

Prompts and replies (the agent's, or a person's in its place) are in one `Conversation`, so the agent samples
from the same ids as in training.
"""

from __future__ import annotations

from typing import Any

from stepwell.agents import Agent
from stepwell.config.run import RunConfig
from stepwell.core import Observation, Request, SamplingParams, TokenAction, make_id
from stepwell.engines import EmbeddedEngine
from stepwell.policies import CausalLMPolicy, VLMPolicy
from stepwell.rendering import Conversation, Message, Renderer, load_tokenizer
from stepwell.rollout.first_messages import make_user_message, start_conversation
from stepwell.runs.build.vision import check_observation


class LiveAgent:
    """Answers for the agent, turn by turn."""

    def __init__(self, policy: CausalLMPolicy, config: RunConfig, temperature: float) -> None:
        assert policy.source is not None, "a policy opened from a directory knows it"
        tokenizer = load_tokenizer(policy.source)
        self._policy, self._config = policy, config
        sight: dict[str, Any] = {}
        if isinstance(policy, VLMPolicy):
            sight = {"image_format": policy.image_format, "image_store": policy.image_store}
        self._engine = EmbeddedEngine(policy.model, tokenizer, config.engine, **sight)
        self._renderer = Renderer(
            tokenizer,
            config.agent.history,
            context_length=self._engine.max_length,
            room=config.sampling.max_tokens,
            **sight,
        )
        self._params = SamplingParams(
            max_tokens=config.sampling.max_tokens, temperature=temperature, stop_ids=self._renderer.end_ids
        )
        self._talk: Conversation | None = None
        self._messages: list[Message] = []
        self._episode = ""

    def start(self, agent: Agent, text: str, observation: Observation, *, num_turns: int = 0) -> None:
        """Start a conversation; it begins with the last `num_turns` turns of the one before."""
        check_observation(self._config, observation, self._renderer.image_format)
        kept = self._messages[-2 * num_turns :] if num_turns else []
        self._messages = [*kept, self._make_message(text, observation)]
        self._talk = start_conversation(agent, self._renderer, *self._messages)
        self._episode = make_id("play")

    def answer(self) -> str:
        """Sample the agent's reply to the present prompt."""
        talk = self._conversation
        (sampled,) = self._engine.generate_blocking([Request(talk.state, self._params, self._episode)])
        assert isinstance(sampled.action, TokenAction)
        self._messages.append(talk.record_action(sampled.action.action_ids))
        return self._messages[-1].text

    def note(self, text: str) -> None:
        """Take `text` as the reply, as if it had been sampled."""
        ids = [*self._renderer.template.encode_after(text), self._renderer.end_ids[0]]
        self._messages.append(self._conversation.record_action(ids))

    def tell(self, text: str, observation: Observation) -> None:
        """Add the next observation."""
        self._messages.append(self._make_message(text, observation))
        self._conversation.add(self._messages[-1])

    def _make_message(self, text: str, observation: Observation) -> Message:
        return make_user_message(text, observation, self._renderer.image_store)

    def value(self) -> float | None:
        """The critic's value of the present state; None without a critic."""
        if self._policy.critic is None:
            return None
        return float(self._policy.state_values([self._conversation.state])[0])

    def close(self) -> None:
        self._engine.close()

    @property
    def _conversation(self) -> Conversation:
        assert self._talk is not None, "start comes first"
        return self._talk
