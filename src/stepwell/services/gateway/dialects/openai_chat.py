"""OpenAI's chat completions: `POST /v1/chat/completions`, in one piece or as a stream.

Tool calls are streamed whole. With `tool_choice: "none"` the policy is not shown the tools,
which makes the prompt another one than with them. `seed`, `stop`, `n` and `logprobs` do what
they say; see `openai_shared.py` for what is refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from stepwell.core import ToolCall, ToolSchema
from stepwell.core.ids import new_id
from stepwell.rendering import Message
from stepwell.services.gateway.dialects import openai_shared as shared
from stepwell.services.gateway.dialects.bodies import (
    MAX_CHOICES,
    Body,
    MaxTokens,
    Seed,
    Temperature,
    TopP,
    joined,
    new_call,
    new_tool_schema,
    refuse_given,
    refuse_picture,
    temperature_of,
)
from stepwell.services.gateway.dialects.pictures import content_of, from_url
from stepwell.services.gateway.dialects.refusals import Vendor, error_body
from stepwell.services.gateway.dialects.route import event
from stepwell.services.gateway.exchange import Answer, Ask, Choice, Delta, Finish, Refused, See, Token


class TextPart(Body):
    """A piece of text."""

    type: Literal["text"]
    text: str


class RefusalPart(Body):
    """A piece of text with which an assistant declined."""

    type: Literal["refusal"]
    refusal: str


class ImageUrl(Body):
    """A picture as a data URL."""

    url: str


class ImageUrlPart(Body):
    """A picture, for a policy that sees."""

    type: Literal["image_url"]
    image_url: ImageUrl


class OtherPart(Body):
    """A sound or file: known, and refused until a policy that perceives it is served."""

    type: Literal["input_audio", "file"]


class SystemTurn(Body):
    """Instructions."""

    role: Literal["system", "developer"]
    content: str | list[TextPart]
    name: str | None = None


class UserTurn(Body):
    """What a user said."""

    role: Literal["user"]
    content: str | list[Annotated[TextPart | ImageUrlPart | OtherPart, Field(discriminator="type")]]
    name: str | None = None


class CalledFunction(Body):
    """A function's name, and its arguments as JSON text."""

    name: str
    arguments: str


class Call(Body):
    """A call that the assistant made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantTurn(Body):
    """What the assistant said and called."""

    role: Literal["assistant"]
    content: str | list[Annotated[TextPart | RefusalPart, Field(discriminator="type")]] | None = None
    tool_calls: list[Call] | None = None


class ToolTurn(Body):
    """What came of a call."""

    role: Literal["tool"]
    content: str | list[TextPart]
    tool_call_id: str


Turn = Annotated[SystemTurn | UserTurn | AssistantTurn | ToolTurn, Field(discriminator="role")]


class Function(Body):
    """A function that may be called; `parameters` are a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Body):
    """A tool; only functions are served."""

    type: Literal["function"]
    function: Function


class ChatRequest(Body):
    """The body of a chat completion."""

    model: str
    messages: Annotated[list[Turn], Field(min_length=1)]
    max_completion_tokens: MaxTokens | None = None
    max_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: shared.Stop | None = None
    seed: Seed | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: shared.StreamOptions | None = None
    tools: list[Tool] | None = None
    tool_choice: shared.ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: shared.ResponseFormat | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    functions: list[Any] | None = None
    modalities: list[str] | None = None
    web_search_options: dict[str, Any] | None = None


def ask_of(body: ChatRequest, see: See | None = None) -> Ask:
    """What a body asks for; `see` takes the pictures in it."""
    refuse_given(
        {
            "frequency_penalty": (body.frequency_penalty, shared.NO_PENALTY),
            "presence_penalty": (body.presence_penalty, shared.NO_PENALTY),
            "logit_bias": (body.logit_bias, shared.NO_PENALTY),
            "functions": (body.functions, "this form is deprecated; use 'tools'"),
            "web_search_options": (body.web_search_options, "no search engine is attached; offer a tool"),
            "modalities": ("audio" in (body.modalities or ()), "only text is served"),
            "top_logprobs": (body.top_logprobs, shared.ONLY_SAMPLED),
        }
    )
    shared.refuse_format(body.response_format, "response_format")
    tools = [_tool(tool, index) for index, tool in enumerate(body.tools or ())]
    return Ask(
        model=body.model,
        messages=tuple(_messages(body.messages, see)),
        tools=shared.offered(tools, body.tool_choice, body.parallel_tool_calls),
        num_choices=body.n or 1,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        temperature=temperature_of(body.temperature),
        top_p=1.0 if body.top_p is None else body.top_p,
        stop=shared.stops(body.stop),
        seed=body.seed,
        num_top_logprobs=0 if body.logprobs else None,
        metadata=shared.provenance(body.metadata, body.user),
        id=new_id("chatcmpl"),
    )


def reply(ask: Ask, answer: Answer) -> dict[str, Any]:
    """An answer as one JSON object."""
    with_logprobs = ask.num_top_logprobs is not None
    return {
        "id": answer.id,
        "object": "chat.completion",
        "created": answer.created,
        "model": ask.model,
        "choices": [_choice(choice, with_logprobs) for choice in answer.choices],
        "usage": shared.usage(answer),
    }


class ChatWriter:
    """An answer as a stream of chunks."""

    def __init__(self, ask: Ask, *, with_usage: bool) -> None:
        self._ask, self._with_usage = ask, with_usage
        self._created = int(time.time())
        self._num_calls = [0] * ask.num_choices

    def begin(self) -> Iterator[bytes]:
        for index in range(self._ask.num_choices):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def delta(self, delta: Delta) -> Iterator[bytes]:
        logprobs = _logprobs(delta.tokens) if delta.tokens else None
        if delta.text or (delta.tokens and delta.tool_call is None):
            yield self._chunk(delta.index, {"content": delta.text}, logprobs)
            logprobs = None
        if delta.tool_call is not None:
            call = {"index": self._num_calls[delta.index], **_call(delta.tool_call)}
            self._num_calls[delta.index] += 1
            yield self._chunk(delta.index, {"tool_calls": [call]}, logprobs)

    def end(self, answer: Answer) -> Iterator[bytes]:
        for choice in answer.choices:
            yield self._chunk(choice.index, {}, finish=_finish(choice))
        if self._with_usage:
            yield event({**self._head(), "choices": [], "usage": shared.usage(answer)})
        yield b"data: [DONE]\n\n"

    def failed(self, refused: Refused) -> bytes:
        return event(error_body(Vendor.OPENAI, refused))

    def _head(self) -> dict[str, Any]:
        head = {"id": self._ask.id, "object": "chat.completion.chunk", "created": self._created}
        return {**head, "model": self._ask.model}

    def _chunk(self, index: int, delta: dict[str, Any], logprobs: Any = None, finish: Any = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return event({**self._head(), "choices": [choice], **({"usage": None} if self._with_usage else {})})


def _messages(turns: Iterable[Turn], see: See | None) -> Iterator[Message]:
    names: dict[str, str] = {}  # of the calls so far: templates may write the name beside a result
    for index, turn in enumerate(turns):
        param = f"messages[{index}]"
        if isinstance(turn, SystemTurn):
            yield Message("system", _words(turn.content, param), name=turn.name or "")
        elif isinstance(turn, UserTurn):
            yield Message("user", _shown(turn.content, param, see), name=turn.name or "")
        elif isinstance(turn, AssistantTurn):
            message = _assistant(turn, param)
            names |= {call.id: call.name for call in message.tool_calls}
            yield message
        else:
            name = names.get(turn.tool_call_id, "")
            yield Message("tool", _words(turn.content, param), tool_call_id=turn.tool_call_id, name=name)


def _words(content: str | list[TextPart], param: str) -> str:
    return content if isinstance(content, str) else joined([part.text for part in content])


def _shown(content: str | list[Any], param: str, see: See | None) -> str | tuple[Any, ...]:
    if isinstance(content, str):
        return content
    pieces: list[Any] = []
    for index, part in enumerate(content):
        place = f"{param}.content[{index}]"
        if isinstance(part, OtherPart):
            refuse_picture(place)
        pieces.append(
            from_url(part.image_url.url, see, place) if isinstance(part, ImageUrlPart) else part.text
        )
    return content_of(pieces)


def _assistant(turn: AssistantTurn, param: str) -> Message:
    content = turn.content or ""
    if not isinstance(content, str):  # pieces of what was sampled: nothing between them
        content = "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)
    calls = [
        new_call(
            call.function.name,
            call.function.arguments,
            call.id,
            f"{param}.tool_calls[{index}].function.arguments",
        )
        for index, call in enumerate(turn.tool_calls or ())
    ]
    return Message("assistant", content, tuple(calls))


def _tool(tool: Tool, index: int) -> ToolSchema:
    function = tool.function
    param = f"tools[{index}].function"
    return new_tool_schema(function.name, function.description, function.parameters, param)


def _choice(choice: Choice, with_logprobs: bool) -> dict[str, Any]:
    calls = [_call(call) for call in choice.tool_calls]
    message = {"role": "assistant", "content": choice.text or (None if calls else ""), "refusal": None}
    return {
        "index": choice.index,
        "message": {**message, **({"tool_calls": calls} if calls else {})},
        "logprobs": _logprobs(choice.tokens) if with_logprobs else None,
        "finish_reason": _finish(choice),
    }


def _finish(choice: Choice) -> str:
    return "tool_calls" if choice.finish is Finish.TOOL_CALLS else shared.FINISH[choice.finish]


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": shared.written_arguments(call)}
    return {"id": call.id, "type": "function", "function": function}


def _logprobs(tokens: tuple[Token, ...]) -> dict[str, Any]:
    return {"content": [shared.written_logprob(token) for token in tokens], "refusal": None}
