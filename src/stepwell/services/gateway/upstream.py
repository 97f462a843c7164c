"""A plain upstream: calls are passed to any OpenAI-compatible chat API and recorded as messages.

Such an API returns neither the ids nor the probabilities of what was sampled, so nothing here can be trained
on: steps hold text only, the messages are in `Step.info`, and the trajectory has the tag `untrainable`.
Sessions, branches, rewards and the tree of turns are the same as with an engine. An agent can therefore be
observed, and its data curated, before the user's own policy answers it.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx

from stepwell.config.gateway import GatewayConfig
from stepwell.core import FinishReason, Sampling, Step, ToolCall
from stepwell.core.errors import ConfigError
from stepwell.pool import Pool
from stepwell.rendering import Message
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.gateway.base import BaseGateway, check_messages
from stepwell.services.gateway.chat import (
    ChatCompletion,
    ChatRequest,
    ChoiceFinish,
    CompletionChoice,
    CompletionDelta,
    GatewayCaller,
    StreamItem,
)
from stepwell.services.gateway.history import HistoryMatch, RecordedTurn
from stepwell.services.gateway.sessions import GatewaySession
from stepwell.services.gateway.step_info import CallRecord, build_step_info

UNTRAINABLE = "untrainable"
_FINISH = {"length": ChoiceFinish.LENGTH, "tool_calls": ChoiceFinish.TOOL_CALLS}
_KINDS = {
    400: ErrorKind.INVALID,
    404: ErrorKind.NOT_FOUND,
    413: ErrorKind.TOO_LARGE,
    422: ErrorKind.INVALID,
    429: ErrorKind.LIMITED,
}


@dataclass(slots=True)
class _ChoiceDraft:
    """One choice while it arrives."""

    text: str = ""
    finish: ChoiceFinish = ChoiceFinish.END
    calls: dict[int, dict[str, str]] = field(default_factory=dict)

    def add_piece(self, delta: Mapping[str, Any], finish: str | None) -> str:
        """Add a piece, or the whole message. Return its text."""
        text = delta.get("content") or ""
        self.text += text
        for position, call in enumerate(delta.get("tool_calls") or ()):
            function = call.get("function") or {}
            into = self.calls.setdefault(call.get("index", position), {"id": "", "name": "", "arguments": ""})
            into["id"] = call.get("id") or into["id"]
            into["name"] = function.get("name") or into["name"]
            into["arguments"] += function.get("arguments") or ""
        if finish is not None:
            self.finish = _FINISH.get(finish, ChoiceFinish.END)
        return text

    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(call["name"], _parse_arguments(call["arguments"]), call["id"])
            for _, call in sorted(self.calls.items())
        )


@dataclass(slots=True, eq=False)
class _Call:
    chat: ChatRequest
    session: GatewaySession
    first: int
    match: HistoryMatch
    record: CallRecord


class UpstreamGateway(BaseGateway):
    """Answers calls by asking another API. Implements `ChatBackend`. Nothing it records is trainable."""

    def __init__(
        self,
        base_url: str,
        pool: Pool,
        config: GatewayConfig | None = None,
        *,
        api_key: str = "",
        model: str | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"upstream must start with http:// or https://, got {base_url!r}")
        super().__init__(pool, config, tags=(UNTRAINABLE,))
        self._model = model
        self._client = httpx.AsyncClient(
            base_url=f"{base_url.rstrip('/').removesuffix('/v1')}/v1",
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout_s, connect=10.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
        )

    async def stop(self) -> None:
        await super().stop()
        await self._client.aclose()

    async def is_ready(self) -> bool:
        return await super().is_ready() and (await self._client.get("/models")).status_code < 500

    async def complete_chat(self, caller: GatewayCaller, chat: ChatRequest) -> ChatCompletion:
        call = await self._start_call(caller, chat)
        try:
            value = await self._post_chat(call)
            drafts = [_ChoiceDraft() for _ in value["choices"]]
            for draft, choice in zip(drafts, value["choices"], strict=True):
                draft.add_piece(choice["message"], choice.get("finish_reason"))
            return await self._record_steps(call, drafts, value.get("usage"))
        except (KeyError, TypeError, ValueError) as error:
            raise _explain_unreadable(call, error) from error
        finally:
            call.session.end_call()

    async def stream_chat(self, caller: GatewayCaller, chat: ChatRequest) -> AsyncGenerator[StreamItem, None]:
        call = await self._start_call(caller, chat)
        drafts = [_ChoiceDraft() for _ in range(chat.num_choices)]
        usage: Mapping[str, Any] | None = None
        try:
            async with aclosing(self._stream_events(call)) as events:
                async for event in events:
                    usage = event.get("usage") or usage
                    for choice in event.get("choices") or ():
                        index = choice["index"]
                        text = drafts[index].add_piece(choice.get("delta") or {}, choice.get("finish_reason"))
                        if text:
                            yield CompletionDelta(index, text)
            completion = await self._record_steps(call, drafts, usage)
            for index, draft in enumerate(drafts):
                for tool_call in draft.tool_calls():
                    yield CompletionDelta(index, tool_call=tool_call)
            yield completion
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise _explain_unreadable(call, error) from error
        finally:
            call.session.end_call()

    async def _start_call(self, caller: GatewayCaller, chat: ChatRequest) -> _Call:
        self._check_request(chat)
        if chat.messages is None:
            raise ServiceError(
                ErrorKind.INVALID, "an upstream serves chat calls only; send messages", param="prompt"
            )
        messages = check_messages(chat.messages)
        session = await self.registry.get_or_open(caller)
        first = session.begin_call(chat.num_choices)
        match = session.history.match_messages(messages, chat.tools)
        parent = match.parent.number if match.parent else None
        record = CallRecord(
            chat.id, first, parent, match.new_messages, chat.tools, match.branch, metadata=chat.metadata
        )
        return _Call(chat, session, first, match, record)

    async def _post_chat(self, call: _Call) -> Any:
        try:
            response = await self._client.post(
                "/chat/completions", json=self._build_body(call.chat, stream=False)
            )
        except httpx.HTTPError as error:
            raise _explain_unreachable(call, error) from error
        if response.status_code != 200:
            raise _explain_refusal(call, response.status_code, response.headers, response.text)
        return response.json()

    async def _stream_events(self, call: _Call) -> AsyncGenerator[Any, None]:
        body = self._build_body(call.chat, stream=True)
        try:
            async with self._client.stream("POST", "/chat/completions", json=body) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    raise _explain_refusal(call, response.status_code, response.headers, text)
                async for data in _read_event_data(response.aiter_lines()):
                    yield json.loads(data)
        except httpx.HTTPError as error:
            raise _explain_unreachable(call, error) from error

    def _build_body(self, chat: ChatRequest, *, stream: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model or chat.model,
            "messages": [_write_message(message) for message in chat.messages or ()],
            "temperature": chat.temperature,
            "top_p": chat.top_p,
            "n": chat.num_choices,
        }
        given = {"max_tokens": chat.max_tokens or self.config.max_tokens, "seed": chat.seed}
        body |= {name: value for name, value in given.items() if value is not None}
        if chat.stop:
            body["stop"] = list(chat.stop)
        if chat.tools:
            body["tools"] = [tool.to_openai() for tool in chat.tools]
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    async def _record_steps(
        self, call: _Call, drafts: Sequence[_ChoiceDraft], usage: Mapping[str, Any] | None
    ) -> ChatCompletion:
        call.session.refuse_if_over()
        steps, choices = [], []
        for index, draft in enumerate(drafts):
            reply = Message.assistant(draft.text, draft.tool_calls())
            steps.append(_build_step(call, index, reply))
            turn = RecordedTurn(call.first + index, call.first, call.chat.id, call.record.parent)
            turn.messages, turn.tools = (*(call.chat.messages or ()), reply), call.chat.tools
            turn.normal_form = call.match.normal_form
            call.session.history.add(turn)
            finish = ChoiceFinish.TOOL_CALLS if reply.tool_calls else draft.finish
            choices.append(CompletionChoice(index, draft.text, finish, reply.tool_calls))
        call.session.note_branch(call.first, call.record.branch)
        await self.registry.write_steps(call.session, call.first, steps)
        call.session.last_infra_error = ""
        used = usage or {}
        return ChatCompletion(
            call.chat.id,
            int(time.time()),
            self._model or call.chat.model,
            tuple(choices),
            int(used.get("prompt_tokens") or 0),
            int((used.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
            int(used.get("completion_tokens") or 0),
            call.session.id,
        )


def _build_step(call: _Call, choice: int, reply: Message) -> Step:
    sampling = Sampling(call.chat.temperature, call.chat.top_p, call.chat.seed, FinishReason.GIVEN)
    return Step.from_text(reply.text, sampling, build_step_info(call.record, choice, reply, ""))


def _write_message(message: Message) -> dict[str, Any]:
    value: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        value["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        value["tool_call_id"] = message.tool_call_id
    return value


def _parse_arguments(text: str) -> dict[str, Any]:
    value = json.loads(text or "{}")
    if not isinstance(value, dict):
        raise ValueError("the arguments of a tool call are not an object")
    return value


async def _read_event_data(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async for line in lines:
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data and data != "[DONE]":
            yield data


def _explain_unreachable(call: _Call, error: Exception) -> ServiceError:
    call.session.note_infra_error(error)
    message = f"the upstream cannot be reached ({type(error).__name__}); is it running?"
    return ServiceError(ErrorKind.UNAVAILABLE, message, retry_after_s=1.0)


def _explain_unreadable(call: _Call, error: Exception) -> ServiceError:
    call.session.note_infra_error(error)
    return ServiceError(
        ErrorKind.UNAVAILABLE, f"the upstream's reply cannot be read ({type(error).__name__}: {error})"
    )


def _explain_refusal(call: _Call, status: int, headers: Mapping[str, str], text: str) -> ServiceError:
    """What the upstream says. Its own failures, and those of our key, are the system's, not the agent's."""
    kind = _KINDS.get(status, ErrorKind.UNAVAILABLE)
    if kind is ErrorKind.UNAVAILABLE:
        call.session.note_infra_error(RuntimeError(f"upstream status {status}"))
    try:
        reason = str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        reason = text[:200]
    after = headers.get("retry-after", "")
    return ServiceError(
        kind,
        f"the upstream refused ({status}): {reason}",
        retry_after_s=float(after) if after.isdigit() else None,
    )
