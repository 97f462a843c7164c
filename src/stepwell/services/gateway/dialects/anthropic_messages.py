"""Anthropic's messages: `POST /v1/messages`, and `count_tokens` if the gateway can count.

* A user message may hold tool results and text: each result becomes a tool message, the text a user message,
  in their order. A result marked `is_error` starts with "Error: ", so that the policy can tell.
* Thinking blocks of the client are skipped, and none is written: this policy's thoughts are part of its text.
  `thinking` and effort settings are ignored.
* A reply started by the client (a last message of the assistant) is refused.
* As in Anthropic's API, `input_tokens` leaves out what came from the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import Field

from stepwell.core import ToolSchema
from stepwell.core.ids import make_id
from stepwell.rendering import ImagePart, Message
from stepwell.services.gateway.chat import (
    ChatCompletion,
    ChatRequest,
    ChoiceFinish,
    CompletionChoice,
    GatewayCaller,
    ImageDecoder,
)
from stepwell.services.gateway.dialects.images import join_content, read_base64_image
from stepwell.services.gateway.dialects.request_bodies import (
    MaxTokens,
    RequestBody,
    StopText,
    Temperature,
    TopP,
    join_texts,
    make_tool_call,
    make_tool_schema,
    refuse_field,
    refuse_media,
    refuse_unsupported,
    resolve_temperature,
)

STOP_REASON = {
    ChoiceFinish.END: "end_turn",
    ChoiceFinish.STOP_STRING: "stop_sequence",
    ChoiceFinish.LENGTH: "max_tokens",
    ChoiceFinish.TOOL_CALLS: "tool_use",
}


@runtime_checkable
class TokenCounter(Protocol):
    """A gateway that can count the tokens of a prompt without sampling."""

    async def count_tokens(self, caller: GatewayCaller, chat: ChatRequest) -> int: ...


class TextBlock(RequestBody):
    """A piece of text."""

    type: Literal["text"]
    text: str


class ImageSource(RequestBody):
    """The image data: in the request itself, as base64."""

    type: str = ""
    media_type: str | None = None
    data: str | None = None


class ImageBlock(RequestBody):
    """An image, for a policy that sees."""

    type: Literal["image"]
    source: ImageSource


class OtherBlock(RequestBody):
    """A document. Refused, because no policy here can read it."""

    type: Literal["document", "search_result"]


class ThinkingBlock(RequestBody):
    """Thoughts of another model. Skipped."""

    type: Literal["thinking", "redacted_thinking"]


class CallBlock(RequestBody):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ResultBlock(RequestBody):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: (
        str | list[Annotated[TextBlock | ImageBlock | OtherBlock, Field(discriminator="type")]] | None
    ) = None
    is_error: bool | None = None


ContentBlock = Annotated[
    TextBlock | ImageBlock | OtherBlock | ThinkingBlock | CallBlock | ResultBlock, Field(discriminator="type")
]


class AnthropicMessage(RequestBody):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class AnthropicTool(RequestBody):
    """A tool of the client. Tools that Anthropic would run are refused by name."""

    type: str | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class AnthropicToolChoice(RequestBody):
    """Whether tools are called. Only `auto` and `none` are supported."""

    type: Literal["auto", "none", "any", "tool"]
    disable_parallel_tool_use: bool | None = None


class OutputConfig(RequestBody):
    """The format of the reply. `format` is refused, the rest is ignored."""

    format: dict[str, Any] | None = None


class Metadata(RequestBody):
    """The user that the client acts for. Stored with the step."""

    user_id: str | None = None


class CountRequest(RequestBody):
    """The body of a token count: a prompt without sampling."""

    model: str
    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None


class MessagesRequest(RequestBody):
    """The body of a message."""

    model: str
    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    max_tokens: MaxTokens
    system: str | list[TextBlock] | None = None
    stop_sequences: list[StopText] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: int | None = None
    stream: bool | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    metadata: Metadata | None = None
    output_config: OutputConfig | None = None
    mcp_servers: list[Any] | None = None
    container: str | dict[str, Any] | None = None


def parse_request(body: MessagesRequest, image_decoder: ImageDecoder | None = None) -> ChatRequest:
    """The chat request in a body. `image_decoder` takes its images."""
    refuse_unsupported(
        {
            "top_k": (body.top_k, "the engine has no top_k; use top_p"),
            "output_config.format": (
                body.output_config and body.output_config.format,
                "is not supported; leave it out and parse the reply",
            ),
            "mcp_servers": (
                body.mcp_servers,
                "MCP servers are not called from here; send their tools as tools",
            ),
            "container": (body.container, "no code is run here; send a tool that does"),
        }
    )
    return ChatRequest(
        model=body.model,
        messages=_read_prompt(body, image_decoder),
        tools=_select_tools(body.tools or (), body.tool_choice),
        max_tokens=body.max_tokens,
        temperature=resolve_temperature(body.temperature),
        top_p=1.0 if body.top_p is None else body.top_p,
        stop=tuple(body.stop_sequences or ()),
        metadata={"user": body.metadata.user_id} if body.metadata and body.metadata.user_id else {},
        id=make_id("msg"),
    )


def parse_count_request(body: CountRequest, image_decoder: ImageDecoder | None = None) -> ChatRequest:
    """The prompt whose tokens are counted."""
    return ChatRequest(
        body.model, _read_prompt(body, image_decoder), tools=_select_tools(body.tools or (), body.tool_choice)
    )


def write_reply(chat: ChatRequest, completion: ChatCompletion) -> dict[str, Any]:
    """A completion as one JSON object."""
    (choice,) = completion.choices
    texts = [{"type": "text", "text": choice.text}] if choice.text else []
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in choice.tool_calls
    ]
    return {
        **write_empty_message(chat),
        "content": texts + calls,
        **write_stop_reason(choice),
        "usage": write_usage(completion),
    }


def write_empty_message(chat: ChatRequest) -> dict[str, Any]:
    """A message with no content yet."""
    return {
        "id": chat.id,
        "type": "message",
        "role": "assistant",
        "model": chat.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def write_stop_reason(choice: CompletionChoice) -> dict[str, Any]:
    """Why the message ended."""
    return {"stop_reason": STOP_REASON[choice.finish], "stop_sequence": choice.stop_string}


def write_usage(completion: ChatCompletion) -> dict[str, int]:
    """Token counts."""
    return {
        "input_tokens": completion.num_prompt_tokens - completion.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": completion.num_cached_tokens,
        "output_tokens": completion.num_action_tokens,
    }


def _read_prompt(
    body: MessagesRequest | CountRequest, image_decoder: ImageDecoder | None
) -> tuple[Message, ...]:
    if body.messages[-1].role == "assistant":
        refuse_field(
            "messages",
            "the last message is the assistant's; starting the reply for the policy is not supported",
        )
    system = body.system or ""
    if not isinstance(system, str):
        system = join_texts([block.text for block in system])
    return (*((Message.system(system),) if system else ()), *_read_messages(body.messages, image_decoder))


def _read_messages(
    turns: Iterable[AnthropicMessage], image_decoder: ImageDecoder | None
) -> Iterator[Message]:
    names: dict[str, str] = {}  # of calls by id: templates may write the name beside a result
    for index, turn in enumerate(turns):
        param = f"messages[{index}].content"
        blocks = (
            [TextBlock(type="text", text=turn.content)] if isinstance(turn.content, str) else turn.content
        )
        if turn.role == "assistant":
            message = _read_assistant(blocks, param)
            names |= {call.id: call.name for call in message.tool_calls}
            yield message
        else:
            yield from _read_user_or_system(turn.role, blocks, param, names, image_decoder)


def _read_assistant(blocks: Iterable[ContentBlock], param: str) -> Message:
    texts, calls = [], []
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, CallBlock):
            calls.append(make_tool_call(block.name, block.input, block.id, f"{param}[{index}].input"))
        elif isinstance(block, OtherBlock | ImageBlock):
            refuse_media(f"{param}[{index}]")
        elif isinstance(block, ResultBlock):
            refuse_field(f"{param}[{index}]", "a tool_result belongs in a user message")
    return Message.assistant("".join(texts), calls)  # pieces of one sampled text: joined without separator


def _read_user_or_system(
    role: Literal["user", "system"],
    blocks: Iterable[ContentBlock],
    param: str,
    names: dict[str, str],
    image_decoder: ImageDecoder | None,
) -> Iterator[Message]:
    pieces: list[str | ImagePart] = []
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            pieces.append(block.text)
        elif isinstance(block, ImageBlock):
            source, place = block.source, f"{param}[{index}]"
            if image_decoder is not None and source.type != "base64":
                refuse_field(f"{place}.source", "send the image itself in base64; nothing is fetched")
            decoder = image_decoder if role == "user" else None
            pieces.append(read_base64_image(source.data, source.media_type, decoder, place))
        elif isinstance(block, OtherBlock):
            refuse_media(f"{param}[{index}]")
        elif isinstance(block, CallBlock):
            refuse_field(f"{param}[{index}]", "a tool_use belongs in an assistant message")
        elif isinstance(block, ResultBlock):
            if pieces:
                yield Message(role, join_content(pieces))
                pieces = []
            yield _read_result(block, f"{param}[{index}]", names)
    if pieces:
        yield Message(role, join_content(pieces))


def _read_result(block: ResultBlock, param: str, names: dict[str, str]) -> Message:
    content = block.content or ""
    if not isinstance(content, str):
        for index, part in enumerate(content):
            if isinstance(part, OtherBlock | ImageBlock):
                refuse_media(f"{param}.content[{index}]")
        content = join_texts([part.text for part in content if isinstance(part, TextBlock)])
    text = f"Error: {content}" if block.is_error else content
    name = names.get(block.tool_use_id, "")
    return Message("tool", text, tool_call_id=block.tool_use_id, name=name)


def _select_tools(
    tools: Iterable[AnthropicTool], choice: AnthropicToolChoice | None
) -> tuple[ToolSchema, ...]:
    """The tools that the policy sees: none with `none`. A choice that cannot be enforced is refused."""
    schemas = tuple(_read_tool(tool, index) for index, tool in enumerate(tools))
    if choice is None or choice.type == "none":
        return schemas if choice is None else ()
    if choice.type != "auto":
        refuse_field("tool_choice", f"{choice.type!r} cannot be enforced; use 'auto' or 'none'")
    if choice.disable_parallel_tool_use and schemas:
        refuse_field(
            "tool_choice.disable_parallel_tool_use",
            "the policy decides how many tools it calls; leave it out",
        )
    return schemas


def _read_tool(tool: AnthropicTool, index: int) -> ToolSchema:
    if tool.type not in (None, "custom"):
        refuse_field(
            f"tools[{index}].type", f"{tool.type!r} tools are not run here; only custom tools are supported"
        )
    return make_tool_schema(tool.name, tool.description, tool.input_schema, f"tools[{index}]")
