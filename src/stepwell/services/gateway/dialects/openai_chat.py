"""OpenAI's chat completions: `POST /v1/chat/completions`, in one piece or as a stream.

A tool call is streamed in one piece. With `tool_choice: "none"` the policy does not see the tools, so its
prompt differs from the one with tools. `seed`, `stop`, `n` and `logprobs` are supported; `openai_shared.py`
says what is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from stepwell.core import ToolCall, ToolSchema
from stepwell.core.ids import make_id
from stepwell.rendering import Message
from stepwell.services.gateway.chat import (
    ChatCompletion,
    ChatRequest,
    CompletionChoice,
    CompletionDelta,
    ImageDecoder,
    TokenLogprob,
)
from stepwell.services.gateway.dialects import openai_shared as shared
from stepwell.services.gateway.dialects.images import join_content, read_data_url
from stepwell.services.gateway.dialects.request_bodies import (
    MAX_CHOICES,
    MaxTokens,
    RequestBody,
    Seed,
    Temperature,
    TopP,
    join_texts,
    make_tool_call,
    make_tool_schema,
    refuse_media,
    refuse_unsupported,
    resolve_temperature,
)

_TOOL_CALLS = "tool_calls"


class ChatTextPart(RequestBody):
    """A piece of text."""

    type: Literal["text"]
    text: str


class ChatRefusalPart(RequestBody):
    """A piece of text with which an assistant declined."""

    type: Literal["refusal"]
    refusal: str


class ChatImageUrl(RequestBody):
    """An image as a data URL."""

    url: str


class ChatImagePart(RequestBody):
    """An image, for a policy that sees."""

    type: Literal["image_url"]
    image_url: ChatImageUrl


class ChatMediaPart(RequestBody):
    """A sound or file. Refused, because no policy here can read it."""

    type: Literal["input_audio", "file"]


class ChatSystemMessage(RequestBody):
    """Instructions."""

    role: Literal["system", "developer"]
    content: str | list[ChatTextPart]
    name: str | None = None


class ChatUserMessage(RequestBody):
    """A message of the user."""

    role: Literal["user"]
    content: str | list[Annotated[ChatTextPart | ChatImagePart | ChatMediaPart, Field(discriminator="type")]]
    name: str | None = None


class ChatFunctionCall(RequestBody):
    """A function's name, and its arguments as JSON text."""

    name: str
    arguments: str


class ChatToolCall(RequestBody):
    """A call that the assistant made."""

    id: str
    type: Literal["function"] = "function"
    function: ChatFunctionCall


class ChatAssistantMessage(RequestBody):
    """A message of the assistant: text and tool calls."""

    role: Literal["assistant"]
    content: str | list[Annotated[ChatTextPart | ChatRefusalPart, Field(discriminator="type")]] | None = None
    tool_calls: list[ChatToolCall] | None = None


class ChatToolMessage(RequestBody):
    """The result of a call."""

    role: Literal["tool"]
    content: str | list[ChatTextPart]
    tool_call_id: str


ChatMessage = Annotated[
    ChatSystemMessage | ChatUserMessage | ChatAssistantMessage | ChatToolMessage, Field(discriminator="role")
]


class ChatFunction(RequestBody):
    """A function that may be called. `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatCompletionTool(RequestBody):
    """A tool. Only functions are supported."""

    type: Literal["function"]
    function: ChatFunction


class ChatCompletionRequest(RequestBody):
    """The body of a chat completion."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
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
    tools: list[ChatCompletionTool] | None = None
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


def parse_request(body: ChatCompletionRequest, image_decoder: ImageDecoder | None = None) -> ChatRequest:
    """The chat request in a body. `image_decoder` takes its images."""
    refuse_unsupported(
        {
            "frequency_penalty": (body.frequency_penalty, shared.NO_PENALTY),
            "presence_penalty": (body.presence_penalty, shared.NO_PENALTY),
            "logit_bias": (body.logit_bias, shared.NO_PENALTY),
            "functions": (body.functions, "is deprecated; use 'tools'"),
            "web_search_options": (body.web_search_options, "there is no search engine; send a tool"),
            "modalities": ("audio" in (body.modalities or ()), "only text is supported"),
            "top_logprobs": (body.top_logprobs, shared.ONLY_SAMPLED),
        }
    )
    shared.refuse_format(body.response_format, "response_format")
    tools = [_read_tool(tool, index) for index, tool in enumerate(body.tools or ())]
    return ChatRequest(
        model=body.model,
        messages=tuple(_read_messages(body.messages, image_decoder)),
        tools=shared.select_tools(tools, body.tool_choice, body.parallel_tool_calls),
        num_choices=body.n or 1,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        temperature=resolve_temperature(body.temperature),
        top_p=1.0 if body.top_p is None else body.top_p,
        stop=shared.read_stop_strings(body.stop),
        seed=body.seed,
        num_top_logprobs=0 if body.logprobs else None,
        metadata=shared.read_metadata(body.metadata, body.user),
        id=make_id("chatcmpl"),
    )


def write_reply(chat: ChatRequest, completion: ChatCompletion) -> dict[str, Any]:
    """A completion as one JSON object."""
    with_logprobs = chat.num_top_logprobs is not None
    return {
        "id": completion.id,
        "object": "chat.completion",
        "created": completion.created,
        "model": chat.model,
        "choices": [_write_choice(choice, with_logprobs) for choice in completion.choices],
        "usage": shared.write_usage(completion),
    }


class ChatWriter(shared.ChunkWriter):
    """A completion as a stream of chunks."""

    object_name, content_field, no_content, tool_finish = "chat.completion.chunk", "delta", {}, _TOOL_CALLS

    def __init__(self, chat: ChatRequest, *, with_usage: bool) -> None:
        super().__init__(chat, with_usage=with_usage)
        self._num_calls = [0] * chat.num_choices

    def write_start(self) -> Iterator[bytes]:
        for index in range(self._chat.num_choices):
            yield self._write_chunk(index, {"role": "assistant", "content": ""})

    def write_delta(self, delta: CompletionDelta) -> Iterator[bytes]:
        logprobs = _write_logprobs(delta.tokens) if delta.tokens else None
        if delta.text or (delta.tokens and delta.tool_call is None):
            yield self._write_chunk(delta.index, {"content": delta.text}, logprobs)
            logprobs = None
        if delta.tool_call is not None:
            call = {"index": self._num_calls[delta.index], **_write_call(delta.tool_call)}
            self._num_calls[delta.index] += 1
            yield self._write_chunk(delta.index, {"tool_calls": [call]}, logprobs)


def _read_messages(messages: Iterable[ChatMessage], image_decoder: ImageDecoder | None) -> Iterator[Message]:
    names: dict[str, str] = {}  # of calls by id: templates may write the name beside a result
    for index, message in enumerate(messages):
        param = f"messages[{index}]"
        if isinstance(message, ChatSystemMessage):
            yield Message("system", _join_text(message.content), name=message.name or "")
        elif isinstance(message, ChatUserMessage):
            yield Message(
                "user", _read_content(message.content, param, image_decoder), name=message.name or ""
            )
        elif isinstance(message, ChatAssistantMessage):
            assistant = _read_assistant(message, param)
            names |= {call.id: call.name for call in assistant.tool_calls}
            yield assistant
        else:
            name = names.get(message.tool_call_id, "")
            yield Message("tool", _join_text(message.content), tool_call_id=message.tool_call_id, name=name)


def _join_text(content: str | list[ChatTextPart]) -> str:
    return content if isinstance(content, str) else join_texts([part.text for part in content])


def _read_content(
    content: str | list[Any], param: str, image_decoder: ImageDecoder | None
) -> str | tuple[Any, ...]:
    if isinstance(content, str):
        return content
    pieces: list[Any] = []
    for index, part in enumerate(content):
        place = f"{param}.content[{index}]"
        if isinstance(part, ChatMediaPart):
            refuse_media(place)
        pieces.append(
            read_data_url(part.image_url.url, image_decoder, place)
            if isinstance(part, ChatImagePart)
            else part.text
        )
    return join_content(pieces)


def _read_assistant(message: ChatAssistantMessage, param: str) -> Message:
    content = message.content or ""
    if not isinstance(content, str):  # pieces of one sampled text: joined without separator
        content = "".join(part.text if isinstance(part, ChatTextPart) else part.refusal for part in content)
    calls = [
        make_tool_call(
            call.function.name,
            call.function.arguments,
            call.id,
            f"{param}.tool_calls[{index}].function.arguments",
        )
        for index, call in enumerate(message.tool_calls or ())
    ]
    return Message("assistant", content, tuple(calls))


def _read_tool(tool: ChatCompletionTool, index: int) -> ToolSchema:
    function = tool.function
    param = f"tools[{index}].function"
    return make_tool_schema(function.name, function.description, function.parameters, param)


def _write_choice(choice: CompletionChoice, with_logprobs: bool) -> dict[str, Any]:
    calls = [_write_call(call) for call in choice.tool_calls]
    message = {"role": "assistant", "content": choice.text or (None if calls else ""), "refusal": None}
    return {
        "index": choice.index,
        "message": {**message, **({"tool_calls": calls} if calls else {})},
        "logprobs": _write_logprobs(choice.tokens) if with_logprobs else None,
        "finish_reason": shared.name_finish(choice, _TOOL_CALLS),
    }


def _write_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": shared.write_arguments(call)}
    return {"id": call.id, "type": "function", "function": function}


def _write_logprobs(tokens: tuple[TokenLogprob, ...]) -> dict[str, Any]:
    return {"content": [shared.write_logprob(token) for token in tokens], "refusal": None}
