"""Servers as the engine of a run: faults are found before samples are used, and lost servers are replaced."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tests.engines.completions_server import serving
from tests.engines.model_server import ModelServer
from tests.engines.served_engines import changed_weights, open_engine, serve_models
from tests.engines.served_models import read_tiny

from stepwell.config.engine import EngineConfig
from stepwell.core.errors import ConfigError, EngineError, InputError, ServerLostError, WeightsError
from stepwell.core.protocols import Request, Sampled, SamplingParams
from stepwell.core.step import TokenState
from stepwell.engines.parity import check_parity
from stepwell.engines.served.engine import ServedEngine
from stepwell.policies.causal_lm import CausalLMPolicy

PROMPT = np.random.default_rng(0).integers(3, 900, size=30).tolist()


@pytest.fixture(params=["vllm", "sglang"])
def server(request: Any) -> Iterator[ModelServer]:
    with serve_models(request.param) as (running,):
        yield running


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[list[ModelServer], ServedEngine]]:
    """Two servers, and an engine that has published version 0."""
    with serve_models("vllm", 2) as servers, open_for(servers, tmp_path) as engine:
        engine.load_weights(0, read_tiny()[0].state_dict())
        yield servers, engine


def open_for(servers: list[ModelServer], folder: Path, **settings: Any) -> ServedEngine:
    return open_engine(servers[0].kind, [server.url for server in servers], folder, **settings)


def ask(conversation: str | None = None, **params: Any) -> Request:
    chosen = SamplingParams(**{"max_tokens": 6, "seed": 1, **params})
    return Request(TokenState(PROMPT), chosen, conversation)


def count_samples(server: ModelServer) -> int:
    """How often it was asked to sample."""
    asked = [body for path, body, _ in server.seen if path in ("/v1/completions", "/generate")]
    return sum("prompt_logprobs" not in body for body in asked)


@pytest.mark.parametrize("fault", ["torn", "ignores_updates", "keeps_cache"])
def test_a_server_with_stale_or_torn_weights_or_an_old_cache_is_found(
    server: ModelServer, fault: str, tmp_path: Path
) -> None:
    model = read_tiny()[0]
    with open_for([server], tmp_path) as engine:
        engine.load_weights(0, model.state_dict())
        asyncio.run(engine.generate([ask()]))
        server.faults = {fault}
        with pytest.raises(WeightsError, match=r"Its samples were not used"):
            engine.load_weights(1, changed_weights(model, 0.05))
        with pytest.raises(WeightsError, match=r"Its samples were not used"):
            asyncio.run(engine.generate([ask()]))
        server.faults = set()
        server.drop_cache()
        engine.load_weights(2, changed_weights(model, 0.05))
        assert len(asyncio.run(engine.generate([ask()]))) == 1


@pytest.mark.parametrize("fault", ["torn", "ignores_updates"])
def test_stale_weights_are_found_after_an_update_too_small_for_the_parity_check(
    fault: str, tmp_path: Path
) -> None:
    model = read_tiny()[0]
    with serve_models("vllm") as (server,), open_for([server], tmp_path) as engine:
        engine.load_weights(0, model.state_dict())
        engine.load_weights(1, changed_weights(model, 1e-5, seed=1))
        server.faults = {fault}
        with pytest.raises(WeightsError, match="stale or torn weights"):
            engine.load_weights(2, changed_weights(model, 1e-5, seed=2))


async def test_samples_that_end_in_an_update_that_fails_do_not_leave(tmp_path: Path) -> None:
    model = read_tiny()[0]
    with serve_models("sglang") as (server,), open_for([server], tmp_path) as engine:
        await asyncio.to_thread(engine.load_weights, 0, model.state_dict())
        under_way = asyncio.create_task(engine.generate([ask(max_tokens=60, ignore_end=True)]))
        await asyncio.sleep(0.05)
        server.faults = {"ignores_updates"}
        with pytest.raises(WeightsError):
            await asyncio.to_thread(engine.load_weights, 1, changed_weights(model, 0.05))
        with pytest.raises(WeightsError, match="Its samples were not used"):
            await under_way


def test_conversations_stay_on_their_server_and_new_ones_are_spread(
    pair: tuple[list[ModelServer], ServedEngine],
) -> None:
    servers, engine = pair
    before = [count_samples(server) for server in servers]
    for _ in range(3):
        asyncio.run(engine.generate([ask(name) for name in "abcdef"]))
    assert [count_samples(server) - n for server, n in zip(servers, before, strict=True)] == [9, 9]
    counts = [count_samples(server) for server in servers]
    for _ in range(3):
        asyncio.run(engine.generate([ask("a")]))
    assert sorted(count_samples(s) - n for s, n in zip(servers, counts, strict=True)) == [0, 3]


def test_work_of_a_lost_server_moves_to_the_others_with_the_same_seeds(tmp_path: Path) -> None:
    model = read_tiny()[0]
    policy = CausalLMPolicy(copy.deepcopy(model))
    with serve_models("vllm") as (stays,), ExitStack() as stack:
        goes = stack.enter_context(serving(ModelServer(copy.deepcopy(model), stays.tokenizer, "processed")))
        with open_for([goes, stays], tmp_path) as engine:
            engine.load_weights(0, model.state_dict())
            requests = [ask(str(i), seed=i, max_tokens=8) for i in range(4)]
            first = asyncio.run(engine.generate(requests))
            goes.answers = lambda path, body: (0, b"")  # hangs up on everything, as a server that dies
            again = asyncio.run(engine.generate(requests))
            assert [s.action for s in again] == [s.action for s in first]
            steps = [s.step(r.state) for s, r in zip(again, requests, strict=True)]
            assert check_parity(policy, steps).max_abs <= 1e-4
            stack.close()  # now it is gone for good
            engine.load_weights(1, changed_weights(model, 0.05))
            assert len(asyncio.run(engine.generate(requests))) == 4
            stays.answers = lambda path, body: (0, b"")
            with pytest.raises(EngineError, match="no server is left") as caught:
                asyncio.run(engine.generate(requests))
            assert goes.url in str(caught.value) and stays.url in str(caught.value)
            with pytest.raises(EngineError, match="no server is left"):
                engine.load_weights(2, model.state_dict())


def test_a_restarted_server_gets_the_weights_before_its_first_sample(
    server: ModelServer, tmp_path: Path
) -> None:
    model = read_tiny()[0]
    policy = CausalLMPolicy(copy.deepcopy(model))
    policy.model.load_state_dict(changed_weights(model, 0.05))
    with open_for([server], tmp_path) as engine:
        engine.load_weights(0, policy.model.state_dict())
        server.model.load_state_dict(model.state_dict())
        server.label, server.prefixes = "default", []
        (sample,) = asyncio.run(engine.generate([ask()]))
        assert check_parity(policy, [sample.step(TokenState(PROMPT))]).max_abs <= 1e-4
        server.label = "stepwell-another-3"
        with pytest.raises(WeightsError, match="another run gave it weights"):
            asyncio.run(engine.generate([ask()]))


async def test_a_cancelled_request_ends_at_the_server(server: ModelServer, tmp_path: Path) -> None:
    with open_for([server], tmp_path) as engine:
        await asyncio.to_thread(engine.load_weights, 0, read_tiny()[0].state_dict())
        task = asyncio.create_task(engine.generate([ask(max_tokens=200, ignore_end=True)]))
        await asyncio.sleep(0.05)
        task.cancel()
        for _ in range(200):
            if server.num_gone:
                break
            await asyncio.sleep(0.02)
        assert server.num_gone == 1


async def test_closing_fails_what_is_under_way_and_removes_the_weights(tmp_path: Path) -> None:
    with serve_models("vllm") as (server,):
        engine = open_for([server], tmp_path)
        await asyncio.to_thread(engine.load_weights, 0, read_tiny()[0].state_dict())
        await asyncio.to_thread(engine.load_weights, 1, read_tiny()[0].state_dict())
        await asyncio.to_thread(engine.load_weights, 2, read_tiny()[0].state_dict())
        assert len(list((tmp_path / "weights").iterdir())) == 2
        task = asyncio.create_task(engine.generate([ask(max_tokens=200, ignore_end=True)]))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(engine.close)
        with pytest.raises(EngineError, match="was closed"):
            await task
        assert not (tmp_path / "weights").exists()


@pytest.mark.parametrize(
    ("changes", "settings", "words"),
    [
        ({"dev_mode": False}, {}, "VLLM_SERVER_DEV_MODE=1"),
        ({}, {"server": {"model": "other"}}, "it serves tiny. Set engine.server.model"),
        ({}, {"context_length": 4096}, "set engine.max_length=256"),
    ],
)
def test_mistakes_of_the_setup_are_told_at_the_start(
    changes: Any, settings: Any, words: str, tmp_path: Path
) -> None:
    with serve_models("vllm", **changes) as servers, pytest.raises(ConfigError, match=words):
        open_for(servers, tmp_path, **settings)


def test_a_server_that_is_not_there_or_has_another_folder_or_mode_is_told(tmp_path: Path) -> None:
    with pytest.raises(ServerLostError, match="start the server or correct"):
        open_engine("vllm", ["http://127.0.0.1:9"], tmp_path)
    model = read_tiny()[0]
    with serve_models("vllm") as (server,):
        server.mode = "raw"
        with open_for([server], tmp_path, params=[SamplingParams(temperature=0.7)]) as engine:
            with pytest.raises(EngineError, match="no weights were published"):
                asyncio.run(engine.generate([ask()]))
            with pytest.raises(InputError, match="--logprobs-mode processed_logprobs"):
                engine.load_weights(0, model.state_dict())
        with open_for([server], tmp_path) as engine:
            server.answers = lambda path, body: (500, b"no such folder") if "collective" in path else None
            with pytest.raises(WeightsError, match="Does it see this folder"):
                engine.load_weights(0, model.state_dict())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"backend": "vllm"}, "needs urls"),
        ({"urls": ["http://a"]}, "set backend"),
        ({"backend": "vllm", "urls": ["a:8000"]}, "must start with http"),
        ({"backend": "sglang", "urls": ["http://a", "http://a/"]}, "names a server twice"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        EngineConfig.model_validate(settings)


def test_the_servers_weights_are_the_trainers_to_the_last_bit(tmp_path: Path) -> None:
    model = read_tiny()[0]
    weights = changed_weights(model, 0.05)
    with serve_models("vllm", 2) as servers, open_for(servers, tmp_path) as engine:
        engine.load_weights(0, weights)
        for server in servers:
            assert all(torch.equal(value, weights[name]) for name, value in server.model.state_dict().items())
        assert {server.url for server in servers} == set(engine.list_times())
        samples: list[Sampled] = asyncio.run(engine.generate([]))
        assert samples == []
