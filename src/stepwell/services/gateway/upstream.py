"""A plain upstream: calls go on to any OpenAI-compatible chat API, and are recorded as messages.

Such an API gives neither ids nor the probabilities of what was sampled, so nothing here can be trained
on: steps have an empty state and action, the messages stand in `Step.info`, and the trajectory has the
tag `untrainable`. Sessions, branches, rewards and the tree of turns are the same as with an engine, so
that an agent can be watched, and its data curated, before a policy of one's own answers it.
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
from stepwell.services.gateway.exchange import Answer, Ask, Caller, Choice, Delta, Finish, Kind, Refused
from stepwell.services.gateway.history import Place, Turn
from stepwell.services.gateway.keeper import Keeper, checked_messages
from stepwell.services.gateway.notes import CallNote, note
from stepwell.services.gateway.sessions import Session

UNTRAINABLE = "untrainable"
_FINISH = {"length": Finish.LENGTH, "tool_calls": Finish.TOOL_CALLS}
_KINDS = {400: Kind.INVALID, 404: Kind.NOT_FOUND, 413: Kind.TOO_LARGE, 422: Kind.INVALID, 429: Kind.LIMITED}


@dataclass(slots=True)
class _Draft:
    """One choice while it comes in."""

    text: str = ""
    finish: Finish = Finish.END
    calls: dict[int, dict[str, str]] = field(default_factory=dict)

    def take(self, delta: Mapping[str, Any], finish: str | None) -> str:
        """Take a piece, or the whole message; gives its text."""
        text = delta.get("content") or ""
        self.text += text
        for place, call in enumerate(delta.get("tool_calls") or ()):
            function = call.get("function") or {}
            into = self.calls.setdefault(call.get("index", place), {"id": "", "name": "", "arguments": ""})
            into["id"] = call.get("id") or into["id"]
            into["name"] = function.get("name") or into["name"]
            into["arguments"] += function.get("arguments") or ""
        if finish is not None:
            self.finish = _FINISH.get(finish, Finish.END)
        return text

    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(call["name"], _arguments(call["arguments"]), call["id"])
            for _, call in sorted(self.calls.items())
        )


@dataclass(slots=True, eq=False)
class _Call:
    ask: Ask
    session: Session
    first: int
    place: Place
    note: CallNote


class UpstreamGateway(Keeper):
    """Answers calls by asking another API. Implements `Answering`; nothing it records can be trained on."""

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
            raise ConfigError(f"upstream must begin with http:// or https://, got {base_url!r}")
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

    async def answer(self, caller: Caller, ask: Ask) -> Answer:
        call = await self._begin(caller, ask)
        try:
            value = await self._asked(call)
            drafts = [_Draft() for _ in value["choices"]]
            for draft, choice in zip(drafts, value["choices"], strict=True):
                draft.take(choice["message"], choice.get("finish_reason"))
            return await self._record(call, drafts, value.get("usage"))
        except (KeyError, TypeError, ValueError) as error:
            raise _nonsense(call, error) from error
        finally:
            call.session.end_call()

    async def stream(self, caller: Caller, ask: Ask) -> AsyncGenerator[Delta | Answer, None]:
        call = await self._begin(caller, ask)
        drafts = [_Draft() for _ in range(ask.num_choices)]
        usage: Mapping[str, Any] | None = None
        try:
            async with aclosing(self._events(call)) as events:
                async for event in events:
                    usage = event.get("usage") or usage
                    for choice in event.get("choices") or ():
                        index = choice["index"]
                        text = drafts[index].take(choice.get("delta") or {}, choice.get("finish_reason"))
                        if text:
                            yield Delta(index, text)
            answer = await self._record(call, drafts, usage)
            for index, draft in enumerate(drafts):
                for tool_call in draft.tool_calls():
                    yield Delta(index, tool_call=tool_call)
            yield answer
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise _nonsense(call, error) from error
        finally:
            call.session.end_call()

    async def _begin(self, caller: Caller, ask: Ask) -> _Call:
        self._refuse_impossible(ask)
        if ask.messages is None:
            raise Refused(Kind.INVALID, "a plain upstream serves chats only; send messages", param="prompt")
        messages = checked_messages(ask.messages)
        session = await self.registry.of(caller)
        first = session.begin_call(ask.num_choices)
        place = session.history.place(messages, ask.tools)
        parent = place.parent.number if place.parent else None
        noted = CallNote(ask.id, first, parent, place.new, ask.tools, place.branch, metadata=ask.metadata)
        return _Call(ask, session, first, place, noted)

    async def _asked(self, call: _Call) -> Any:
        try:
            response = await self._client.post("/chat/completions", json=self._body(call.ask, stream=False))
        except httpx.HTTPError as error:
            raise _unreachable(call, error) from error
        if response.status_code != 200:
            raise _refused(call, response.status_code, response.headers, response.text)
        return response.json()

    async def _events(self, call: _Call) -> AsyncGenerator[Any, None]:
        body = self._body(call.ask, stream=True)
        try:
            async with self._client.stream("POST", "/chat/completions", json=body) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    raise _refused(call, response.status_code, response.headers, text)
                async for data in _server_sent(response.aiter_lines()):
                    yield json.loads(data)
        except httpx.HTTPError as error:
            raise _unreachable(call, error) from error

    def _body(self, ask: Ask, *, stream: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model or ask.model,
            "messages": [_message(message) for message in ask.messages or ()],
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            "n": ask.num_choices,
        }
        given = {"max_tokens": ask.max_tokens or self.config.max_tokens, "seed": ask.seed}
        body |= {name: value for name, value in given.items() if value is not None}
        if ask.stop:
            body["stop"] = list(ask.stop)
        if ask.tools:
            body["tools"] = [tool.to_openai() for tool in ask.tools]
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    async def _record(self, call: _Call, drafts: Sequence[_Draft], usage: Mapping[str, Any] | None) -> Answer:
        call.session.refuse_if_over()
        steps, choices = [], []
        for index, draft in enumerate(drafts):
            reply = Message.assistant(draft.text, draft.tool_calls())
            steps.append(_step(call, index, reply))
            turn = Turn(call.first + index, call.first, call.ask.id, call.note.parent)
            turn.messages, turn.tools = (*(call.ask.messages or ()), reply), call.ask.tools
            turn.plain = call.place.plain
            call.session.history.add(turn)
            finish = Finish.TOOL_CALLS if reply.tool_calls else draft.finish
            choices.append(Choice(index, draft.text, finish, reply.tool_calls))
        call.session.note_branch(call.first, call.note.branch)
        await self.registry.write(call.session, call.first, steps)
        call.session.last_infra_error = ""
        used = usage or {}
        return Answer(
            call.ask.id,
            int(time.time()),
            self._model or call.ask.model,
            tuple(choices),
            int(used.get("prompt_tokens") or 0),
            int((used.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
            int(used.get("completion_tokens") or 0),
            call.session.id,
        )


def _step(call: _Call, choice: int, reply: Message) -> Step:
    sampling = Sampling(call.ask.temperature, call.ask.top_p, call.ask.seed, FinishReason.GIVEN)
    return Step.from_text(reply.text, sampling, note(call.note, choice, reply, ""))


def _message(message: Message) -> dict[str, Any]:
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


def _arguments(text: str) -> dict[str, Any]:
    value = json.loads(text or "{}")
    if not isinstance(value, dict):
        raise ValueError("arguments of a tool call are no object")
    return value


async def _server_sent(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async for line in lines:
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data and data != "[DONE]":
            yield data


def _unreachable(call: _Call, error: Exception) -> Refused:
    call.session.note_infra_error(error)
    words = f"the upstream cannot be reached ({type(error).__name__}); is it running?"
    return Refused(Kind.UNAVAILABLE, words, retry_after_s=1.0)


def _nonsense(call: _Call, error: Exception) -> Refused:
    call.session.note_infra_error(error)
    return Refused(
        Kind.UNAVAILABLE, f"the upstream's answer cannot be read ({type(error).__name__}: {error})"
    )


def _refused(call: _Call, status: int, headers: Mapping[str, str], text: str) -> Refused:
    """What the upstream says; its own failures, and our key's, are the system's and not the agent's."""
    kind = _KINDS.get(status, Kind.UNAVAILABLE)
    if kind is Kind.UNAVAILABLE:
        call.session.note_infra_error(RuntimeError(f"upstream status {status}"))
    try:
        words = str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        words = text[:200]
    after = headers.get("retry-after", "")
    return Refused(
        kind,
        f"the upstream refused ({status}): {words}",
        retry_after_s=float(after) if after.isdigit() else None,
    )
