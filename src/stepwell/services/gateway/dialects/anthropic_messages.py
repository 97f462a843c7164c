"""Anthropic's messages: `POST /v1/messages`, and `count_tokens` where the gateway can count.

* A user's message may hold results of tools and words: each result becomes a message of the
  tool, the words one of the user, in their order. A result marked `is_error` begins with
  "Error: ", so that the policy can tell.
* Blocks of thinking are skipped on the way in, and none is written: this policy's thoughts are
  part of its text. `thinking` and effort settings are ignored.
* An answer begun by the client (a last message of the assistant) is refused.
* As at Anthropic, `input_tokens` leaves out what came from the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import Field

from stepwell.core import ToolSchema
from stepwell.core.ids import new_id
from stepwell.rendering import ImagePart, Message
from stepwell.services.gateway.dialects.bodies import (
    Body,
    MaxTokens,
    StopText,
    Temperature,
    TopP,
    joined,
    new_call,
    new_tool_schema,
    refuse,
    refuse_given,
    refuse_picture,
    temperature_of,
)
from stepwell.services.gateway.dialects.pictures import content_of, from_base64
from stepwell.services.gateway.exchange import Answer, Ask, Caller, Choice, Finish, See

STOP_REASON = {
    Finish.END: "end_turn",
    Finish.STOP_STRING: "stop_sequence",
    Finish.LENGTH: "max_tokens",
    Finish.TOOL_CALLS: "tool_use",
}


@runtime_checkable
class Counting(Protocol):
    """A gateway that can tell how long a prompt is without sampling."""

    async def count_tokens(self, caller: Caller, ask: Ask) -> int: ...


class TextBlock(Body):
    """A piece of text."""

    type: Literal["text"]
    text: str


class ImageSource(Body):
    """Where a picture is: in the request itself, as base64."""

    type: str = ""
    media_type: str | None = None
    data: str | None = None


class ImageBlock(Body):
    """A picture, for a policy that sees."""

    type: Literal["image"]
    source: ImageSource


class OtherBlock(Body):
    """A document: known, and refused until a policy that perceives it is served."""

    type: Literal["document", "search_result"]


class ThinkingBlock(Body):
    """Thoughts of another model, which are skipped."""

    type: Literal["thinking", "redacted_thinking"]


class CallBlock(Body):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


ResultPart = Annotated[TextBlock | ImageBlock | OtherBlock, Field(discriminator="type")]


class ResultBlock(Body):
    """What came of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: (
        str | list[Annotated[TextBlock | ImageBlock | OtherBlock, Field(discriminator="type")]] | None
    ) = None
    is_error: bool | None = None


Block = Annotated[
    TextBlock | ImageBlock | OtherBlock | ThinkingBlock | CallBlock | ResultBlock, Field(discriminator="type")
]


class Turn(Body):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(Body):
    """A tool of the client's; tools that Anthropic would run are refused by name."""

    type: str | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Body):
    """Who decides whether a tool is called; only `auto` and `none` can be honoured."""

    type: Literal["auto", "none", "any", "tool"]
    disable_parallel_tool_use: bool | None = None


class OutputConfig(Body):
    """The form of the answer; `format` is refused, the rest ignored."""

    format: dict[str, Any] | None = None


class Metadata(Body):
    """Whom the client speaks for: kept with the step."""

    user_id: str | None = None


class CountRequest(Body):
    """The body of a count: a prompt without sampling."""

    model: str
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None


class MessagesRequest(Body):
    """The body of a message."""

    model: str
    messages: Annotated[list[Turn], Field(min_length=1)]
    max_tokens: MaxTokens
    system: str | list[TextBlock] | None = None
    stop_sequences: list[StopText] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: int | None = None
    stream: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    metadata: Metadata | None = None
    output_config: OutputConfig | None = None
    mcp_servers: list[Any] | None = None
    container: str | dict[str, Any] | None = None


def ask_of(body: MessagesRequest, see: See | None = None) -> Ask:
    """What a body asks for; `see` takes the pictures in it."""
    refuse_given(
        {
            "top_k": (body.top_k, "the engine cuts by probability, not by rank; use top_p"),
            "output_config.format": (
                body.output_config and body.output_config.format,
                "cannot be guaranteed; leave it out and parse the answer",
            ),
            "mcp_servers": (body.mcp_servers, "no server is called from here; offer its tools as tools"),
            "container": (body.container, "no code is run here; offer a tool that does"),
        }
    )
    return Ask(
        model=body.model,
        messages=_prompt(body, see),
        tools=_offered(body.tools or (), body.tool_choice),
        max_tokens=body.max_tokens,
        temperature=temperature_of(body.temperature),
        top_p=1.0 if body.top_p is None else body.top_p,
        stop=tuple(body.stop_sequences or ()),
        metadata={"user": body.metadata.user_id} if body.metadata and body.metadata.user_id else {},
        id=new_id("msg"),
    )


def count_of(body: CountRequest, see: See | None = None) -> Ask:
    """The prompt whose tokens are to be counted."""
    return Ask(body.model, _prompt(body, see), tools=_offered(body.tools or (), body.tool_choice))


def reply(ask: Ask, answer: Answer) -> dict[str, Any]:
    """An answer as one JSON object."""
    (choice,) = answer.choices
    words = [{"type": "text", "text": choice.text}] if choice.text else []
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in choice.tool_calls
    ]
    return {
        **message(ask),
        "content": words + calls,
        **ending(choice),
        "usage": usage(answer),
    }


def message(ask: Ask) -> dict[str, Any]:
    """A message with nothing in it yet."""
    return {
        "id": ask.id,
        "type": "message",
        "role": "assistant",
        "model": ask.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def ending(choice: Choice) -> dict[str, Any]:
    """Why the message ended."""
    return {"stop_reason": STOP_REASON[choice.finish], "stop_sequence": choice.stop_string}


def usage(answer: Answer) -> dict[str, int]:
    """Counts of tokens."""
    return {
        "input_tokens": answer.num_prompt_tokens - answer.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.num_cached_tokens,
        "output_tokens": answer.num_action_tokens,
    }


def _prompt(body: MessagesRequest | CountRequest, see: See | None) -> tuple[Message, ...]:
    if body.messages[-1].role == "assistant":
        refuse("messages", "the last one is the assistant's: an answer cannot be begun for the policy")
    system = body.system or ""
    if not isinstance(system, str):
        system = joined([block.text for block in system])
    return (*((Message.system(system),) if system else ()), *_messages(body.messages, see))


def _messages(turns: Iterable[Turn], see: See | None) -> Iterator[Message]:
    names: dict[str, str] = {}  # of the calls so far: templates may write the name beside a result
    for index, turn in enumerate(turns):
        param = f"messages[{index}].content"
        blocks = (
            [TextBlock(type="text", text=turn.content)] if isinstance(turn.content, str) else turn.content
        )
        if turn.role == "assistant":
            said = _assistant(blocks, param)
            names |= {call.id: call.name for call in said.tool_calls}
            yield said
        else:
            yield from _others(turn.role, blocks, param, names, see)


def _assistant(blocks: Iterable[Block], param: str) -> Message:
    texts, calls = [], []
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, CallBlock):
            calls.append(new_call(block.name, block.input, block.id, f"{param}[{index}].input"))
        elif isinstance(block, OtherBlock | ImageBlock):
            refuse_picture(f"{param}[{index}]")
        elif isinstance(block, ResultBlock):
            refuse(f"{param}[{index}]", "a tool_result belongs into a message of the user")
    return Message.assistant("".join(texts), calls)  # pieces of what was sampled: nothing between them


def _others(
    role: Literal["user", "system"],
    blocks: Iterable[Block],
    param: str,
    names: dict[str, str],
    see: See | None,
) -> Iterator[Message]:
    words: list[str | ImagePart] = []
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            words.append(block.text)
        elif isinstance(block, ImageBlock):
            source, place = block.source, f"{param}[{index}]"
            if see is not None and source.type != "base64":
                refuse(f"{place}.source", "send the picture itself in base64; nothing is fetched")
            shown = see if role == "user" else None
            words.append(from_base64(source.data, source.media_type, shown, place))
        elif isinstance(block, OtherBlock):
            refuse_picture(f"{param}[{index}]")
        elif isinstance(block, CallBlock):
            refuse(f"{param}[{index}]", "a tool_use belongs into a message of the assistant")
        elif isinstance(block, ResultBlock):
            if words:
                yield Message(role, content_of(words))
                words = []
            yield _result(block, f"{param}[{index}]", names)
    if words:
        yield Message(role, content_of(words))


def _result(block: ResultBlock, param: str, names: dict[str, str]) -> Message:
    content = block.content or ""
    if not isinstance(content, str):
        for index, part in enumerate(content):
            if isinstance(part, OtherBlock | ImageBlock):
                refuse_picture(f"{param}.content[{index}]")
        content = joined([part.text for part in content if isinstance(part, TextBlock)])
    words = f"Error: {content}" if block.is_error else content
    name = names.get(block.tool_use_id, "")
    return Message("tool", words, tool_call_id=block.tool_use_id, name=name)


def _offered(tools: Iterable[Tool], choice: ToolChoice | None) -> tuple[ToolSchema, ...]:
    """The tools that the policy is shown: none with `none`. What it cannot be made to do is refused."""
    schemas = tuple(_tool(tool, index) for index, tool in enumerate(tools))
    if choice is None or choice.type == "none":
        return schemas if choice is None else ()
    if choice.type != "auto":
        refuse("tool_choice", f"{choice.type!r} cannot be forced upon a policy; use 'auto' or 'none'")
    if choice.disable_parallel_tool_use and schemas:
        refuse(
            "tool_choice.disable_parallel_tool_use",
            "how many tools are called is the policy's choice; leave it out",
        )
    return schemas


def _tool(tool: Tool, index: int) -> ToolSchema:
    if tool.type not in (None, "custom"):
        refuse(f"tools[{index}].type", f"{tool.type!r} tools are not run here; only custom ones are served")
    return new_tool_schema(tool.name, tool.description, tool.input_schema, f"tools[{index}]")
