"""A real gateway over real HTTP: embedded engine, tiny model, SQLite pool, and clients for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai

from stepwell.config.engine import EngineConfig
from stepwell.config.gateway import GatewayConfig
from stepwell.core import Step
from stepwell.engines import EmbeddedEngine
from stepwell.pool import Pool, StoredTrajectory, open_pool
from stepwell.rendering import Renderer
from stepwell.services.gateway.app import create_app
from stepwell.services.gateway.gateway import Gateway
from stepwell.services.http_server import serve_in_thread


@cache
def engine() -> EmbeddedEngine:
    return EmbeddedEngine.from_pretrained("tiny-0.3m", EngineConfig(max_batch_size=16, num_slots=64))


def renderer(sampler: Any = None, history: Any = "exact") -> Renderer:
    sampler = sampler or engine()
    return Renderer(sampler.tokenizer, history, context_length=sampler.max_length)


@dataclass
class Served:
    """A gateway at `url`, with the pool it writes to."""

    url: str
    pool: Pool
    gateway: Gateway
    stop: Callable[[], None]

    def openai(self, session: str, **options: Any) -> openai.OpenAI:
        options = {"api_key": "none", "max_retries": 0, **options}
        return openai.OpenAI(base_url=f"{self.url}/s/{session}/v1", **options)

    def anthropic(self, session: str, **options: Any) -> anthropic.Anthropic:
        options = {"api_key": "none", "max_retries": 0, **options}
        return anthropic.Anthropic(base_url=f"{self.url}/s/{session}", **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, **options)

    def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=json, **options)

    def stored(self, session: str) -> StoredTrajectory:
        return self.pool.get(session, with_branches=True)

    def steps(self, session: str) -> dict[int, Step]:
        stored = self.stored(session)
        return dict(zip(stored.numbers, stored.trajectory.steps, strict=True))


@contextmanager
def serve_gateway(
    folder: Path, sampler: Any = None, *, history: Any = "exact", **settings: Any
) -> Iterator[Served]:
    """A gateway on a pool in `folder`. A second one there continues where the first stopped."""
    config = GatewayConfig(**settings)
    sampler = sampler or engine()
    with open_pool(folder / "pool.db") as pool:
        gateway = Gateway(sampler, renderer(sampler, history), pool, config)
        url, stop = serve_in_thread(create_app(gateway))
        try:
            yield Served(url, pool, gateway, stop)
        finally:
            stop()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def chat(client: openai.OpenAI, messages: list[Any], **options: Any) -> Any:
    return client.chat.completions.create(
        model="stepwell", messages=messages, **{"max_tokens": 8, "seed": 1, **options}
    )


def assistant_message(reply: Any, choice: int = 0) -> dict[str, Any]:
    """An assistant message as a client sends it back."""
    return reply.choices[choice].message.model_dump(exclude_none=True)  # type: ignore[no-any-return]
