"""What is SGLang's own: limits, names and identities of requests are those of its source, version 0.5.23."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.model_server import ModelServer
from tests.engines.served_engines import open_engine, serve_models
from tests.engines.served_models import read_tiny

from stepwell.core.errors import ContextLengthError, EngineError
from stepwell.core.protocols import Request, SamplingParams
from stepwell.core.step import FinishReason, TokenState
from stepwell.engines.served.engine import ServedEngine


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serve_models("sglang") as (running,):
        yield running


def ask(length: int = 30, **params: Any) -> Request:
    chosen = SamplingParams(**{"max_tokens": 6, "seed": 1, "ignore_end": True, **params})
    return Request(TokenState(np.random.default_rng(0).integers(3, 900, size=length).tolist()), chosen)


def open_published(server: ModelServer, folder: Path, /, **settings: Any) -> ServedEngine:
    """An engine that has published version 0."""
    engine = open_engine("sglang", [server.url], folder, **settings)
    engine.load_weights(0, read_tiny()[0].state_dict())
    return engine


@pytest.mark.parametrize(("num_kept", "limit"), [(None, 250), (100, 94)])
def test_an_action_fills_the_context_that_the_server_has_room_for(
    server: ModelServer, tmp_path: Path, num_kept: int | None, limit: int
) -> None:
    server.num_kept = num_kept
    with open_published(server, tmp_path) as engine:
        assert engine.max_length == limit
        requests = [ask(limit - 10, max_tokens=100), ask(limit - 1, max_tokens=100)]
        samples = asyncio.run(engine.generate(requests))
        assert [len(sample.logprobs) for sample in samples] == [10, 1]
        assert {sample.sampling.finish_reason for sample in samples} == {FinishReason.LENGTH}
        with pytest.raises(ContextLengthError, match="leaves no room"):
            asyncio.run(engine.generate([ask(limit)]))


def test_a_server_whose_name_became_the_folder_of_its_weights_is_still_the_one_of_the_run(
    server: ModelServer, tmp_path: Path
) -> None:
    settings = {"server": {"model": "tiny"}}
    with open_published(server, tmp_path, **settings) as engine:
        assert server.name != "tiny"
        server.answers = lambda path, body: (0, b"") if path == "/generate" else None
        with pytest.raises(EngineError, match="no server is left"):
            asyncio.run(engine.generate([ask()]))
        server.answers = lambda path, body: None
        engine.load_weights(1, read_tiny()[0].state_dict())
        assert len(asyncio.run(engine.generate([ask()]))) == 1
    with open_published(server, tmp_path / "next run", **settings) as engine:
        assert len(asyncio.run(engine.generate([ask()]))) == 1


def test_a_request_whose_connection_broke_is_repeated_though_the_server_has_not_noticed(
    server: ModelServer, tmp_path: Path
) -> None:
    def break_once(path: str, body: Any) -> Any:
        server.answers = lambda path, body: None
        server.under_way.add(body.get("rid"))
        return 0, b""

    with open_published(server, tmp_path) as engine:
        server.answers = break_once
        assert len(asyncio.run(engine.generate([ask()]))) == 1


def test_a_request_that_the_server_aborted_is_told_with_its_reason(
    server: ModelServer, tmp_path: Path
) -> None:
    ended = {"type": "abort", "message": "Abort in waiting queue"}
    aborted = {"text": "", "output_ids": [], "meta_info": {"id": "a", "finish_reason": ended}}
    with open_published(server, tmp_path) as engine:
        server.answers = lambda path, body: (
            (200, json.dumps(aborted).encode()) if path == "/generate" else None
        )
        with pytest.raises(EngineError, match="aborted the request: Abort in waiting queue"):
            asyncio.run(engine.generate([ask()]))


async def test_the_cache_is_dropped_while_requests_are_under_way(server: ModelServer, tmp_path: Path) -> None:
    engine = await asyncio.to_thread(open_published, server, tmp_path)
    with engine:
        under_way = asyncio.create_task(engine.generate([ask(max_tokens=100)]))
        while not server.under_way:
            await asyncio.sleep(0.005)
        before = server.epoch
        await asyncio.to_thread(engine.forget)
        assert server.epoch == before + 1
        (sample,) = await under_way
        assert len(sample.logprobs) == 100
