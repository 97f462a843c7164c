"""Episodes of an outside model: conversations are messages, and steps are text.

Agent, reply parser and rewards are those of every other text player, so that results of trained and of
outside models mean the same. Only the record differs: a step has neither ids nor probabilities, so it
cannot be trained on. Its new messages and the tokens it took are in `step.info`.

With `api_tools`, tools go into the API's own field and results come back as messages of the role `tool`.
Without it both are part of the prompt, as for a model whose chat template knows no tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from stepwell.agents import Agent, Reply
from stepwell.core import ImageStore, Request, Step, TextState, ToolSchema
from stepwell.envs.turns import Turn
from stepwell.rendering import Message
from stepwell.rollout.chat_messages import OutsideReply, describe_message, make_tool_results
from stepwell.rollout.episode import Episode, PastMessages
from stepwell.rollout.player import RewardOptions, TextPlayer


@dataclass(slots=True)
class ChatConversation:
    """A conversation so far. The messages from `num_known` on are new to the model."""

    messages: list[Message]
    num_known: int = 0
    reply: OutsideReply | None = None

    @property
    def state(self) -> TextState:
        """What the model saw. Its tokens are unknown."""
        return TextState()


class ChatPlayer(TextPlayer):
    """Plays with an `OutsideReply` in place of a sample. Its conversations are `ChatConversation`."""

    def __init__(
        self,
        agent: Agent,
        image_store: ImageStore,
        *,
        api_tools: bool = True,
        **reward_options: Unpack[RewardOptions],
    ) -> None:
        super().__init__(agent, image_store, **reward_options)
        self.tools: tuple[ToolSchema, ...] = agent.tools if api_tools else ()

    def read_reply(self, reply: OutsideReply) -> Reply:
        return self.agent.read(reply.text)

    def record_step(
        self,
        episode: Episode,
        request: Request,
        sampled: OutsideReply,  # type: ignore[override]
        read: Reply,
        turn: Turn,
    ) -> None:
        conversation: ChatConversation = episode.own
        new = conversation.messages[conversation.num_known :]
        num_steps, conversation.reply = len(episode.steps), sampled
        super().record_step(episode, request, sampled, read, turn)  # type: ignore[arg-type]
        if len(episode.steps) > num_steps:
            self._note_messages(episode, new, sampled)

    def record_summary(
        self,
        episode: Episode,
        request: Request,
        sampled: OutsideReply,  # type: ignore[override]
    ) -> bool:
        new = episode.own.messages[episode.own.num_known :]
        if not super().record_summary(episode, request, sampled):  # type: ignore[arg-type]
            return False
        self._note_messages(episode, new, sampled)
        return True

    def _note_messages(self, episode: Episode, new: Sequence[Message], sampled: OutsideReply) -> None:
        notes = {"messages": [describe_message(message) for message in new], **sampled.note}
        episode.steps[-1].info |= notes  # type: ignore[arg-type]

    def _start_conversation(self, messages: Sequence[Message]) -> ChatConversation:
        system = Message.system(self.agent.system_prompt(with_tools=not self.tools))
        return ChatConversation([system, *messages])

    def _record_reply(self, episode: Episode, step: Step) -> Message:
        conversation: ChatConversation = episode.own
        assert conversation.reply is not None
        conversation.messages.append(conversation.reply.message)
        conversation.num_known = len(conversation.messages)
        return conversation.reply.message

    def _add_message(self, episode: Episode, message: Message) -> None:
        messages = episode.own.messages
        messages += _answer_reply(messages[-1], message)

    def _join_turns(self, turns: Sequence[PastMessages], message: Message) -> list[Message]:
        """Tool results need the calls that they answer: the message of the oldest kept turn is text."""
        joined = [turns[0].message, turns[0].reply]
        for turn in turns[1:]:
            joined += [*_answer_reply(joined[-1], turn.message), turn.reply]
        return [*joined, *_answer_reply(joined[-1], message)]


def _answer_reply(reply: Message, message: Message) -> Sequence[Message]:
    return make_tool_results(reply.tool_calls, message) if reply.tool_calls else (message,)
