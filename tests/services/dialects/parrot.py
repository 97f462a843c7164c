"""A gateway whose policy says what it is told, for tests of what dialects write and read."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI, Request

from stepwell.core import ContextLengthError
from stepwell.rendering import Message, parse_reply
from stepwell.services.gateway.dialects import routers
from stepwell.services.gateway.exchange import (
    Answer,
    Ask,
    Caller,
    Choice,
    Delta,
    Finish,
    Kind,
    Refused,
    Token,
)


@dataclass
class Parrot:
    """Answers with the words of the last message, four letters to the token.

    "<tool_call>…</tool_call>" in them is a call; "be gone" fails, "break off" after the first token;
    "wait" waits for a client to hang up.
    """

    models: tuple[str, ...] = ("parrot",)
    kept: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    num_cancelled: int = 0

    async def answer(self, caller: Caller, ask: Ask) -> Answer:
        [*_, answer] = [item async for item in self.stream(caller, ask)]
        assert isinstance(answer, Answer)
        return answer

    async def stream(self, caller: Caller, ask: Ask) -> AsyncIterator[Delta | Answer]:
        words = ask.messages[-1].text if ask.messages else str(ask.prompt)
        if words == "be gone":
            raise Refused(Kind.UNAVAILABLE, "the parrot is gone")
        if len(words) > 20_000:
            raise Refused(Kind.INVALID, "5000 tokens in 4096") from ContextLengthError("5000 tokens in 4096")
        if words == "wait":
            await self._wait()
        choices = [self._choice(index, words, ask) for index in range(ask.num_choices)]
        for choice in choices:
            for token in choice.tokens:
                yield Delta(choice.index, token.text, tokens=(token,) if ask.num_top_logprobs == 0 else ())
                if words == "break off":
                    raise Refused(Kind.UNAVAILABLE, "the parrot is gone")
            for call in choice.tool_calls:
                yield Delta(choice.index, tool_call=call)
        num_tokens = sum(len(choice.tokens) for choice in choices)
        num_prompt = sum(len(message.text.split()) for message in ask.messages or ()) or len(ask.prompt or "")
        yield Answer(
            ask.id, int(time.time()), ask.model, tuple(choices), num_prompt, 1, num_tokens, caller.session
        )

    def remember(self, caller: Caller, answer_id: str, messages: tuple[Message, ...]) -> None:
        self.kept[answer_id] = messages

    def recall(self, caller: Caller, answer_id: str) -> tuple[Message, ...]:
        if answer_id not in self.kept:
            raise Refused(Kind.NOT_FOUND, f"no response {answer_id}", param="previous_response_id")
        return self.kept[answer_id]

    async def _wait(self) -> None:
        import asyncio

        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise

    def _choice(self, index: int, words: str, ask: Ask) -> Choice:
        parsed = parse_reply(words, "hermes") if ask.tools else None
        text, calls = (parsed.content, parsed.tool_calls) if parsed else (words, ())
        found = min((stop for stop in ask.stop if stop in text), key=text.index, default=None)
        text = text[: text.index(found)] if found else text
        pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
        finish = Finish.STOP_STRING if found else Finish.TOOL_CALLS if calls else Finish.END
        if ask.max_tokens is not None and len(pieces) > ask.max_tokens:
            pieces, finish = pieces[: ask.max_tokens], Finish.LENGTH
        tokens = tuple(Token(i, piece, piece.encode(), -0.5 * (i + 1)) for i, piece in enumerate(pieces))
        return Choice(index, "".join(pieces), finish, calls, found, tokens)


@dataclass
class Served:
    """A parrot that is served over real HTTP."""

    url: str
    parrot: Parrot

    @property
    def num_cancelled(self) -> int:
        return self.parrot.num_cancelled

    def reset(self) -> None:
        self.parrot.num_cancelled = 0


@contextmanager
def serve_parrot() -> Iterator[Served]:
    parrot = Parrot()
    app = FastAPI()
    who: Callable[[Request], Caller] = lambda request: Caller("s", "")  # noqa: E731
    for router in routers(parrot, who):
        app.include_router(router)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Served(f"http://127.0.0.1:{port}", parrot)
    finally:
        server.should_exit = True
        thread.join()
