"""A chat API on a real socket that says and refuses what it is told to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

Body = dict[str, Any]


@dataclass
class ChatServer:
    """What the server is to do, and what it was asked."""

    url: str = ""
    say: Callable[[Body], Body] = lambda body: {"content": "<answer>Up</answer>"}
    """The message that answers a request."""
    failures: list[Response] = field(default_factory=list)
    """The next answers; what `refuse` and `say` make of a request comes afterwards."""
    refuse: Callable[[Body], Response | None] = lambda body: None
    delay_s: float = 0.0
    min_open: int = 1
    """No answer before so many requests have been open at once."""
    bodies: list[Body] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    open: set[Request] = field(default_factory=set)
    most_open: int = 0

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization"))
        self.times.append(time.monotonic())
        under_way = self.open  # those of this test, however long they take
        under_way.add(request)
        self.most_open = max(self.most_open, len(under_way))
        try:
            async with asyncio.timeout(60):
                while self.most_open < self.min_open:
                    await asyncio.sleep(0.002)
            await asyncio.sleep(self.delay_s)
        finally:
            under_way.discard(request)
        if self.failures:
            return self.failures.pop(0)
        refusal = self.refuse(body)
        if refusal is not None:
            return refusal
        choice = {"index": 0, "message": {"role": "assistant", **self.say(body)}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 100, "completion_tokens": 7}
        return JSONResponse({"choices": [choice], "usage": usage})


def refusal(status: int, words: str, code: str = "", **headers: str) -> JSONResponse:
    """An error as OpenAI writes it."""
    return JSONResponse({"error": {"message": words, "code": code}}, status, headers=headers)


@contextmanager
def chatting() -> Iterator[ChatServer]:
    """The server on a free port of this machine, until the block ends."""
    server, app = ChatServer(), FastAPI()
    app.post("/v1/chat/completions")(server.answer)
    config = uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=1)
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=runner.run)
    thread.start()
    while not runner.started:
        time.sleep(0.005)
    port = runner.servers[0].sockets[0].getsockname()[1]
    server.url = f"http://127.0.0.1:{port}/v1"
    try:
        yield server
    finally:
        runner.should_exit = True
        thread.join()
