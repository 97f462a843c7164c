"""The messages of a conversation, as agents write them and chat templates read them.

A message is plain data: who speaks (`role`), what is said (`content`), which tools an
assistant calls, and which call a tool result answers. Content is text, or a sequence of
parts where images stand between pieces of text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from stepwell.core.errors import InputError, RenderError
from stepwell.core.tools import ToolCall

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text inside a message."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """The place of an image inside a message; `image` is its content hash (`ImageStore.add` gives it)."""

    image: str


Part = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    >>> Message.user("Where is the goal?").to_template()
    {'role': 'user', 'content': 'Where is the goal?'}
    """

    role: Role
    content: str | tuple[Part, ...] = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise InputError(f"message.role is {self.role!r}; it must be one of {', '.join(get_args(Role))}")
        if not isinstance(self.content, str | tuple):
            raise InputError(
                f"message.content is {type(self.content).__name__}; give text or a tuple of parts"
            )
        if self.tool_calls and self.role != "assistant":
            raise InputError(f"message.tool_calls on a {self.role} message: only an assistant calls tools")
        if self.tool_call_id and self.role != "tool":
            raise InputError(
                f"message.tool_call_id on a {self.role} message: only a tool result answers a call"
            )

    @classmethod
    def system(cls, text: str) -> Message:
        return cls("system", text)

    @classmethod
    def user(cls, content: str | Sequence[Part]) -> Message:
        """What is said to the agent, or shown: `Message.user([ImagePart(name), TextPart("...")])`."""
        return cls("user", content if isinstance(content, str) else tuple(content))

    @classmethod
    def assistant(cls, text: str = "", tool_calls: Sequence[ToolCall] = ()) -> Message:
        return cls("assistant", text, tuple(tool_calls))

    @classmethod
    def tool(cls, text: str, call: ToolCall | None = None) -> Message:
        """The result of a tool, paired with the call it answers where that is known."""
        return cls("tool", text, tool_call_id=call.id if call else "", name=call.name if call else "")

    @property
    def text(self) -> str:
        """The content as one string; an image in it is refused."""
        if isinstance(self.content, str):
            return self.content
        for part in self.content:
            if isinstance(part, ImagePart):
                raise RenderError(
                    f"message.content holds an image ({part.image}); this renderer writes text only: use a "
                    "vision-language model (its renderer has an image_format), or describe it in text"
                )
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def images(self) -> tuple[str, ...]:
        """The names of the images in it, in order."""
        return tuple(part.image for part in self.parts if isinstance(part, ImagePart))

    @property
    def parts(self) -> tuple[Part, ...]:
        """The content as parts."""
        return (TextPart(self.content),) if isinstance(self.content, str) else self.content

    def to_template(self, *, images: bool = False, as_parts: bool = False) -> dict[str, Any]:
        """The dictionary that Hugging Face chat templates expect; arguments stay an object.

        With `images`, it may hold images; with `as_parts`, text too is written as a part.
        """
        in_parts = as_parts or (images and bool(self.images))
        content = [_part_to_template(part) for part in self.parts] if in_parts else self.text
        value: dict[str, Any] = {"role": self.role, "content": content}
        if self.tool_calls:
            value["tool_calls"] = [_call_to_template(call) for call in self.tool_calls]
        if self.tool_call_id:
            value["tool_call_id"] = self.tool_call_id
        if self.name:
            value["name"] = self.name
        return value


def fold_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Move a leading system message into the first user message, for templates without a system role."""
    if not messages or messages[0].role != "system":
        return tuple(messages)
    if len(messages) < 2 or messages[1].role != "user":
        raise InputError("messages: a user message must follow the system message that is folded into it")
    opening, first = messages[0].text, messages[1]
    if first.images:
        folded = replace(first, content=(TextPart(f"{opening}\n\n"), *first.parts))
    else:
        folded = replace(first, content=f"{opening}\n\n{first.text}")
    return (folded, *messages[2:])


def _part_to_template(part: Part) -> dict[str, str]:
    return {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": part.text}


def _call_to_template(call: ToolCall) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return {"id": call.id, **value} if call.id else value
