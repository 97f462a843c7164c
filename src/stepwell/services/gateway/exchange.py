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
from stepwell.core.errors import StepwellError
from stepwell.core.ids import new_id
from stepwell.rendering import Message


@dataclass(frozen=True, slots=True)
class Ask:
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


class Finish(StrEnum):
    """Why an answer ended; dialects have their own words for it."""

    END = "end"
    STOP_STRING = "stop_string"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token as a client may see it; `raw` are the bytes it stands for."""

    id: int
    text: str
    raw: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Choice:
    """One sampled answer: its words (no stop string, no tool-call markup) and the calls it makes."""

    index: int
    text: str
    finish: Finish
    tool_calls: tuple[ToolCall, ...] = ()
    stop_string: str | None = None
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything a call came to. Its steps are in the pool before anyone sees it."""

    id: str  # that of the ask
    created: int  # seconds since 1970
    model: str
    choices: tuple[Choice, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_action_tokens: int
    session: str


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new while an answer is sampled. Tool calls come whole. `tokens` only if logprobs were asked."""

    index: int
    text: str = ""
    tool_call: ToolCall | None = None
    tokens: tuple[Token, ...] = ()


class Kind(StrEnum):
    """What kind of refusal: dialects have a name and a status for each."""

    INVALID = "invalid"  # 400
    UNAUTHENTICATED = "unauthenticated"  # 401
    FORBIDDEN = "forbidden"  # 403
    NOT_FOUND = "not_found"  # 404
    CONFLICT = "conflict"  # 409: the session is over, or busy in a way that excludes this
    TOO_LARGE = "too_large"  # 413
    LIMITED = "limited"  # 429, with retry_after_s
    UNAVAILABLE = "unavailable"  # 503: no engine, or it is overloaded
    INTERNAL = "internal"  # 500


STATUS: dict[Kind, int] = {
    Kind.INVALID: 400,
    Kind.UNAUTHENTICATED: 401,
    Kind.FORBIDDEN: 403,
    Kind.NOT_FOUND: 404,
    Kind.CONFLICT: 409,
    Kind.TOO_LARGE: 413,
    Kind.LIMITED: 429,
    Kind.UNAVAILABLE: 503,
    Kind.INTERNAL: 500,
}


class Refused(StepwellError):
    """A call that is not served: why, in words for the client; `param` names the field at fault."""

    def __init__(
        self, kind: Kind, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, in which session: made from path, headers and key before a dialect sees the call."""

    session: str  # empty: the open session of the key
    key_name: str = ""
    num_retries: int = 0  # how often the client says it has made this call before


class See(Protocol):
    """Takes a picture that a client sent."""

    def __call__(self, raw: bytes, kind: str, param: str) -> str:
        """The name of the picture in a PNG or JPEG file (`kind`); raises `Refused` where it is none."""
        ...


class Answering(Protocol):
    """The gateway as dialects see it."""

    @property
    def see(self) -> See | None:
        """Who takes pictures; None where the policy reads text only."""
        ...

    @property
    def models(self) -> tuple[str, ...]:
        """Names that `Ask.model` may have."""
        ...

    async def answer(self, caller: Caller, ask: Ask) -> Answer:
        """Sample, record, reply. Raises `Refused`. Cancelling the task cancels the sampling."""
        ...

    def stream(self, caller: Caller, ask: Ask) -> AsyncIterator[Delta | Answer]:
        """As `answer`, piece by piece; the last item is the `Answer`, whose steps are committed then.

        The first `anext` may raise `Refused`; a failure later is raised there.
        """
        ...

    def remember(self, caller: Caller, answer_id: str, messages: tuple[Message, ...]) -> None:
        """Keep a conversation under an answer's id (for APIs whose clients send only what is new)."""
        ...

    def recall(self, caller: Caller, answer_id: str) -> tuple[Message, ...]:
        """The conversation kept under an id; `Refused` (not found) where there is none in this session."""
        ...
