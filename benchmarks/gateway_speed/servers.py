"""The servers of the gateway benchmark, each run as a process: `python servers.py NAME FOLDER`.

gateway    Stepwell's gateway over an engine that answers at once, with a SQLite pool in FOLDER and
           the API key whose hash is in LOAD_KEY_HASH
echo       a bare FastAPI application that reads the same JSON and writes the same completion
upstream   an OpenAI-compatible upstream for LiteLLM, as light as Python allows: raw asyncio

All print `listening on URL`. The first two run under the same uvicorn settings.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conversation import ANSWER, UPSTREAM_MODEL, completion

HOST = "127.0.0.1"


def main() -> None:
    name, folder = sys.argv[1:]
    if name == "upstream":
        import uvloop

        uvloop.run(upstream())
        return
    from stepwell.services.http_server import serve

    serve(gateway(Path(folder)) if name == "gateway" else echo(), HOST, 0, shutdown_timeout_s=5)


def gateway(folder: Path) -> Any:
    from stepwell.config.gateway import GatewayConfig
    from stepwell.pool import open_pool
    from stepwell.rendering import Renderer
    from stepwell.rendering.tiny import build_tokenizer
    from stepwell.services.gateway.app import create_app
    from stepwell.services.gateway.gateway import Gateway

    tokenizer = build_tokenizer()
    engine = instant_engine(tokenizer)
    config = GatewayConfig(port=0, keys={"load": os.environ["LOAD_KEY_HASH"]})
    return create_app(Gateway(engine, Renderer(tokenizer), open_pool(folder / "pool.db"), config), config)


def instant_engine(tokenizer: Any) -> Any:
    """A `Sampler` that takes no time: always the same tokens, a fresh sample each."""
    import numpy as np

    from stepwell.core.protocols import Request, Sampled
    from stepwell.core.step import Sampling, TokenAction
    from stepwell.core.versions import VersionSpan

    ids = [*tokenizer.encode(ANSWER, add_special_tokens=False), tokenizer.eos_token_id]
    action = TokenAction(np.array(ids, dtype=np.int32), ANSWER)
    logprobs = np.linspace(-2.0, -0.1, len(ids), dtype=np.float32)

    class InstantEngine:
        max_length = 4096

        async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
            return [
                Sampled(
                    action,
                    logprobs,
                    Sampling(request.params.temperature, request.params.top_p, request.params.seed),
                    VersionSpan.at(0),
                )
                for request in requests
            ]

    return InstantEngine()


def echo() -> Any:
    from fastapi import FastAPI

    app = FastAPI()
    reply = completion()

    @app.post("/v1/chat/completions")
    async def chat(body: dict[str, Any]) -> dict[str, Any]:
        return reply

    return app


class _Upstream(asyncio.Protocol):
    """Answers every complete request with the same bytes."""

    reply = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.data = bytearray()

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.data[:end]).lower()
            length = 0
            if (at := head.find(b"content-length:")) >= 0:
                length = int(head[at + 15 :].split(b"\r\n", 1)[0])
            if len(self.data) < end + 4 + length:
                return
            del self.data[: end + 4 + length]
            self.transport.write(self.reply)


async def upstream() -> None:
    body = json.dumps(completion(UPSTREAM_MODEL)).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    _Upstream.reply = head.encode() + body
    server = await asyncio.get_running_loop().create_server(_Upstream, HOST, 0, backlog=2048)
    print(f"listening on http://{HOST}:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    main()
