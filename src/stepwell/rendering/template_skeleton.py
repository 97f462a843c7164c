"""Template skeletons: the fixed text that a chat template writes around contents, for fast rendering.

For a given sequence of roles, most templates write fixed text with the contents in between, unchanged
or stripped of surrounding blanks. Such a sequence has a skeleton; filling it gives the template's own
text without running the template.

    skeletons = SkeletonCache(template)
    skeletons.get_skeleton(("system", "user"))   None the first time, then a TemplateSkeleton if possible

A skeleton is found with marks as contents and then tested on difficult contents: every text that the
template itself mentions, at the beginning, the end and alone, with surrounding blanks, quotes, braces,
markup, and long texts. A template that depends on contents (for example one that removes thinking)
fails these tests and gets no skeleton; neither does one that uses the date.

Skeletons cover plain messages only: non-blank text without tool calls, names and ids.
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
    """Fixed text before, between and after contents, and how each content is stripped."""

    literals: tuple[str, ...]
    trims: tuple[Callable[[str], str], ...]

    def fill(self, contents: Sequence[str]) -> str:
        """Return the template's text for these contents, one per message."""
        return self.fill_after(0, contents)

    def fill_after(self, first: int, contents: Sequence[str]) -> str:
        """Return the text from the literal before message `first` on, given the contents from there on."""
        written = [self.literals[first]]
        for index, content in enumerate(contents, first):
            written += (self.trims[index](content), self.literals[index + 1])
        return "".join(written)


def find_plain_roles(messages: Sequence[Message]) -> Roles | None:
    """Return the roles of the messages if all are plain, otherwise None."""
    for message in messages:
        content = message.content
        if message.tool_calls or message.tool_call_id or message.name:
            return None
        if not isinstance(content, str) or not content or content.isspace():
            return None
    return tuple([message.role for message in messages])


class SkeletonCache:
    """The skeletons of one template, built when a sequence of roles occurs a second time."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        source = str(template.tokenizer.chat_template)
        self._is_steady = not any(word in source for word in _UNSTEADY)
        self._mentioned = _find_mentioned_texts(source)
        self._known: dict[tuple[Roles, str], TemplateSkeleton | None] = {}
        self._seen: set[tuple[Roles, str]] = set()

    def get_skeleton(self, roles: Roles, tools: Sequence[ToolSchema] = ()) -> TemplateSkeleton | None:
        """Return the skeleton of a prompt with these roles, if it is known or can be built."""
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
        """Return the text around the marks; None unless each occurs once and in order."""
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
        """Yield test contents for `count` messages: every difficult text in three places, or in all."""
        texts = [*self._mentioned, *_UPSETTING]
        for turn in range(0, len(texts), max(1, count // 3)):
            row = [texts[(turn + index) % len(texts)] for index in range(count)]
            yield [f"{text}so{texts[turn - 1]}" for text in row]
            yield [f"\t\n {text} {text} \n" if index % 2 else f"{text}." for index, text in enumerate(row)]
            yield row


def _find_mentioned_texts(source: str) -> list[str]:
    """List every text that a template mentions, since it may look for it in contents."""
    quoted = [first or second for first, second in _QUOTED.findall(source)]
    plain = [text.replace("\\n", "\n").replace("\\t", "\t") for text in quoted]
    tags = re.findall(r"<[^<>\s]+>|\[/?[A-Z_]+\]", source)
    return [text for text in dict.fromkeys([*plain, *tags]) if text.strip()]


def _find_trims(literals: list[str], spaced: list[str]) -> tuple[Callable[[str], str], ...] | None:
    """Find how each content is stripped, from the text around marks and around marks with blanks."""
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
