"""Episodes of an outside model: the conversation is messages, and what is recorded are words.

The agent, its reader and its rewards are those of every other text player, so that figures of trained
and of outside models mean the same. What differs is the record: a step has neither ids nor
probabilities, so it cannot be trained on; the messages that were new, the answer and the tokens it took
stand in `step.info`.

Tools are told in the API's own field (`api_tools`), and calls answered by messages of the role `tool`,
or both in the prompt, as for a model whose chat template knows no tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from stepwell.agents import Agent, Reply
from stepwell.core import ImageStore, Request, Step, TextState, ToolSchema
from stepwell.envs.turns import Turn
from stepwell.rendering import Message
from stepwell.rollout.chat_messages import Said, answered, message_note
from stepwell.rollout.player import Episode, Rewarding, TextPlayer


@dataclass(slots=True)
class Talk:
    """A conversation as far as it went; the messages from `num_known` on are new to the model."""

    messages: list[Message]
    num_known: int = 0
    said: Said | None = None

    @property
    def state(self) -> TextState:
        """What the model saw. Its tokens are unknown."""
        return TextState()


class ChatPlayer(TextPlayer):
    """Plays with `Said` in place of samples; its conversations are `Talk`."""

    def __init__(
        self, agent: Agent, pictures: ImageStore, *, api_tools: bool = True, **rewarding: Unpack[Rewarding]
    ) -> None:
        super().__init__(agent, pictures, **rewarding)
        self.tools: tuple[ToolSchema, ...] = agent.tools if api_tools else ()

    def read(self, said: Said) -> Reply:
        return self.agent.read(said.text)

    def record(self, episode: Episode, request: Request, sampled: Said, read: Reply, turn: Turn) -> None:  # type: ignore[override]
        talk: Talk = episode.own
        new = talk.messages[talk.num_known :]
        num_steps, talk.said = len(episode.steps), sampled
        super().record(episode, request, sampled, read, turn)  # type: ignore[arg-type]
        if len(episode.steps) > num_steps:
            notes = {"messages": [message_note(message) for message in new], **sampled.note}
            episode.steps[-1].info |= notes  # type: ignore[arg-type]

    def _begun(self, told: Message) -> Talk:
        return Talk([Message.system(self.agent.system_prompt(with_tools=not self.tools)), told])

    def _extend(self, episode: Episode, step: Step, told: Message) -> None:
        talk: Talk = episode.own
        assert talk.said is not None
        reply = talk.said.message
        talk.num_known = len(talk.messages) + 1
        talk.messages += [reply, *(answered(reply.tool_calls, told) if reply.tool_calls else (told,))]
