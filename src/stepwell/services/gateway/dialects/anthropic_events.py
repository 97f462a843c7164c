"""The events of a streamed message, in the order that Anthropic's client expects.

    message_start ─► (block start ─► deltas ─► block stop) … ─► message_delta ─► message_stop

A call closes an open text block, and text after it opens another one. The number of prompt tokens is known
only at the end: the last `message_delta` has the counts that are valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepwell.core import ToolCall
from stepwell.services.errors import ServiceError
from stepwell.services.gateway.chat import ChatCompletion, ChatRequest, CompletionDelta
from stepwell.services.gateway.dialects import anthropic_messages as messages
from stepwell.services.gateway.dialects.errors import Vendor, dump_json, write_error_body
from stepwell.services.gateway.dialects.route import write_event


class MessagesWriter:
    """A completion as a stream of events."""

    def __init__(self, chat: ChatRequest) -> None:
        self._chat = chat
        self._num_blocks = 0
        self._text_is_open = False

    def write_start(self) -> Iterator[bytes]:
        yield _write_event("message_start", message=messages.write_empty_message(self._chat))

    def write_delta(self, delta: CompletionDelta) -> Iterator[bytes]:
        if delta.text:
            if not self._text_is_open:
                self._text_is_open = True
                yield self._start_block({"type": "text", "text": ""})
            yield self._write_block_delta({"type": "text_delta", "text": delta.text})
        if delta.tool_call is not None:
            yield from self._close_text()
            yield from self._write_call(delta.tool_call)

    def write_end(self, completion: ChatCompletion) -> Iterator[bytes]:
        yield from self._close_text()
        (choice,) = completion.choices
        yield _write_event(
            "message_delta", delta=messages.write_stop_reason(choice), usage=messages.write_usage(completion)
        )
        yield _write_event("message_stop")

    def write_error(self, error: ServiceError) -> bytes:
        return write_event(write_error_body(Vendor.ANTHROPIC, error), "error")

    def _write_call(self, call: ToolCall) -> Iterator[bytes]:
        yield self._start_block({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        yield self._write_block_delta({"type": "input_json_delta", "partial_json": dump_json(call.arguments)})
        yield self._stop_block()

    def _close_text(self) -> Iterator[bytes]:
        if self._text_is_open:
            self._text_is_open = False
            yield self._stop_block()

    def _start_block(self, block: dict[str, Any]) -> bytes:
        return _write_event("content_block_start", index=self._num_blocks, content_block=block)

    def _write_block_delta(self, delta: dict[str, Any]) -> bytes:
        return _write_event("content_block_delta", index=self._num_blocks, delta=delta)

    def _stop_block(self) -> bytes:
        index, self._num_blocks = self._num_blocks, self._num_blocks + 1
        return _write_event("content_block_stop", index=index)


def _write_event(name: str, /, **data: Any) -> bytes:
    return write_event({"type": name, **data}, name)
