"""The events of a streamed message, in the order that Anthropic's client builds it up from.

    message_start ─► (block start ─► deltas ─► block stop) … ─► message_delta ─► message_stop

A call closes an open block of text, and words after it open another one. The prompt's tokens
are known at the end: the last `message_delta` has the counts that hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepwell.core import ToolCall
from stepwell.services.gateway.dialects import anthropic_messages as form
from stepwell.services.gateway.dialects.refusals import Vendor, dumps, error_body
from stepwell.services.gateway.dialects.route import event
from stepwell.services.gateway.exchange import Answer, Ask, Delta, Refused


class MessagesWriter:
    """An answer as a stream of events."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._num_blocks = 0
        self._text_is_open = False

    def begin(self) -> Iterator[bytes]:
        yield _event("message_start", message=form.message(self._ask))

    def delta(self, delta: Delta) -> Iterator[bytes]:
        if delta.text:
            if not self._text_is_open:
                self._text_is_open = True
                yield self._start({"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": delta.text})
        if delta.tool_call is not None:
            yield from self._close_text()
            yield from self._call(delta.tool_call)

    def end(self, answer: Answer) -> Iterator[bytes]:
        yield from self._close_text()
        (choice,) = answer.choices
        yield _event("message_delta", delta=form.ending(choice), usage=form.usage(answer))
        yield _event("message_stop")

    def failed(self, refused: Refused) -> bytes:
        return event(error_body(Vendor.ANTHROPIC, refused), "error")

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        yield self._start({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        yield self._delta({"type": "input_json_delta", "partial_json": dumps(call.arguments)})
        yield self._stop()

    def _close_text(self) -> Iterator[bytes]:
        if self._text_is_open:
            self._text_is_open = False
            yield self._stop()

    def _start(self, block: dict[str, Any]) -> bytes:
        return _event("content_block_start", index=self._num_blocks, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._num_blocks, delta=delta)

    def _stop(self) -> bytes:
        index, self._num_blocks = self._num_blocks, self._num_blocks + 1
        return _event("content_block_stop", index=index)


def _event(name: str, /, **data: Any) -> bytes:
    return event({"type": name, **data}, name)
