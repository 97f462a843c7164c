"""One agent's conversation, turn by turn: a renderer and the last turn.

An episode alternates `record_action` (what the engine sampled) and `add` (what the environment
answered), and reads `prompt` in between. Restarts of this conversation are counted here; the
renderer counts those of all conversations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy.typing as npt

from stepwell.core.errors import InputError
from stepwell.core.step import TokenState
from stepwell.core.tools import ToolSchema
from stepwell.rendering.messages import Message
from stepwell.rendering.record import RecordedAction, RenderedPrompt
from stepwell.rendering.renderer import Renderer


class Conversation:
    """A conversation that begins with `messages`; `prompt` is always the prompt to sample from."""

    def __init__(
        self, renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()
    ) -> None:
        self._renderer = renderer
        self._recorded: RecordedAction | None = None
        self.prompt: RenderedPrompt = renderer.start(messages, tools)
        self.restart_reasons: list[str] = []

    @property
    def state(self) -> TokenState:
        """The state to sample the next action from."""
        if self._recorded is not None:
            raise InputError("the last action has no answer yet: call add(...) before reading the state")
        return self.prompt.state

    @property
    def messages(self) -> tuple[Message, ...]:
        return self._recorded.messages if self._recorded else self.prompt.messages

    @property
    def num_restarts(self) -> int:
        """How often the conversation could not continue from its exact ids."""
        return len(self.restart_reasons)

    def record_action(
        self, action_ids: Iterable[int] | npt.NDArray[Any], message: Message | None = None
    ) -> Message:
        """Record the action sampled after the current prompt; return it as a message."""
        if self._recorded is not None:
            raise InputError("two actions in a row: call add(...) with the answer to the first")
        self._recorded = self._renderer.record(self.prompt, action_ids, message)
        return self._recorded.message

    def add(self, *new: Message) -> RenderedPrompt:
        """Append the environment's answer and render the next prompt."""
        if self._recorded is None:
            raise InputError("nothing was sampled yet: call record_action(...) before add(...)")
        return self._set_prompt(self._renderer.continue_turn(self._recorded, new))

    def rewrite(self, messages: Sequence[Message]) -> RenderedPrompt:
        """Continue from other messages (a shortened or summarised history): a new prompt, counted."""
        if self._recorded is None:
            raise InputError("nothing was sampled yet: begin a new conversation instead")
        return self._set_prompt(self._renderer.render(tuple(messages), self._recorded, self.prompt.tools))

    def _set_prompt(self, rendered: RenderedPrompt) -> RenderedPrompt:
        if not rendered.extended and self._renderer.history == "exact":
            self.restart_reasons.append(rendered.reason)
        self.prompt, self._recorded = rendered, None
        return rendered
