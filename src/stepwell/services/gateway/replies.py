"""From sampled ids to what a client sees: text without stop strings and markup, and tool calls.

    read_reply(ids, …)             ─►  VisibleReply              the whole reply at once
    IncrementalReader.feed(ids)    ─►  text that is safe to send    while it is sampled
    IncrementalReader.finish(…)    ─►  the rest, and the VisibleReply

Text is held back while it could still become something else: the bytes of an unfinished character, the start
of a stop string or of a tool call, and, if there are tools, white space before a call. Everything from the
first markup of a call on is held back to the end, since only then it is known whether the calls can be read.

Invariants
* The text from `feed` and `finish`, joined, is `VisibleReply.text`: the same as without streaming.
* A turn with a call that cannot be read is plain text, including the markup: the agent sees what the policy
  wrote. A call is never accepted in part.
* Trailing end tokens are not text. What the generation prompt had opened is not repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.core import ToolCall
from stepwell.rendering import Renderer, ToolFormat, parse_reply

_MARKUP: dict[ToolFormat, tuple[str, ...]] = {
    ToolFormat.HERMES: ("<tool_call>",),
    ToolFormat.LLAMA: ("<|python_tag|>",),
    ToolFormat.MISTRAL: ("[TOOL_CALLS]",),
}
_UNFINISHED = "\ufffd"


@dataclass(frozen=True, slots=True)
class VisibleReply:
    """A reply as a client sees it."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    stop_string: str | None = None


def read_reply(
    renderer: Renderer,
    ids: Sequence[int],
    stop: Sequence[str] = (),
    tool_format: ToolFormat | None = None,
    first_call: int = 0,
) -> VisibleReply:
    """The whole reply. `tool_format` is None if the request had no tools."""
    return read_reply_text(decode_reply(renderer, ids), stop, tool_format, first_call)


def read_reply_text(
    text: str, stop: Sequence[str] = (), tool_format: ToolFormat | None = None, first_call: int = 0
) -> VisibleReply:
    """The same for decoded text."""
    text, stop_string = cut_at_stop(text, stop)
    start = None if tool_format is None else find_markup(text, tool_format)
    if tool_format is None or start is None:
        return VisibleReply(text, (), stop_string)
    parsed = parse_reply(text[start:], tool_format, first_call)
    if parsed.errors or not parsed.tool_calls:
        return VisibleReply(text, (), stop_string)
    return VisibleReply(text[:start].rstrip() + parsed.content, parsed.tool_calls, stop_string)


def decode_reply(renderer: Renderer, ids: Sequence[int]) -> str:
    """The text of sampled ids without the tokens that ended the turn."""
    return renderer.template.decode(_drop_end_ids(renderer, ids))


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """The text before the first stop string, and which one that was (the longest of several)."""
    found = [(text.find(each), -len(each), each) for each in stop if each in text]
    if not found:
        return text, None
    at, _, which = min(found)
    return text[:at], which


def find_markup(text: str, tool_format: ToolFormat, *, is_beginning: bool = True) -> int | None:
    """Where the first tool call starts, if there is one."""
    if is_beginning and tool_format is ToolFormat.LLAMA and text.lstrip().startswith(("{", "[")):
        return 0
    places = [text.find(mark) for mark in _MARKUP[tool_format] if mark in text]
    return min(places, default=None)


class IncrementalReader:
    """Reads a reply while it is sampled."""

    def __init__(
        self,
        renderer: Renderer,
        stop: Sequence[str] = (),
        tool_format: ToolFormat | None = None,
        first_call: int = 0,
    ) -> None:
        self._renderer = renderer
        self._stop = tuple(stop)
        self._tool_format = tool_format
        self._first_call = first_call
        self._watched = (*self._stop, *(_MARKUP[tool_format] if tool_format else ()))
        self._ids: list[int] = []
        self._clean = 0  # ids up to here are decoded and end with a whole character
        self._window = 0  # where decoding starts: some tokens decode differently at the start of a text
        self._text = ""
        self._num_sent = 0

    def feed(self, ids: Sequence[int]) -> str:
        """Take sampled tokens. Return the text that is now safe to send."""
        self._ids += ids
        self._decode_new()
        end = self._find_safe_end()
        text = self._text[self._num_sent : end]
        self._num_sent = max(self._num_sent, end)
        return text

    def finish(self, ids: Sequence[int]) -> tuple[str, VisibleReply]:
        """The text still held back, and the whole reply. `ids` are all that were sampled."""
        reading = read_reply(self._renderer, ids, self._stop, self._tool_format, self._first_call)
        assert reading.text.startswith(self._text[: self._num_sent]), "text that was sent must stay"
        return reading.text[self._num_sent :], reading

    def _decode_new(self) -> None:
        fresh = _drop_end_ids(self._renderer, self._ids[self._window :])
        num_clean = self._clean - self._window
        if len(fresh) <= num_clean:
            return
        before = self._renderer.template.decode(fresh[:num_clean])
        after = self._renderer.template.decode(fresh)
        if after.endswith(_UNFINISHED) or not after.startswith(before):
            return
        self._text += after[len(before) :]
        self._window, self._clean = self._clean, self._window + len(fresh)

    def _find_safe_end(self) -> int:
        """Up to where the text can be sent. Text sent earlier holds no watched string."""
        text, stop_string = cut_at_stop(self._text[self._num_sent :], self._stop)
        end = len(text)
        if self._tool_format is not None:
            start = find_markup(text, self._tool_format, is_beginning=self._num_sent == 0)
            end = end if start is None else start
        if stop_string is None:
            end = min(end, len(text) - max((_count_overlap(text, word) for word in self._watched), default=0))
        if self._tool_format is not None:
            end = len(text[:end].rstrip())
        return self._num_sent + end


def _count_overlap(text: str, word: str) -> int:
    """How many characters at the end of `text` may be the start of `word`."""
    for size in range(min(len(word) - 1, len(text)), 0, -1):
        if text.endswith(word[:size]):
            return size
    return 0


def _drop_end_ids(renderer: Renderer, ids: Sequence[int]) -> list[int]:
    ids = list(ids)
    while ids and ids[-1] in renderer.end_ids:
        ids.pop()
    return ids
