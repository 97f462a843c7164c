"""A plain upstream: another real gateway stands in for any OpenAI-compatible API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.services.gateways import Served, assistant_message, chat, serve_gateway, user

from stepwell.config.gateway import GatewayConfig
from stepwell.core import TextState
from stepwell.pool import open_pool
from stepwell.services.gateway.app import create_app
from stepwell.services.gateway.upstream import UpstreamGateway
from stepwell.services.http_server import serve_in_thread


@contextmanager
def serve_upstream(folder: Path, upstream: str) -> Iterator[Served]:
    with open_pool(folder / "passed.db") as pool:
        gateway: Any = UpstreamGateway(upstream, pool, GatewayConfig())
        url, stop = serve_in_thread(create_app(gateway))
        try:
            yield Served(url, pool, gateway, stop)
        finally:
            stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    folder = tmp_path_factory.mktemp("pools")
    with serve_gateway(folder) as far, serve_upstream(folder, f"{far.url}/s/far/v1") as near:
        yield far, near


def test_replies_are_the_upstreams_and_stored_as_messages(pair: tuple[Served, Served]) -> None:
    far, near = pair
    client, messages = near.openai("talk"), [user("hello")]
    direct = chat(far.openai("direct"), messages)
    for _ in range(2):
        reply = chat(client, messages)
        messages = [*messages, assistant_message(reply), user("more")]
    assert messages[1]["content"] == direct.choices[0].message.content
    assert reply.usage.completion_tokens == 8 and reply.usage.prompt_tokens > direct.usage.prompt_tokens
    stored = near.stored("talk")
    assert "untrainable" in stored.tags
    first, second = stored.trajectory.steps
    assert isinstance(first.state, TextState) and first.num_units == 0 == first.behavior_logprobs.size
    assert first.info["messages"] == [{"role": "user", "text": "hello"}]
    assert first.info["reply"] == {"role": "assistant", "text": messages[1]["content"]}
    assert second.info["parent"] == 0 and second.info["messages"] == [{"role": "user", "text": "more"}]


def test_a_stream_is_passed_on(pair: tuple[Served, Served]) -> None:
    far, near = pair
    whole = chat(far.openai("whole"), [user("say")], max_tokens=20, n=2)
    texts = ["", ""]
    for chunk in chat(near.openai("pieces"), [user("say")], max_tokens=20, n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert len(near.steps("pieces")) == 2


def test_an_upstream_refusal_is_passed_on(pair: tuple[Served, Served]) -> None:
    _, near = pair
    for options in ({}, {"stream": True}):
        with pytest.raises(openai.BadRequestError, match="context length is 4096"):
            list(chat(near.openai("long"), [user("word " * 5000)], **options))
    assert near.steps("long") == {}


def test_a_missing_upstream_is_503_and_an_infra_error(tmp_path: Path) -> None:
    with serve_upstream(tmp_path, "http://127.0.0.1:9") as near:
        with pytest.raises(openai.InternalServerError) as refused:
            chat(near.openai("nobody"), [user("hello")])
        assert refused.value.status_code == 503
        assert near.post("/sessions/nobody/complete").json()["status"] == "infra_error"
        assert near.get("/ready").status_code == 503
