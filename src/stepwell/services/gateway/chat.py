"""A chat call, independent of any vendor's API: the request and the completion.

    vendor's JSON ─► ChatRequest ─► gateway (history, engine, pool) ─► ChatCompletion, or
                                       CompletionDelta … ChatCompletion ─► vendor's JSON

Dialects (`dialects/`) know JSON but no tokens; the gateway knows tokens but no JSON. They meet in these types
and in `ServiceError`, which every dialect writes in its own format.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from stepwell.core import ToolCall, ToolSchema
from stepwell.core.ids import make_id
from stepwell.rendering import Message


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a client wants sampled. Exactly one of `messages` (chat) and `prompt` (text or ids) is set."""

    model: str
    messages: tuple[Message, ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    tools: tuple[ToolSchema, ...] = ()
    num_choices: int = 1
    max_tokens: int | None = None  # None: as many as fit the context
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    num_top_logprobs: int | None = None  # None: no logprobs; 0: those of the sampled tokens
    metadata: dict[str, str] = field(default_factory=dict)  # stored with the step
    id: str = field(default_factory=lambda: make_id("call"))  # also the id of the completion


class ChoiceFinish(StrEnum):
    """Why a choice ended. Every dialect has its own names for these."""

    END = "end"
    STOP_STRING = "stop_string"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One sampled token as a client sees it. `raw` holds the bytes it stands for."""

    id: int
    text: str
    raw: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class CompletionChoice:
    """One sampled reply: its text (without stop string and tool-call markup) and its tool calls."""

    index: int
    text: str
    finish: ChoiceFinish
    tool_calls: tuple[ToolCall, ...] = ()
    stop_string: str | None = None
    tokens: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """The complete result of a call. Its steps are in the pool before anyone sees it."""

    id: str  # that of the request
    created: int  # seconds since 1970
    model: str
    choices: tuple[CompletionChoice, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_action_tokens: int
    session: str


@dataclass(frozen=True, slots=True)
class CompletionDelta:
    """What is new while a completion is sampled. A tool call is sent in one piece.

    `tokens` is filled only if logprobs were requested.
    """

    index: int
    text: str = ""
    tool_call: ToolCall | None = None
    tokens: tuple[TokenLogprob, ...] = ()


StreamItem = CompletionDelta | ChatCompletion


@dataclass(frozen=True, slots=True)
class GatewayCaller:
    """Who calls, and in which session. Made from path, headers and key before a dialect sees the call."""

    session: str  # empty: the open session of the key
    key_name: str = ""
    num_retries: int = 0  # how often the client made this call before, as it says


class ImageDecoder(Protocol):
    """Stores an image that a client sent."""

    def __call__(self, raw: bytes, kind: str, param: str) -> str:
        """The name of the image in a PNG or JPEG file (`kind`). Raises `ServiceError` for other data."""


class ChatBackend(Protocol):
    """The gateway as the dialects see it."""

    @property
    def image_decoder(self) -> ImageDecoder | None:
        """Decodes images; None if the policy reads text only."""

    @property
    def models(self) -> tuple[str, ...]:
        """The names that `ChatRequest.model` may have."""

    async def complete_chat(self, caller: GatewayCaller, chat: ChatRequest) -> ChatCompletion:
        """Sample, record, reply. Raises `ServiceError`. Cancelling the task cancels the sampling."""

    def stream_chat(self, caller: GatewayCaller, chat: ChatRequest) -> AsyncIterator[StreamItem]:
        """Like `complete_chat`, piece by piece. The last item is the `ChatCompletion`, its steps committed.

        Errors are raised by `anext` as `ServiceError`: by the first one, or later if sampling fails.
        """

    def remember_conversation(
        self, caller: GatewayCaller, answer_id: str, messages: tuple[Message, ...]
    ) -> None:
        """Store a conversation under a completion's id (some clients send only what is new)."""

    def recall_conversation(self, caller: GatewayCaller, answer_id: str) -> tuple[Message, ...]:
        """The conversation stored under an id. Raises `ServiceError` (not found) if there is none."""
