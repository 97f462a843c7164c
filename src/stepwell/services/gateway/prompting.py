"""From what is asked to what is sampled: the place in a session's history, its exact prompt, the requests.

Messages are rendered to the exact ids of the recorded line they go on from (`history.py`); where there is
none, or the template rewrites it, they begin a line of their own, and the call's note says so.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import numpy as np

from stepwell.config.gateway import GatewayConfig
from stepwell.core import Request, SamplingParams, TokenState
from stepwell.rendering import Message, Rendered, Renderer, RestartKind, ToolFormat
from stepwell.services.gateway.exchange import Ask, Caller
from stepwell.services.gateway.history import Branch, BranchKind, Place
from stepwell.services.gateway.keeper import checked_messages, checked_text
from stepwell.services.gateway.notes import CallNote
from stepwell.services.gateway.sessions import Session

_SEED_STEP = 1_000_003


@dataclass(slots=True, eq=False)
class Call:
    """One call on its way."""

    ask: Ask
    session: Session
    first: int
    state: TokenState
    requests: list[Request]
    note: CallNote
    place: Place | None = None  # None: plain text
    rendered: Rendered | None = None
    tool_format: ToolFormat | None = None
    first_call: int = 0

    @property
    def reading_options(self) -> tuple[tuple[str, ...], ToolFormat | None, int]:
        """How `reading` is to read what was sampled."""
        return self.ask.stop, self.tool_format, self.first_call


@dataclass(frozen=True, slots=True)
class Prompter:
    """Makes calls of what is asked."""

    renderer: Renderer
    config: GatewayConfig
    context_length: int | None  # tokens that prompt and action may have together; None: unknown

    def place(self, ask: Ask, session: Session) -> Place | None:
        """Where the call belongs in its session; None for plain text. Quick, and on the event loop."""
        if ask.messages is None:
            return None
        messages = checked_messages(ask.messages, with_images=self.renderer.image_format is not None)
        return session.history.place(messages, ask.tools)

    def call(self, caller: Caller, ask: Ask, session: Session, first: int, place: Place | None) -> Call:
        """The call numbered `first` of its session, ready to be sampled. May take long: for a thread."""
        if ask.messages is None or place is None:
            state = TokenState(np.asarray(self._prompt_ids(ask.prompt), dtype=np.int64))
            noted = CallNote(ask.id, first, None, (), (), metadata=ask.metadata)
            return Call(ask, session, first, state, self._requests(ask, session, first, state), noted)
        rendered = self._rendered(place, tuple(ask.messages), ask)
        state = rendered.state
        noted = CallNote(
            ask.id,
            first,
            place.parent.number if place.parent else None,
            place.new,
            ask.tools,
            _branch(place, rendered),
            rendered.extended,
            _superseded(caller, place),
            ask.metadata,
        )
        requests = self._requests(ask, session, first, state)
        call = Call(ask, session, first, state, requests, noted, place, rendered)
        if ask.tools:
            call.tool_format = self.renderer.report.tool_format
            call.first_call = sum(len(message.tool_calls) for message in rendered.messages)
        return call

    def _prompt_ids(self, prompt: str | tuple[int, ...] | None) -> list[int]:
        assert prompt is not None
        if not isinstance(prompt, str):
            return list(prompt)
        return self.renderer.template.encode(checked_text(prompt, "prompt"))

    def _rendered(self, place: Place, messages: tuple[Message, ...], ask: Ask) -> Rendered:
        previous = place.parent.recorded(self.renderer.template) if place.parent else None
        if previous is None:
            return self.renderer.start(messages, ask.tools)
        return self.renderer.go_on(previous, place.new)

    def _requests(self, ask: Ask, session: Session, first: int, state: TokenState) -> list[Request]:
        room = None if self.context_length is None else self.context_length - state.prompt_ids.size
        wanted = ask.max_tokens or self.config.max_tokens
        limits = [limit for limit in (room, wanted) if limit is not None]
        max_tokens = max(1, min(limits)) if limits else SamplingParams().max_tokens
        stop_ids = self.renderer.end_ids if ask.messages is not None else ()
        return [
            Request(
                state,
                SamplingParams(
                    max_tokens,
                    ask.temperature,
                    ask.top_p,
                    self._seed(ask, session, first, choice),
                    ask.stop,
                    stop_ids,
                ),
                conversation=session.id,
                id=f"{ask.id}-{choice}",
            )
            for choice in range(ask.num_choices)
        ]

    def _seed(self, ask: Ask, session: Session, first: int, choice: int) -> int:
        if ask.seed is not None:
            return (ask.seed + choice * _SEED_STEP) % 2**63
        if self.config.seed is None:
            return secrets.randbits(63)
        text = f"{self.config.seed}/{session.id}/{first + choice}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _branch(place: Place, rendered: Rendered) -> Branch | None:
    refusal = rendered.refusal
    if place.branch is None and refusal is not None and refusal.kind is RestartKind.TEMPLATE_REWRITES:
        return Branch(BranchKind.TEMPLATE_REWRITES, refusal.reason)
    return place.branch


def _superseded(caller: Caller, place: Place) -> int | None:
    """The call that this one repeats because its reply was lost; its steps then leave the path."""
    if caller.num_retries and place.again and not (place.again.is_delivered or place.again.is_continued):
        return place.again.call
    return None
