"""The remote engine and servers that fail, refuse or stay silent: a clear error, or another try."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import Any

import pytest
from tests.engines.completions_server import Answer, CompletionsServer
from tests.engines.remote_engines import QUICK, ask, engine_for, read, server, tiny

from stepwell.core.errors import ConfigError, EngineError, InputError
from stepwell.core.versions import VersionSpan
from stepwell.engines.remote import RemoteEngine

__all__ = ["server", "tiny"]  # fixtures


async def test_one_failure_in_a_slot_is_raised_and_the_rest_is_called_off(server: CompletionsServer) -> None:
    may_answer = threading.Event()

    def answers(path: str, body: dict[str, Any]) -> Answer | None:
        if body.get("prompt") == [7]:
            return 500, b'{"error":{"message":"broken"}}'
        if body.get("prompt") == [8]:
            may_answer.wait(60)
        return None

    server.answers = answers
    async with engine_for(server) as engine:
        await engine.check_ready()
        with pytest.raises(EngineError, match="answered 500: broken; look at the server's log"):
            await engine.generate([ask([8]), ask([7])])
        assert not may_answer.is_set()
        may_answer.set()


async def test_a_server_that_is_not_there_is_an_engine_error_that_names_the_address() -> None:
    with socket.socket() as taken:  # bound, never listening: nobody else can answer on it
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        engine = RemoteEngine(url, "tiny", QUICK)
        with pytest.raises(EngineError, match=f"no answer from {url}.*start the server"):
            await engine.generate([ask()])
        with pytest.raises(EngineError, match="no answer from"):
            await read(engine, ask())
        with pytest.raises(EngineError, match="no answer from"):
            await asyncio.to_thread(lambda: engine.max_length)
        assert not await engine.is_ready()


@pytest.mark.parametrize("first", [(503, b"{}"), (429, b"{}"), (0, b"")])
async def test_try_later_and_a_lost_connection_are_tried_again(
    server: CompletionsServer, first: Answer
) -> None:
    left = [first, first]
    server.answers = lambda path, body: left.pop() if body and left else None
    async with engine_for(server) as engine:
        (sample,) = await engine.generate([ask()])
        assert not left and len(sample.logprobs) == 8
        bodies = [body for path, body, _ in server.seen if path == "/v1/completions"]
        assert len(bodies) == 3 and bodies[0] == bodies[1] == bodies[2]  # the same seed: nothing is selected


@pytest.mark.parametrize("status", [500, 503])
async def test_failures_that_last_are_raised(server: CompletionsServer, status: int) -> None:
    server.answers = lambda path, body: (status, b"gone wrong") if body else None
    async with engine_for(server) as engine:
        with pytest.raises(EngineError, match=f"answered {status}: gone wrong"):
            await engine.generate([ask()])
    assert len(server.seen) == (2 if status == 500 else 4)  # a 500 is not tried again


async def test_a_long_silence_is_raised_and_not_tried_again(server: CompletionsServer) -> None:
    may_answer = threading.Event()

    def slow(path: str, body: dict[str, Any]) -> Answer | None:
        if body:
            may_answer.wait(60)
        return None

    server.answers = slow
    async with engine_for(server, QUICK.model_copy(update={"timeout_s": 0.5})) as engine:
        with pytest.raises(EngineError, match=r"did not respond within timeout_s=0\.5"):
            await engine.generate([ask()])
        may_answer.set()
    assert len(server.seen) == 2


@pytest.mark.parametrize(
    ("status", "kind", "match"),
    [
        (400, InputError, "refuses the request: no such thing"),
        (401, EngineError, "set api_key_env"),
        (404, EngineError, "does it serve 'tiny' at /v1/completions"),
    ],
)
async def test_refusals_say_what_to_change(
    server: CompletionsServer, status: int, kind: type[Exception], match: str
) -> None:
    words = json.dumps({"error": {"message": "no such thing"}}).encode()
    server.answers = lambda path, body: (status, words) if body else None
    async with engine_for(server) as engine:
        for call in (engine.generate([ask()]), read(engine, ask())):
            with pytest.raises(kind, match=match):
                await call


async def test_readiness_is_asked_once_and_without_patience(server: CompletionsServer) -> None:
    async with engine_for(server) as engine:
        assert await engine.is_ready()
        server.answers = lambda path, body: (503, b"{}")
        assert not await engine.is_ready()
    assert [path for path, _, _ in server.seen] == ["/v1/models"] * 2


async def test_another_model_name_is_told_what_there_is(server: CompletionsServer) -> None:
    async with RemoteEngine(server.url, "other", QUICK) as engine:
        with pytest.raises(EngineError, match="does not serve 'other'; it serves tiny"):
            await engine.check_ready()


async def test_the_api_key_goes_out_as_a_bearer_token(
    server: CompletionsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = QUICK.model_copy(update={"api_key_env": "TEST_REMOTE_KEY"})
    with pytest.raises(ConfigError, match="TEST_REMOTE_KEY, which is not set"):
        engine_for(server, config)
    monkeypatch.setenv("TEST_REMOTE_KEY", "abc")
    async with engine_for(server, config) as engine:
        await engine.generate([ask()])
    assert {key for _, _, key in server.seen} == {"Bearer abc"}


async def test_versions_come_from_the_configuration_or_from_an_endpoint(server: CompletionsServer) -> None:
    async with engine_for(server, QUICK.model_copy(update={"version": 4})) as engine:
        assert (await engine.generate([ask()]))[0].policy_version == VersionSpan(4, 4)

    def changing(path: str, body: dict[str, Any]) -> Answer | None:
        server.version = "3" if path == "/v1/completions" else server.version
        return None

    server.version, server.answers = "2", changing
    async with engine_for(server, QUICK.model_copy(update={"version_path": "/weight_info"})) as engine:
        assert (await engine.generate([ask()]))[0].policy_version == VersionSpan(2, 3)
        assert (await read(engine, ask()))[1].policy_version == VersionSpan(3, 3)
        assert engine.version == 3
        server.version, server.answers = "default", lambda path, body: None
        with pytest.raises(EngineError, match="returned the version 'default'"):
            await engine.generate([ask()])
