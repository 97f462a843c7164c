"""From a chat request to engine requests: the match in the session's history, and the exact prompt.

Messages are rendered to the exact ids of the recorded line that they continue (`history.py`). If there is
none, or the template rewrites it, they start a line of their own, and the call's record says so.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import numpy as np

from stepwell.config.gateway import GatewayConfig
from stepwell.core import Request, SamplingParams, TokenState
from stepwell.rendering import Message, RenderedPrompt, Renderer, RestartKind, ToolFormat
from stepwell.services.gateway.base import check_messages, check_text
from stepwell.services.gateway.chat import ChatRequest, GatewayCaller
from stepwell.services.gateway.history import Branch, BranchKind, HistoryMatch
from stepwell.services.gateway.sessions import GatewaySession
from stepwell.services.gateway.step_info import CallRecord

_SEED_STEP = 1_000_003


@dataclass(slots=True, eq=False)
class PendingCall:
    """One call that is being served."""

    chat: ChatRequest
    session: GatewaySession
    first: int
    state: TokenState
    requests: list[Request]
    record: CallRecord
    match: HistoryMatch | None = None  # None: a text completion
    rendered: RenderedPrompt | None = None
    tool_format: ToolFormat | None = None
    first_call: int = 0

    @property
    def reading_options(self) -> tuple[tuple[str, ...], ToolFormat | None, int]:
        """How `replies` reads what was sampled."""
        return self.chat.stop, self.tool_format, self.first_call


@dataclass(frozen=True, slots=True)
class PromptBuilder:
    """Turns chat requests into calls that can be sampled."""

    renderer: Renderer
    config: GatewayConfig
    context_length: int | None  # most tokens of prompt and action together; None: unknown

    def match_history(self, chat: ChatRequest, session: GatewaySession) -> HistoryMatch | None:
        """Where the call belongs in its session; None for a text completion. Fast: runs on the event loop."""
        if chat.messages is None:
            return None
        messages = check_messages(chat.messages, with_images=self.renderer.image_format is not None)
        return session.history.match_messages(messages, chat.tools)

    def build_call(
        self,
        caller: GatewayCaller,
        chat: ChatRequest,
        session: GatewaySession,
        first: int,
        match: HistoryMatch | None,
    ) -> PendingCall:
        """The call whose first step has number `first`, ready to be sampled. Slow: runs in a thread."""
        if chat.messages is None or match is None:
            state = TokenState(np.asarray(self._encode_prompt(chat.prompt), dtype=np.int64))
            record = CallRecord(chat.id, first, None, (), (), metadata=chat.metadata)
            return PendingCall(
                chat, session, first, state, self._build_requests(chat, session, first, state), record
            )
        rendered = self._render_messages(match, tuple(chat.messages), chat)
        state = rendered.state
        record = CallRecord(
            chat.id,
            first,
            match.parent.number if match.parent else None,
            match.new_messages,
            chat.tools,
            _find_branch(match, rendered),
            rendered.extended,
            _find_superseded_call(caller, match),
            chat.metadata,
        )
        requests = self._build_requests(chat, session, first, state)
        call = PendingCall(chat, session, first, state, requests, record, match, rendered)
        if chat.tools:
            call.tool_format = self.renderer.report.tool_format
            call.first_call = sum(len(message.tool_calls) for message in rendered.messages)
        return call

    def _encode_prompt(self, prompt: str | tuple[int, ...] | None) -> list[int]:
        assert prompt is not None
        if not isinstance(prompt, str):
            return list(prompt)
        return self.renderer.template.encode(check_text(prompt, "prompt"))

    def _render_messages(
        self, match: HistoryMatch, messages: tuple[Message, ...], chat: ChatRequest
    ) -> RenderedPrompt:
        previous = match.parent.restore_recorded(self.renderer.template) if match.parent else None
        if previous is None:
            return self.renderer.start(messages, chat.tools)
        return self.renderer.continue_turn(previous, match.new_messages)

    def _build_requests(
        self, chat: ChatRequest, session: GatewaySession, first: int, state: TokenState
    ) -> list[Request]:
        room = None if self.context_length is None else self.context_length - state.prompt_ids.size
        wanted = chat.max_tokens or self.config.max_tokens
        limits = [limit for limit in (room, wanted) if limit is not None]
        max_tokens = max(1, min(limits)) if limits else SamplingParams().max_tokens
        stop_ids = self.renderer.end_ids if chat.messages is not None else ()
        return [
            Request(
                state,
                SamplingParams(
                    max_tokens,
                    chat.temperature,
                    chat.top_p,
                    self._derive_seed(chat, session, first, choice),
                    chat.stop,
                    stop_ids,
                ),
                conversation=session.id,
                id=f"{chat.id}-{choice}",
            )
            for choice in range(chat.num_choices)
        ]

    def _derive_seed(self, chat: ChatRequest, session: GatewaySession, first: int, choice: int) -> int:
        if chat.seed is not None:
            return (chat.seed + choice * _SEED_STEP) % 2**63
        if self.config.seed is None:
            return secrets.randbits(63)
        text = f"{self.config.seed}/{session.id}/{first + choice}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _find_branch(match: HistoryMatch, rendered: RenderedPrompt) -> Branch | None:
    refusal = rendered.refusal
    if match.branch is None and refusal is not None and refusal.kind is RestartKind.TEMPLATE_REWRITES:
        return Branch(BranchKind.TEMPLATE_REWRITES, refusal.reason)
    return match.branch


def _find_superseded_call(caller: GatewayCaller, match: HistoryMatch) -> int | None:
    """The call that this one repeats because its reply was lost. Its steps then leave the path."""
    earlier = match.same_prompt
    if caller.num_retries and earlier and not (earlier.is_delivered or earlier.is_continued):
        return earlier.call
    return None
