"""Random conversations through real clients, each of which sends history back in its own way."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

CONCURRENT = 16
SAID = ("Where? ", "go on ", "P _ O G\n", "A door.", "ünïcödé 🙂 ", "1 2 3 ", "\n\n", "<tool_call>", " ")
TOOLS = {
    "look": {"type": "object", "properties": {"at": {"type": "string"}}},
    "go": {"type": "object", "properties": {"steps": {"type": "integer"}}},
}


@dataclass
class Reply:
    """One sampled answer as a client saw it."""

    call: str
    choice: int = 0
    text: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)  # of the calls
    logprobs: list[float] | None = None
    stop: str | None = None  # what the client asked to stop at


class Talk:
    """One random conversation: what is said, how it is asked, and how history is sent back."""

    def __init__(self, rng: random.Random, number: int) -> None:
        self.rng = rng
        self.session = f"talk-{number}"
        self.api = ("chat", "messages", "chat", "messages", "responses")[number % 5]
        self.num_turns = rng.randint(2, 5)
        self.with_tools = rng.random() < 0.6
        self.system = self.words() if rng.random() < 0.5 else ""
        self.habit = rng.choice(("as_is", "as_is", "rebuilt", "trimmed", "renamed"))
        self.replies: list[Reply] = []
        self.num_streamed = 0

    def words(self) -> str:
        return "".join(self.rng.choices(SAID, k=self.rng.randrange(1, 6))).strip() or "go"

    def options(self) -> dict[str, Any]:
        """How one call is sampled, in the words that all APIs share."""
        options: dict[str, Any] = {"temperature": self.rng.choice((0.0, 0.5, 0.7, 1.0, 1.2))}
        if self.rng.random() < 0.3:
            options["top_p"] = 0.9
        return options

    def max_tokens(self) -> int:
        return self.rng.choice((4, 48, 48, 48))

    def stop(self) -> str | None:
        return "oor" if self.rng.random() < 0.2 else None

    def streams(self) -> bool:
        streams = self.rng.random() < 0.5
        self.num_streamed += streams
        return streams

    def sent_back(self, reply: Reply) -> tuple[str, list[tuple[str, str, Any]]]:
        """A reply as this client writes it into its history: words, and (id, name, arguments) of calls."""
        text = reply.text.strip() if self.habit == "trimmed" else reply.text
        if self.rng.random() < 0.04:
            text += " (edited)"
        ids = reply.ids
        if self.habit == "renamed":
            ids = [f"mine{len(self.replies)}x{place}" for place in range(len(ids))]
        calls = [(id_, name, arguments) for id_, (name, arguments) in zip(ids, reply.calls, strict=True)]
        return text, calls


async def hold(url: str, talks: Sequence[Talk]) -> None:
    """All conversations, some at a time."""
    gate = asyncio.Semaphore(CONCURRENT)

    async def one(talk: Talk) -> None:
        async with gate:
            await APIS[talk.api](f"{url}/s/{talk.session}", talk)

    import anthropic  # slow to import, and built here for one event loop
    import openai

    CLIENTS["openai"] = openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0)
    CLIENTS["anthropic"] = anthropic.AsyncAnthropic(api_key="none", base_url=url, max_retries=0)
    async with CLIENTS["openai"], CLIENTS["anthropic"]:
        await asyncio.gather(*map(one, talks))


CLIENTS: dict[str, Any] = {}


async def hold_chat(url: str, talk: Talk) -> None:
    client = CLIENTS["openai"].with_options(base_url=f"{url}/v1")
    messages: list[Any] = [{"role": "system", "content": talk.system}] if talk.system else []
    messages.append({"role": "user", "content": talk.words()})
    tools = [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in TOOLS.items()]
    for _ in range(talk.num_turns):
        options = talk.options() | {
            "max_completion_tokens": talk.max_tokens(),
            "n": talk.rng.choice((1, 1, 2)),
        }
        options |= {"tools": tools} if talk.with_tools else {}
        options |= {"logprobs": True} if talk.rng.random() < 0.3 else {}
        stop = talk.stop()
        options |= {"stop": [stop]} if stop else {}
        options |= {"seed": talk.rng.randrange(100)} if talk.rng.random() < 0.3 else {}
        call: Any = {"model": "policy", "messages": messages, **options}
        if talk.streams():
            stream = await client.chat.completions.create(**call, stream=True)
            replies = chat_replies([chunk async for chunk in stream], lambda choice: choice.delta)
        else:
            replies = chat_replies(
                [await client.chat.completions.create(**call)], lambda choice: choice.message
            )
        talk.replies += [replace(reply, stop=stop) for reply in replies]
        messages += chat_history(talk, talk.rng.choice(replies))


def chat_replies(pieces: Sequence[Any], part_of: Callable[[Any], Any]) -> list[Reply]:
    """The choices of a completion, put together from all its chunks, or from the one that is everything."""
    replies: dict[int, Reply] = {}
    for piece in pieces:
        for choice in piece.choices:
            reply = replies.setdefault(choice.index, Reply(piece.id, choice.index))
            part = part_of(choice)
            reply.text += part.content or ""
            for call in part.tool_calls or ():
                reply.calls.append((call.function.name, json.loads(call.function.arguments)))
                reply.ids.append(call.id)
            if choice.logprobs:
                reply.logprobs = [*(reply.logprobs or ()), *(e.logprob for e in choice.logprobs.content)]
    return [replies[index] for index in sorted(replies)]


def chat_history(talk: Talk, reply: Reply) -> list[Any]:
    text, calls = talk.sent_back(reply)
    mine: Any = {"role": "assistant", "content": text}
    if calls:
        mine["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a, indent=1)}}
            for i, n, a in calls
        ]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": talk.words()}
        for call in mine.get("tool_calls", ())
    ]
    return [mine, *(results or [{"role": "user", "content": talk.words()}])]


async def hold_messages(url: str, talk: Talk) -> None:
    client = CLIENTS["anthropic"].with_options(base_url=url)
    messages: list[Any] = [{"role": "user", "content": talk.words()}]
    tools = [{"name": name, "input_schema": schema} for name, schema in TOOLS.items()]
    for _ in range(talk.num_turns):
        call: dict[str, Any] = {"model": "policy", "messages": messages, "max_tokens": talk.max_tokens()}
        call |= {"tools": tools} if talk.with_tools else {}
        call |= {"system": talk.system} if talk.system else {}
        stop = talk.stop()
        call |= {"stop_sequences": [stop]} if stop else {}
        call["extra_body"] = talk.options()
        if talk.streams():
            async with client.messages.stream(**call) as stream:
                got = await stream.get_final_message()
        else:
            got = await client.messages.create(**call)
        text = "".join(block.text for block in got.content if block.type == "text")
        uses = [block for block in got.content if block.type == "tool_use"]
        reply = Reply(got.id, 0, text, [(use.name, use.input) for use in uses], [use.id for use in uses])
        talk.replies.append(replace(reply, stop=stop))
        text, calls = talk.sent_back(reply)
        mine: list[Any] = [{"type": "text", "text": text}] if text else []
        mine += [{"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in calls]
        content = got.content if talk.habit == "as_is" and text == reply.text else mine
        messages.append({"role": "assistant", "content": content})
        results = [{"type": "tool_result", "tool_use_id": i, "content": talk.words()} for i, _, _ in calls]
        messages.append({"role": "user", "content": results or talk.words()})


async def hold_responses(url: str, talk: Talk) -> None:
    client = CLIENTS["openai"].with_options(base_url=f"{url}/v1")
    tools = [{"type": "function", "name": n, "parameters": p, "strict": None} for n, p in TOOLS.items()]
    new: list[Any] = [{"role": "user", "content": talk.words()}]
    items: list[Any] = []
    previous: str | None = None
    for _ in range(talk.num_turns):
        call: dict[str, Any] = {"model": "policy", **talk.options(), "max_output_tokens": talk.max_tokens()}
        call |= {"tools": tools} if talk.with_tools else {}
        call |= {"instructions": talk.system} if talk.system else {}
        if talk.habit == "as_is" and previous:
            call |= {"input": new, "previous_response_id": previous}
        else:
            call |= {"input": [*items, *new]}
        if talk.streams():
            async with client.responses.stream(**call) as stream:
                async for event in stream:
                    if event.type in ("response.completed", "response.incomplete"):
                        got: Any = event.response
        else:
            got = await client.responses.create(**call)
        uses = [item for item in got.output if item.type == "function_call"]
        calls = [(use.name, json.loads(use.arguments)) for use in uses]
        talk.replies.append(Reply(got.id, 0, got.output_text, calls))
        items += [*new, *got.output]
        results = [
            {"type": "function_call_output", "call_id": use.call_id, "output": talk.words()} for use in uses
        ]
        new, previous = results or [{"role": "user", "content": talk.words()}], got.id


APIS = {"chat": hold_chat, "messages": hold_messages, "responses": hold_responses}
