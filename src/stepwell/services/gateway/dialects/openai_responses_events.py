"""The events of a streamed response, in the order that OpenAI's client expects.

    created ─► in_progress ─► item added ─► part added ─► text delta … ─► text, part, item done
                          └─► item added ─► arguments delta ─► arguments, item done ─► completed

Events are numbered. A message is one item with one part. A call closes an open message, and text after it
opens another one. A failure also carries its error under the name by which the client notices it: otherwise
an error event would look like the end of a reply.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stepwell.core import ToolCall
from stepwell.core.ids import make_id
from stepwell.services.errors import ServiceError
from stepwell.services.gateway.chat import ChatCompletion, ChatRequest, CompletionDelta, TokenLogprob
from stepwell.services.gateway.dialects import openai_responses as responses
from stepwell.services.gateway.dialects import openai_shared as shared
from stepwell.services.gateway.dialects.errors import Vendor, write_error_body
from stepwell.services.gateway.dialects.route import write_event


@dataclass(slots=True)
class _OpenMessage:
    """A message item that is still being written."""

    text: str = ""
    tokens: list[TokenLogprob] = field(default_factory=list)
    id: str = field(default_factory=lambda: make_id("msg"))


class ResponsesWriter:
    """A completion as a stream of events. `remember` stores the turn before the end is sent."""

    def __init__(
        self, body: responses.ResponsesRequest, chat: ChatRequest, remember: Callable[[ChatCompletion], None]
    ) -> None:
        self._body, self._chat, self._remember = body, chat, remember
        self._created = int(time.time())
        self._number = 0
        self._items: list[dict[str, Any]] = []
        self._open: _OpenMessage | None = None

    def write_start(self) -> Iterator[bytes]:
        response = responses.write_in_progress(self._body, self._chat, self._created)
        yield self._write_event("response.created", response=response)
        yield self._write_event("response.in_progress", response=response)

    def write_delta(self, delta: CompletionDelta) -> Iterator[bytes]:
        if delta.text or (delta.tokens and delta.tool_call is None):
            yield from self._write_text(delta)
        if delta.tool_call is not None:
            yield from self._close_message("completed")
            yield from self._write_call(delta.tool_call)

    def write_end(self, completion: ChatCompletion) -> Iterator[bytes]:
        if not self._items and self._open is None:
            yield from self._write_text(CompletionDelta(0))
        status = responses.find_status(completion.choices[0])
        yield from self._close_message(status)
        self._remember(completion)
        response = responses.write_finished(self._body, self._chat, completion, self._items)
        yield self._write_event(f"response.{status}", response={**response, "created_at": self._created})

    def write_error(self, failure: ServiceError) -> bytes:
        error = write_error_body(Vendor.OPENAI, failure)["error"]
        return self._write_event("error", **error | {"error": error})

    def _write_text(self, delta: CompletionDelta) -> Iterator[bytes]:
        if self._open is None:
            self._open = _OpenMessage()
            item = responses.write_message_item("", status="in_progress", item_id=self._open.id) | {
                "content": []
            }
            yield self._write_event("response.output_item.added", output_index=len(self._items), item=item)
            yield self._write_event(
                "response.content_part.added", **self._locate_part(), part=responses.write_text_part("")
            )
        self._open.text += delta.text
        self._open.tokens += delta.tokens
        if delta.text or delta.tokens:
            logprobs = [shared.write_logprob(token) for token in delta.tokens]
            yield self._write_event(
                "response.output_text.delta", **self._locate_part(), delta=delta.text, logprobs=logprobs
            )

    def _close_message(self, status: str) -> Iterator[bytes]:
        if self._open is None:
            return
        message, location = self._open, self._locate_part()
        part = responses.write_text_part(message.text, message.tokens)
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        item = responses.write_message_item(
            message.text, tuple(message.tokens), status=status, item_id=message.id
        )
        yield self._write_event("response.output_text.done", **location, **done)
        yield self._write_event("response.content_part.done", **location, part=part)
        yield self._write_event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._open = None

    def _write_call(self, call: ToolCall) -> Iterator[bytes]:
        item, index = responses.write_call_item(call), len(self._items)
        location = {"item_id": item["id"], "output_index": index}
        arguments = item["arguments"]
        started = {**item, "arguments": "", "status": "in_progress"}
        yield self._write_event("response.output_item.added", output_index=index, item=started)
        yield self._write_event("response.function_call_arguments.delta", **location, delta=arguments)
        yield self._write_event(
            "response.function_call_arguments.done", **location, arguments=arguments, name=call.name
        )
        yield self._write_event("response.output_item.done", output_index=index, item=item)
        self._items.append(item)

    def _locate_part(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open.id, "output_index": len(self._items), "content_index": 0}

    def _write_event(self, name: str, /, **data: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return write_event({**data, "type": name, "sequence_number": number}, name)
