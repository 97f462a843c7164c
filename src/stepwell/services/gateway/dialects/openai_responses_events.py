"""The events of a streamed response, in the order that OpenAI's client builds it up from.

    created ─► in_progress ─► item added ─► part added ─► text delta … ─► text, part, item done
                          └─► item added ─► arguments delta ─► arguments, item done ─► completed

Events are numbered. A message is one item with one part; a call closes an open message, and
words after it open another one. A failure carries its error under the name by which the
client notices it: an error event that is only shown would look like the end of an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stepwell.core import ToolCall
from stepwell.core.ids import new_id
from stepwell.services.gateway.dialects import openai_responses as form
from stepwell.services.gateway.dialects import openai_shared as shared
from stepwell.services.gateway.dialects.refusals import Vendor, error_body
from stepwell.services.gateway.dialects.route import event
from stepwell.services.gateway.exchange import Answer, Ask, Delta, Refused, Token


@dataclass(slots=True)
class _OpenMessage:
    """A message item that is still written to."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    id: str = field(default_factory=lambda: new_id("msg"))


class ResponsesWriter:
    """An answer as a stream of events; `remember` keeps the turn before its end is told."""

    def __init__(self, body: form.ResponsesRequest, ask: Ask, remember: Callable[[Answer], None]) -> None:
        self._body, self._ask, self._remember = body, ask, remember
        self._created = int(time.time())
        self._number = 0
        self._items: list[dict[str, Any]] = []
        self._open: _OpenMessage | None = None

    def begin(self) -> Iterator[bytes]:
        response = form.in_progress(self._body, self._ask, self._created)
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def delta(self, delta: Delta) -> Iterator[bytes]:
        if delta.text or (delta.tokens and delta.tool_call is None):
            yield from self._say(delta)
        if delta.tool_call is not None:
            yield from self._close("completed")
            yield from self._call(delta.tool_call)

    def end(self, answer: Answer) -> Iterator[bytes]:
        if not self._items and self._open is None:
            yield from self._say(Delta(0))
        status = form.status_of(answer.choices[0])
        yield from self._close(status)
        self._remember(answer)
        response = form.finished(self._body, self._ask, answer, self._items)
        yield self._event(f"response.{status}", response={**response, "created_at": self._created})

    def failed(self, refused: Refused) -> bytes:
        error = error_body(Vendor.OPENAI, refused)["error"]
        return self._event("error", **error | {"error": error})

    def _say(self, delta: Delta) -> Iterator[bytes]:
        if self._open is None:
            self._open = _OpenMessage()
            item = form.message_item("", status="in_progress", item_id=self._open.id) | {"content": []}
            yield self._event("response.output_item.added", output_index=len(self._items), item=item)
            yield self._event("response.content_part.added", **self._place(), part=form.text_part(""))
        self._open.text += delta.text
        self._open.tokens += delta.tokens
        if delta.text or delta.tokens:
            logprobs = [shared.written_logprob(token) for token in delta.tokens]
            yield self._event(
                "response.output_text.delta", **self._place(), delta=delta.text, logprobs=logprobs
            )

    def _close(self, status: str) -> Iterator[bytes]:
        if self._open is None:
            return
        message, place = self._open, self._place()
        part = form.text_part(message.text, message.tokens)
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        item = form.message_item(message.text, tuple(message.tokens), status=status, item_id=message.id)
        yield self._event("response.output_text.done", **place, **done)
        yield self._event("response.content_part.done", **place, part=part)
        yield self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._open = None

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        item, index = form.call_item(call), len(self._items)
        place = {"item_id": item["id"], "output_index": index}
        arguments = item["arguments"]
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=arguments)
        yield self._event(
            "response.function_call_arguments.done", **place, arguments=arguments, name=call.name
        )
        yield self._event("response.output_item.done", output_index=index, item=item)
        self._items.append(item)

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open.id, "output_index": len(self._items), "content_index": 0}

    def _event(self, name: str, /, **data: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({**data, "type": name, "sequence_number": number}, name)
