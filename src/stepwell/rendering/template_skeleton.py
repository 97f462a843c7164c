"""Moulds: what a chat template writes around the contents of a conversation, to be filled quickly.

For a given row of roles, most templates write fixed text with the contents between it, verbatim or
without the blanks around. Such a row has a mould; filling it gives the template's own text without
running the template.

    moulds = Moulds(template)
    moulds.of(("system", "user"))     None the first time, a Mould from the second on, if there is one

A mould is found with marks for contents and then tried on contents made to upset it: every piece of
text that the template itself mentions, at the beginning, the end and alone, with blanks around,
quotes, braces, markup, and at length. A template that looks at contents (one that cuts out thinking,
say) reacts to what it looks for, and gets no mould; neither does one that asks for the date.

Only plain messages are meant: text that is not blank, without tool calls, names and ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stepwell.core.errors import RenderError
from stepwell.core.tools import ToolSchema
from stepwell.rendering.messages import Message, Role
from stepwell.rendering.template import ChatTemplate

Roles = tuple[Role, ...]

_REMEMBERED = 2048
_UPSETTING = ('"quoted" \\ {braces} {{ x }} <b>&amp;</b>', "é ☃ \u200b", "0", "word " * 300, "None", "a\r\nb")
_UNSTEADY = ("strftime", "now()", "random", "lipsum")
_QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
# How a template may take a content, by whether blanks before and after it are kept.
_TRIMS: dict[tuple[bool, bool], Callable[[str], str]] = {
    (True, True): str,
    (False, False): str.strip,
    (False, True): str.lstrip,
    (True, False): str.rstrip,
}


@dataclass(frozen=True, slots=True, eq=False)
class TemplateSkeleton:
    """Fixed text before, between and after contents, and how each content is taken."""

    literals: tuple[str, ...]
    trims: tuple[Callable[[str], str], ...]

    def fill(self, contents: Sequence[str]) -> str:
        """The template's text for these contents, one per message."""
        return self.fill_after(0, contents)

    def fill_after(self, first: int, contents: Sequence[str]) -> str:
        """The text from the literal before message `first` on, given the contents from there on."""
        written = [self.literals[first]]
        for index, content in enumerate(contents, first):
            written += (self.trims[index](content), self.literals[index + 1])
        return "".join(written)


def find_plain_roles(messages: Sequence[Message]) -> Roles | None:
    """The roles of messages that are all plain; None where one is not."""
    for message in messages:
        content = message.content
        if message.tool_calls or message.tool_call_id or message.name:
            return None
        if not isinstance(content, str) or not content or content.isspace():
            return None
    return tuple([message.role for message in messages])


class SkeletonCache:
    """The moulds of one template, made when a row of roles comes a second time."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        source = str(template.tokenizer.chat_template)
        self._is_steady = not any(word in source for word in _UNSTEADY)
        self._mentioned = _find_mentioned_texts(source)
        self._known: dict[tuple[Roles, str], TemplateSkeleton | None] = {}
        self._seen: set[tuple[Roles, str]] = set()

    def get_skeleton(self, roles: Roles, tools: Sequence[ToolSchema] = ()) -> TemplateSkeleton | None:
        """The mould of a prompt for messages with these roles, if it is known or can be made."""
        if not self._is_steady:
            return None
        key = (roles, repr(tuple(tools)) if tools else "")
        if key in self._known:
            return self._known[key]
        if key not in self._seen:
            self._limit_size(self._seen)
            self._seen.add(key)
            return None
        self._limit_size(self._known)
        self._known[key] = skeleton = self._build_skeleton(roles, tools)
        return skeleton

    @staticmethod
    def _limit_size(store: set[tuple[Roles, str]] | dict[tuple[Roles, str], TemplateSkeleton | None]) -> None:
        if len(store) >= _REMEMBERED:
            store.clear()

    def _build_skeleton(self, roles: Roles, tools: Sequence[ToolSchema]) -> TemplateSkeleton | None:
        marks = [f"Stepwell{index}mark" for index in range(len(roles))]
        literals = self._split_at_marks(roles, tools, marks, marks)
        spaced = self._split_at_marks(roles, tools, [f" {mark}\n" for mark in marks], marks)
        if literals is None or spaced is None:
            return None
        trims = _find_trims(literals, spaced)
        if trims is None:
            return None
        skeleton = TemplateSkeleton(tuple(literals), trims)
        for contents in self._iterate_tests(len(roles)):
            if self._render_text(roles, tools, contents) != skeleton.fill(contents):
                return None
        return skeleton

    def _split_at_marks(
        self, roles: Roles, tools: Sequence[ToolSchema], contents: list[str], marks: list[str]
    ) -> list[str] | None:
        """The text around marks; None where they are not all there once and in order."""
        text = self._render_text(roles, tools, contents)
        found = re.findall(r"Stepwell\d+mark", text or "")
        return re.split(r"Stepwell\d+mark", text) if text is not None and found == marks else None

    def _render_text(self, roles: Roles, tools: Sequence[ToolSchema], contents: Sequence[str]) -> str | None:
        messages = [Message(role, content) for role, content in zip(roles, contents, strict=True)]
        try:
            return self._template.render_text(messages, tools, prompt=True)
        except RenderError:
            return None

    def _iterate_tests(self, count: int) -> Iterator[list[str]]:
        """Contents for `count` messages: every upsetting text comes in three places, or in all there are."""
        texts = [*self._mentioned, *_UPSETTING]
        for turn in range(0, len(texts), max(1, count // 3)):
            row = [texts[(turn + index) % len(texts)] for index in range(count)]
            yield [f"{text}so{texts[turn - 1]}" for text in row]
            yield [f"\t\n {text} {text} \n" if index % 2 else f"{text}." for index, text in enumerate(row)]
            yield row


def _find_mentioned_texts(source: str) -> list[str]:
    """Every text that a template mentions: what it may look for in contents."""
    quoted = [first or second for first, second in _QUOTED.findall(source)]
    plain = [text.replace("\\n", "\n").replace("\\t", "\t") for text in quoted]
    tags = re.findall(r"<[^<>\s]+>|\[/?[A-Z_]+\]", source)
    return [text for text in dict.fromkeys([*plain, *tags]) if text.strip()]


def _find_trims(literals: list[str], spaced: list[str]) -> tuple[Callable[[str], str], ...] | None:
    """How each content is taken, from the text around marks and around marks with blanks."""
    before = [spaced[0] == literals[0] + " "]
    after: list[bool] = []
    for literal, wide in zip(literals[1:-1], spaced[1:-1], strict=True):
        choices = {
            ("\n" if kept_after else "") + literal + (" " if kept_before else ""): (kept_after, kept_before)
            for kept_after in (True, False)
            for kept_before in (True, False)
        }
        if wide not in choices:
            return None
        kept_after, kept_before = choices[wide]
        after.append(kept_after)
        before.append(kept_before)
    after.append(spaced[-1] == "\n" + literals[-1])
    return tuple(_TRIMS[pair] for pair in zip(before, after, strict=True))
