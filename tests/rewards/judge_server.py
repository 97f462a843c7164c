"""A chat API that says YES or NO by rule, on a real socket, and fails as it is told to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse


@dataclass
class Server:
    """What the server is to do, and what it was asked."""

    url: str = ""
    failures: list[int] = field(default_factory=list)
    """Status codes of the next answers; 200 with `text` afterwards."""
    text: str | None = None
    delay_s: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0

    async def answer(self, request: Request) -> JSONResponse:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization"))
        self.times.append(time.monotonic())
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        await asyncio.sleep(self.delay_s)
        self.num_open -= 1
        if self.failures:
            status = self.failures.pop(0)
            return JSONResponse({"error": "as told"}, status, headers={"retry-after": "0.01"})
        said = self.text or self._by_rule(body["messages"][-1]["content"])
        usage = {"prompt_tokens": 100, "completion_tokens": 5}
        return JSONResponse({"choices": [{"message": {"content": said}}], "usage": usage})

    @staticmethod
    def _by_rule(question: str) -> str:
        """YES where every sentence of the agent's text is one of the true ones."""
        truth, text = question.removesuffix("\n-----").split("\n-----\n")
        told = [sentence.strip(" .\n") for sentence in text.split(". ")]
        is_true = all(sentence in truth for sentence in told)
        return f"I compared them.<answer>{'YES' if is_true else 'NO'}</answer>"


@contextmanager
def serving() -> Iterator[Server]:
    """The server on a free port of this machine, until the block ends."""
    server = Server()
    app = FastAPI()
    app.post("/v1/chat/completions")(server.answer)
    runner = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
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
