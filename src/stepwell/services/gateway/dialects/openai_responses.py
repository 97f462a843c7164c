"""OpenAI's responses: `POST /v1/responses`. Clients may send only what is new.

A conversation is stored under the response's id; `previous_response_id` continues it. As in OpenAI's API,
`instructions` belong to one call and are not stored. (A restarted gateway restores a conversation from its
steps, which include the instructions; the same ones are then not added twice.) `store` does not change what
is recorded.

Items of one assistant turn (a message, calls) follow each other. When they come back they are merged, so that
the turn is recognised as the sampled one. Reasoning items are skipped: this policy's thoughts are part of its
text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from stepwell.core import ToolCall, ToolSchema
from stepwell.core.ids import make_id
from stepwell.rendering import Message
from stepwell.services.gateway.chat import (
    ChatCompletion,
    ChatRequest,
    ChoiceFinish,
    CompletionChoice,
    ImageDecoder,
    TokenLogprob,
)
from stepwell.services.gateway.dialects import openai_shared as shared
from stepwell.services.gateway.dialects.images import join_content, read_data_url
from stepwell.services.gateway.dialects.request_bodies import (
    MaxTokens,
    RequestBody,
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

LOGPROBS = "message.output_text.logprobs"


class ResponseTextPart(RequestBody):
    """A piece of text, from a client or an earlier response."""

    type: Literal["input_text", "output_text"]
    text: str


class ResponseRefusalPart(RequestBody):
    """A piece of text with which an assistant declined."""

    type: Literal["refusal"]
    refusal: str


class ResponseImagePart(RequestBody):
    """An image, for a policy that sees."""

    type: Literal["input_image"]
    image_url: str | None = None


class ResponseMediaPart(RequestBody):
    """A sound or file. Refused, because no policy here can read it."""

    type: Literal["input_file", "input_audio"]


ResponsePart = Annotated[
    ResponseTextPart | ResponseRefusalPart | ResponseImagePart | ResponseMediaPart,
    Field(discriminator="type"),
]


class MessageItem(RequestBody):
    """A message of any role."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ResponsePart]


class CallItem(RequestBody):
    """A call that the assistant made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class ResultItem(RequestBody):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[ResponsePart]


class ReasoningItem(RequestBody):
    """Thoughts of another model. Skipped."""

    type: Literal["reasoning"]


def _find_item_type(value: Any) -> str:
    """The type of an item. A message may leave it out."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if isinstance(kind, str) else "message"


ResponseItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_find_item_type),
]


class ResponsesTool(RequestBody):
    """A function that may be called. Other types of tools are refused by name."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(RequestBody):
    """The format of the reply."""

    format: shared.ResponseFormat | None = None


class ResponsesRequest(RequestBody):
    """The body of a response."""

    model: str
    input: str | list[ResponseItem]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    max_output_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stream: bool | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: shared.ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    background: bool | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None


def read_conversation(
    body: ResponsesRequest,
    recall_conversation: Callable[[str], Iterable[Message]],
    image_decoder: ImageDecoder | None = None,
) -> tuple[Message, ...]:
    """The conversation so far: recalled messages, then the new ones. This is what is stored.

    `image_decoder` takes the images among them.
    """
    before = tuple(recall_conversation(body.previous_response_id)) if body.previous_response_id else ()
    if not body.input and not before:
        refuse_field("input", "is empty; send input, or a previous_response_id")
    if isinstance(body.input, str):
        return (*before, Message.user(body.input))
    new = _read_messages(body.input, before, image_decoder)
    return (*before, *new)


def parse_request(body: ResponsesRequest, conversation: tuple[Message, ...]) -> ChatRequest:
    """The chat request in a body, given the conversation it continues."""
    refuse_unsupported(
        {
            "background": (body.background, "background responses are not supported; leave it out"),
            "conversation": (body.conversation, "use previous_response_id, or send the items"),
            "prompt": (body.prompt, "stored prompts are not supported; send instructions and input"),
            "truncation": (body.truncation == "auto", "the history is never truncated; send fewer items"),
            "top_logprobs": (body.top_logprobs, shared.ONLY_SAMPLED),
        }
    )
    shared.refuse_format(body.text.format if body.text else None, "text.format")
    tools = [_read_tool(tool, index) for index, tool in enumerate(body.tools or ())]
    system = (Message.system(body.instructions),) if body.instructions else ()
    return ChatRequest(
        model=body.model,
        messages=conversation if conversation[:1] == system else (*system, *conversation),
        tools=shared.select_tools(tools, body.tool_choice, body.parallel_tool_calls),
        max_tokens=body.max_output_tokens,
        temperature=resolve_temperature(body.temperature),
        top_p=1.0 if body.top_p is None else body.top_p,
        num_top_logprobs=0 if LOGPROBS in (body.include or ()) else None,
        metadata=shared.read_metadata(body.metadata, body.user),
        id=make_id("resp"),
    )


def make_reply_message(completion: ChatCompletion) -> Message:
    """The sampled turn as it is stored, and as a client would send it back."""
    (choice,) = completion.choices
    return Message.assistant(choice.text, choice.tool_calls)


def write_reply(body: ResponsesRequest, chat: ChatRequest, completion: ChatCompletion) -> dict[str, Any]:
    """A completion as one JSON object."""
    (choice,) = completion.choices
    items = [write_call_item(call) for call in choice.tool_calls]
    if choice.text or not items:
        tokens = choice.tokens if chat.num_top_logprobs is not None else ()
        items.insert(0, write_message_item(choice.text, tokens, status=find_status(choice)))
    return write_finished(body, chat, completion, items)


def write_finished(
    body: ResponsesRequest, chat: ChatRequest, completion: ChatCompletion, items: list[dict[str, Any]]
) -> dict[str, Any]:
    """The response when everything is sampled."""
    (choice,) = completion.choices
    cut = choice.finish is ChoiceFinish.LENGTH
    return {
        **write_in_progress(body, chat, completion.created),
        "status": find_status(choice),
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": items,
        "usage": {
            "input_tokens": completion.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": completion.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": completion.num_action_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": completion.num_prompt_tokens + completion.num_action_tokens,
        },
    }


def write_in_progress(body: ResponsesRequest, chat: ChatRequest, created: int) -> dict[str, Any]:
    """The response before anything is sampled, with the request's settings."""
    return {
        "id": chat.id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": chat.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": body.previous_response_id,
        "store": body.store is not False,
        "temperature": chat.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "none" if body.tool_choice == "none" else "auto",
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "top_p": chat.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
    }


def write_message_item(
    text: str, tokens: tuple[TokenLogprob, ...] = (), *, status: str, item_id: str | None = None
) -> dict[str, Any]:
    """The sampled text as an output item."""
    return {
        "id": item_id or make_id("msg"),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [write_text_part(text, tokens)],
    }


def write_text_part(text: str, tokens: Iterable[TokenLogprob] = ()) -> dict[str, Any]:
    """Text inside an output item."""
    logprobs = [shared.write_logprob(token) for token in tokens]
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def write_call_item(call: ToolCall) -> dict[str, Any]:
    """A sampled call as an output item."""
    return {
        "id": make_id("fc"),
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": shared.write_arguments(call),
    }


def find_status(choice: CompletionChoice) -> str:
    """Whether a reply was cut at the token limit."""
    return "incomplete" if choice.finish is ChoiceFinish.LENGTH else "completed"


def _read_messages(
    items: Iterable[ResponseItem], before: Iterable[Message], image_decoder: ImageDecoder | None
) -> Iterator[Message]:
    names = {call.id: call.name for message in before for call in message.tool_calls}
    open_turn: Message | None = None  # an assistant turn that may have more items
    for index, item in enumerate(items):
        param = f"input[{index}]"
        if isinstance(item, ReasoningItem):
            continue
        part = _read_assistant(item, param)
        if part is not None:
            names |= {call.id: call.name for call in part.tool_calls}
            open_turn = _merge_messages(open_turn, part)
            continue
        if open_turn is not None:
            yield open_turn
            open_turn = None
        if isinstance(item, ResultItem):
            text = _join_text(item.output, f"{param}.output")
            yield Message("tool", text, tool_call_id=item.call_id, name=names.get(item.call_id, ""))
        else:
            assert isinstance(item, MessageItem)
            role: Any = "user" if item.role == "user" else "system"
            decoder = image_decoder if role == "user" else None
            yield Message(role, _read_content(item.content, f"{param}.content", decoder))
    if open_turn is not None:
        yield open_turn


def _read_assistant(item: ResponseItem, param: str) -> Message | None:
    """The part of an assistant turn that an item holds; None for other roles."""
    if isinstance(item, CallItem):
        return Message.assistant(
            tool_calls=[make_tool_call(item.name, item.arguments, item.call_id, f"{param}.arguments")]
        )
    if isinstance(item, MessageItem) and item.role == "assistant":
        return Message.assistant(_join_text(item.content, f"{param}.content", between=""))
    return None


def _merge_messages(before: Message | None, now: Message) -> Message:
    if before is None:
        return now
    return Message.assistant(before.text + now.text, (*before.tool_calls, *now.tool_calls))


def _join_text(content: str | list[ResponsePart], param: str, between: str | None = None) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, ResponseMediaPart | ResponseImagePart):
            refuse_media(f"{param}[{index}]")
        texts.append(part.text if isinstance(part, ResponseTextPart) else part.refusal)
    return join_texts(texts) if between is None else between.join(texts)


def _read_content(
    content: str | list[ResponsePart], param: str, image_decoder: ImageDecoder | None
) -> str | tuple[Any, ...]:
    if isinstance(content, str) or not any(isinstance(part, ResponseImagePart) for part in content):
        return _join_text(content, param)
    return join_content(
        read_data_url(part.image_url, image_decoder, f"{param}[{index}]")
        if isinstance(part, ResponseImagePart)
        else _join_text([part], f"{param}[{index}]")
        for index, part in enumerate(content)
    )


def _read_tool(tool: ResponsesTool, index: int) -> ToolSchema:
    if tool.type != "function":
        refuse_field(
            f"tools[{index}].type", f"{tool.type!r} tools are not run here; only functions are supported"
        )
    return make_tool_schema(tool.name, tool.description, tool.parameters, f"tools[{index}]")
