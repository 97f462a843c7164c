"""One call in no dialect: what a client asks for, and what it gets.

    dialect JSON ─► Ask ─► gateway (history, engine, pool) ─► Answer, or Delta … Answer ─► dialect JSON

Dialects (`dialects/`) know JSON and nothing of tokens; the gateway knows tokens and nothing of
JSON. They meet in these types and in `Refused`, which every dialect writes in its own form.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from stepwell.core import ToolCall, ToolSchema
from stepwell.core.ids import new_id
from stepwell.rendering import Message


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a client wants sampled. Exactly one of `messages` (chat) and `prompt` (plain text or ids)."""

    model: str
    messages: tuple[Message, ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    tools: tuple[ToolSchema, ...] = ()
    num_choices: int = 1
    max_tokens: int | None = None  # None: whatever the context leaves
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    num_top_logprobs: int | None = None  # None: no logprobs; 0: of the sampled tokens
    metadata: dict[str, str] = field(default_factory=dict)  # kept with the step, as provenance
    id: str = field(default_factory=lambda: new_id("call"))  # the answer's id too: a stream begins with it


class ChoiceFinish(StrEnum):
    """Why an answer ended; dialects have their own words for it."""

    END = "end"
    STOP_STRING = "stop_string"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One sampled token as a client may see it; `raw` are the bytes it stands for."""

    id: int
    text: str
    raw: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class CompletionChoice:
    """One sampled answer: its words (no stop string, no tool-call markup) and the calls it makes."""

    index: int
    text: str
    finish: ChoiceFinish
    tool_calls: tuple[ToolCall, ...] = ()
    stop_string: str | None = None
    tokens: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """Everything a call came to. Its steps are in the pool before anyone sees it."""

    id: str  # that of the ask
    created: int  # seconds since 1970
    model: str
    choices: tuple[CompletionChoice, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_action_tokens: int
    session: str


@dataclass(frozen=True, slots=True)
class CompletionDelta:
    """What is new while an answer is sampled. Tool calls come whole. `tokens` only if logprobs were asked."""

    index: int
    text: str = ""
    tool_call: ToolCall | None = None
    tokens: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewayCaller:
    """Who calls, in which session: made from path, headers and key before a dialect sees the call."""

    session: str  # empty: the open session of the key
    key_name: str = ""
    num_retries: int = 0  # how often the client says it has made this call before


class ImageDecoder(Protocol):
    """Takes a picture that a client sent."""

    def __call__(self, raw: bytes, kind: str, param: str) -> str:
        """The name of the picture in a PNG or JPEG file (`kind`); raises `Refused` where it is none."""
        ...


class ChatBackend(Protocol):
    """The gateway as dialects see it."""

    @property
    def image_decoder(self) -> ImageDecoder | None:
        """Who takes pictures; None where the policy reads text only."""
        ...

    @property
    def models(self) -> tuple[str, ...]:
        """Names that `Ask.model` may have."""
        ...

    async def complete_chat(self, caller: GatewayCaller, chat: ChatRequest) -> ChatCompletion:
        """Sample, record, reply. Raises `Refused`. Cancelling the task cancels the sampling."""
        ...

    def stream_chat(
        self, caller: GatewayCaller, chat: ChatRequest
    ) -> AsyncIterator[CompletionDelta | ChatCompletion]:
        """As `answer`, piece by piece; the last item is the `Answer`, whose steps are committed then.

        The first `anext` may raise `Refused`; a failure later is raised there.
        """
        ...

    def remember_conversation(
        self, caller: GatewayCaller, answer_id: str, messages: tuple[Message, ...]
    ) -> None:
        """Keep a conversation under an answer's id (for APIs whose clients send only what is new)."""
        ...

    def recall_conversation(self, caller: GatewayCaller, answer_id: str) -> tuple[Message, ...]:
        """The conversation kept under an id; `Refused` (not found) where there is none in this session."""
        ...
