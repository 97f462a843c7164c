"""A remote engine and the small server that it asks, for the tests of both."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.engines.completions_server import CompletionsServer, serving

from stepwell.config.engine import RemoteEngineConfig
from stepwell.core.protocols import Request, Sampled, SamplingParams
from stepwell.core.step import TokenState
from stepwell.engines.remote import RemoteEngine
from stepwell.engines.token_stream import SampledToken
from stepwell.policies.causal_lm import CausalLMPolicy
from stepwell.policies.tiny_models import build_tiny

PROMPT = [40, 41, 42, 43, 44]
QUICK = RemoteEngineConfig(max_retries=2, backoff_s=0.01, connect_timeout_s=2.0)


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, Any]:
    model, tokenizer = build_tiny("tiny-0.3m", seed=3)
    with torch.no_grad():
        model.model.norm.weight.mul_(4.0)  # fresh weights find all tokens alike, which would hide mistakes
    return model, tokenizer


@pytest.fixture
def server(tiny: tuple[Any, Any]) -> Iterator[CompletionsServer]:
    with serving(CompletionsServer(*tiny)) as running:
        yield running


@pytest.fixture
def scorer(tiny: tuple[Any, Any]) -> CausalLMPolicy:
    return CausalLMPolicy(copy.deepcopy(tiny[0]))


def engine_for(server: CompletionsServer, config: RemoteEngineConfig = QUICK, **names: Any) -> RemoteEngine:
    return RemoteEngine(server.url, "tiny", config, tokenizer=server.tokenizer, **names)


def ask(prompt: list[int] = PROMPT, **params: Any) -> Request:
    return Request(TokenState(prompt), SamplingParams(**{"max_tokens": 8, "seed": 1, **params}))


async def read(engine: RemoteEngine, request: Request) -> tuple[list[SampledToken], Sampled]:
    *tokens, last = [item async for item in engine.stream(request)]
    assert isinstance(last, Sampled) and all(isinstance(token, SampledToken) for token in tokens)
    assert [token.id for token in tokens] == last.action.action_ids.tolist()
    assert [token.logprob for token in tokens] == last.logprobs.tolist()
    return tokens, last
