"""Rendered prompts and sampled actions: the exact ids of a conversation so far.

`RenderedPrompt` is a prompt. `RecordedAction` is a prompt with the action sampled after it; the next prompt
extends it. Both are immutable, so a conversation may branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.core.arrays import IntArray
from stepwell.core.step import ImageSpan, TokenState
from stepwell.core.tools import ToolCall, ToolSchema
from stepwell.rendering.messages import Message
from stepwell.rendering.refusal import Refusal, RestartKind
from stepwell.rendering.template_skeleton import Roles, TemplateSkeleton


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """An assistant turn whose ids in the prompt, [start, end), were sampled by the engine."""

    message_index: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class RenderedPrompt:
    """One prompt: its ids, its messages, and how it was made.

    `extended` means that the ids begin with the previous prompt and action, token by token. `refusal` is the
    reason why not, if there was a previous turn; a first prompt has none. `text` is what the template writes
    for these messages; with a known template skeleton it is filled in only when it is read. `roles` are the
    roles of the messages if all are plain. `images` are the places of images among the ids.
    """

    prompt_ids: IntArray
    written: str | TemplateSkeleton
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    turns: tuple[SampledTurn, ...] = ()
    extended: bool = False
    refusal: Refusal | None = None
    roles: Roles | None = None
    images: tuple[ImageSpan, ...] = ()

    @property
    def text(self) -> str:
        if isinstance(self.written, str):
            return self.written
        return self.written.fill([message.text for message in self.messages])

    @property
    def reason(self) -> str:
        """Why the previous turn was not extended; empty if it was, or if there was none."""
        return self.refusal.reason if self.refusal else ""

    @property
    def state(self) -> TokenState:
        """The state of this prompt's step."""
        return TokenState(self.prompt_ids, self.images)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedAction:
    """A prompt and the action sampled after it. `message` is that action as a message."""

    rendered: RenderedPrompt
    action_ids: IntArray
    message: Message

    @property
    def ids(self) -> IntArray:
        """The beginning of every extension: prompt and action, unchanged."""
        return np.concatenate([self.rendered.prompt_ids, self.action_ids])

    @property
    def messages(self) -> tuple[Message, ...]:
        return (*self.rendered.messages, self.message)

    @property
    def turns(self) -> tuple[SampledTurn, ...]:
        start = self.rendered.prompt_ids.size
        last = SampledTurn(len(self.rendered.messages), start, start + self.action_ids.size)
        return (*self.rendered.turns, last)

    def find_mismatch(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], prompt_extra: str = ""
    ) -> Refusal | None:
        """Why `messages` do not continue this record; None if they do, with at least one new message.

        The sampled turn may come back as a client saw it: without the text that the generation prompt had
        opened (`prompt_extra`), with other spaces at its ends, or with other ids on its tool calls.
        """
        known = self.rendered.messages
        if tuple(tools) != self.rendered.tools:
            return Refusal(RestartKind.TOOLS_CHANGED, "the tools are not those of the previous turn")
        for index, (old, new) in enumerate(zip(known, messages, strict=False)):
            if old is not new and not _is_same_message(old, new):
                return _refuse_history(f"message {index} ({old.role}) is not the one of the previous turn")
        if len(messages) <= len(known) + 1:
            return _refuse_history(f"{len(messages)} messages do not go beyond the {len(known) + 1} recorded")
        reply = messages[len(known)]
        if not (_is_same_message(self.message, reply) or _is_same_message(self.message, reply, prompt_extra)):
            return Refusal(RestartKind.TURN_CHANGED, f"message {len(known)} is not the turn that was sampled")
        return None


def _refuse_history(reason: str) -> Refusal:
    return Refusal(RestartKind.HISTORY_CHANGED, reason)


def _is_same_message(old: Message, new: Message, prompt_extra: str = "") -> bool:
    if old.role != new.role:
        return False
    if old.role != "assistant":
        return old == new
    same_words = old.text.strip() == (prompt_extra + new.text).strip()
    return same_words and _are_same_calls(old.tool_calls, new.tool_calls)


def _are_same_calls(old: Sequence[ToolCall], new: Sequence[ToolCall]) -> bool:
    return [(call.name, call.arguments) for call in old] == [(call.name, call.arguments) for call in new]
