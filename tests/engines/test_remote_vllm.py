"""The remote engine against real vLLM servers; `scripts/test_extra_vllm.sh` starts them and runs this."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from typing import Any

import httpx
import numpy as np
import pytest

from stepwell.config.engine import RemoteEngineConfig
from stepwell.core.errors import ContextLengthError, EngineError, InputError
from stepwell.core.protocols import Request, Sampled, SamplingParams
from stepwell.core.step import FinishReason, Step, TokenState
from stepwell.core.versions import VersionSpan
from stepwell.engines.embedded import EmbeddedEngine
from stepwell.engines.parity import check_parity
from stepwell.engines.remote import RemoteEngine
from stepwell.policies.causal_lm import CausalLMPolicy

URLS = {mode: os.environ.get(f"STEPWELL_VLLM_{mode.upper()}", "") for mode in ("raw", "processed")}
MODEL = os.environ.get("STEPWELL_VLLM_MODEL", "")
pytestmark = [
    pytest.mark.extra_vllm,
    pytest.mark.skipif(not (all(URLS.values()) and MODEL), reason="run scripts/test_extra_vllm.sh"),
]


@pytest.fixture(scope="module")
def embedded() -> Any:
    with EmbeddedEngine.from_pretrained(MODEL) as engine:
        yield engine


@pytest.fixture(scope="module")
def trainer() -> CausalLMPolicy:
    return CausalLMPolicy.from_pretrained(MODEL)


def vllm(mode: str, tokenizer: Any = None, **changes: Any) -> RemoteEngine:
    return RemoteEngine(URLS[mode], "tiny", RemoteEngineConfig(**changes), tokenizer=tokenizer)


def prompts(count: int) -> list[list[int]]:
    draw = np.random.default_rng(0)
    return [draw.integers(3, 900, size=int(n)).tolist() for n in draw.integers(1, 120, size=count)]


def ask(prompt: list[int], **params: Any) -> Request:
    return Request(TokenState(prompt), SamplingParams(**{"max_tokens": 24, "seed": 1, **params}))


def steps_of(requests: list[Request], samples: list[Sampled]) -> list[Step]:
    return [sample.step(request.state) for request, sample in zip(requests, samples, strict=True)]


@pytest.mark.parametrize(
    ("mode", "temperature", "top_p"),
    [
        ("raw", 1.0, 1.0),
        ("raw", 0.0, 1.0),
        ("raw", 1.0, 0.6),
        ("processed", 1.0, 1.0),
        ("processed", 0.0, 1.0),
        ("processed", 0.7, 1.0),
        ("processed", 1.7, 1.0),
    ],
)
async def test_vllms_logprobs_are_those_of_our_trainer(
    trainer: CausalLMPolicy, mode: str, temperature: float, top_p: float
) -> None:
    requests = [
        ask(prompt, temperature=temperature, top_p=top_p, seed=i) for i, prompt in enumerate(prompts(32))
    ]
    async with vllm(mode) as engine:
        samples = await engine.generate(requests)
    report = check_parity(trainer, steps_of(requests, samples))
    assert report.max_abs <= 1e-4
    print(f"{mode} T={temperature} top_p={top_p}: {report}")
    assert report.num_tokens > 100


async def test_vllm_decodes_greedily_what_our_engine_decodes(embedded: EmbeddedEngine) -> None:
    requests = [ask(prompt, temperature=0.0) for prompt in prompts(16)]
    async with vllm("raw") as engine:
        theirs = await engine.generate(requests)
    ours = await embedded.generate(requests)
    for a, b in zip(theirs, ours, strict=True):
        assert a.action.action_ids.tolist() == b.action.action_ids.tolist()
        assert a.sampling.finish_reason == b.sampling.finish_reason
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


@pytest.mark.parametrize(
    ("mode", "temperature", "top_p", "needed"),
    [("raw", 0.7, 1.0, "processed"), ("processed", 1.0, 0.6, "raw")],
)
async def test_the_mode_of_a_real_server_is_found_out_and_the_wrong_one_refused(
    mode: str, temperature: float, top_p: float, needed: str
) -> None:
    async with vllm(mode) as engine:
        with pytest.raises(InputError, match=f"--logprobs-mode {needed}_logprobs"):
            await engine.generate([ask([40, 41, 42], temperature=temperature, top_p=top_p)])


async def test_a_real_stream_gives_what_generate_gives_for_the_same_seed() -> None:
    async with vllm("raw") as engine:
        (whole,) = await engine.generate([ask([40, 41, 42], ignore_end=True)])
        *tokens, last = [item async for item in engine.stream(ask([40, 41, 42], ignore_end=True))]
    assert isinstance(last, Sampled)
    assert [token.id for token in tokens] == last.action.action_ids.tolist()
    assert [token.logprob for token in tokens] == last.logprobs.tolist()
    assert last.action == whole.action
    np.testing.assert_allclose(last.logprobs, whole.logprobs, atol=1e-4)


async def test_many_streams_and_slots_at_once_keep_to_their_own(trainer: CausalLMPolicy) -> None:
    requests = [ask(prompt, seed=i, max_tokens=12) for i, prompt in enumerate(prompts(40))]

    async def streamed(engine: RemoteEngine, request: Request) -> Sampled:
        *_, last = [item async for item in engine.stream(request)]
        assert isinstance(last, Sampled)
        return last

    async with vllm("raw") as engine:
        samples = await asyncio.gather(*(streamed(engine, request) for request in requests))
    assert check_parity(trainer, steps_of(requests, samples)).max_abs <= 1e-4


async def test_stops_end_an_action_with_the_token_that_completes_them(embedded: EmbeddedEngine) -> None:
    tokenizer = embedded.tokenizer
    async with vllm("raw", tokenizer) as engine:
        (long,) = await engine.generate([ask([40, 41, 42], temperature=0.0, ignore_end=True)])
        ids = long.action.action_ids.tolist()
        assert long.sampling.finish_reason is FinishReason.LENGTH and len(ids) == 24
        text = tokenizer.decode(ids[:9], skip_special_tokens=False)
        requests = [
            ask([40, 41, 42], temperature=0.0, ignore_end=True, stop=(text[-3:],)),
            ask([40, 41, 42], temperature=0.0, ignore_end=True, stop_ids=(ids[5],)),
        ]
        theirs = await engine.generate(requests)
    ours = await embedded.generate(requests)
    for a, b in zip(theirs, ours, strict=True):
        assert a.action == b.action and len(a.logprobs) < 24
        assert a.sampling == b.sampling and a.sampling.finish_reason is FinishReason.STOP


async def test_the_end_token_is_part_of_the_action(embedded: EmbeddedEngine) -> None:
    end = embedded.tokenizer.eos_token_id
    requests = [ask([40, 41, i], temperature=1.0, seed=i, max_tokens=400) for i in range(3, 60)]
    async with vllm("raw", embedded.tokenizer) as engine:
        samples = await engine.generate(requests)
    ended = [s for s in samples if s.sampling.finish_reason is FinishReason.STOP]
    assert ended and all(int(s.action.action_ids[-1]) == end for s in ended)
    assert all(end not in s.action.action_ids[:-1].tolist() for s in samples)


async def test_context_and_vocabulary_limits_of_a_real_server() -> None:
    async with vllm("raw") as engine:
        (cut,) = await engine.generate([ask([5] * 509, max_tokens=50, ignore_end=True)])
        assert len(cut.logprobs) == 3 and cut.sampling.finish_reason is FinishReason.LENGTH
        assert engine.max_length == 512
        with pytest.raises(ContextLengthError, match="the context holds 512"):
            await engine.generate([ask([5] * 512)])
        with pytest.raises(InputError, match="vocabulary"):
            await engine.generate([ask([5000])])
        with pytest.raises(InputError, match="temperature"):
            await vllm("processed", logprobs_mode="processed").generate([ask([5], temperature=3.0)])
    async with RemoteEngine(URLS["raw"], "other") as engine:
        with pytest.raises(EngineError, match="it serves tiny"):
            await engine.generate([ask([5])])


async def test_a_later_turn_reuses_the_servers_cache() -> None:
    history = prompts(1)[0] * 3
    async with vllm("raw") as engine:
        await engine.generate([ask(history)])
        (again,) = await engine.generate([ask([*history, 5, 6])])
    assert 0 < again.num_cached < len(history) + 2


async def test_leaving_a_stream_ends_the_request_at_the_server() -> None:
    async def num_running() -> float:
        async with httpx.AsyncClient() as client:
            text = (await client.get(URLS["raw"] + "/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
        return sum(float(line.split()[-1]) for line in lines)

    async with vllm("raw") as engine:
        async with aclosing(engine.stream(ask([40, 41], max_tokens=500, ignore_end=True))) as items:
            await anext(items)
        for _ in range(100):
            if await num_running() == 0:
                break
            await asyncio.sleep(0.05)
        assert await num_running() == 0
        assert len((await engine.generate([ask([40, 41])]))[0].logprobs) >= 1


async def test_the_version_of_a_real_server_is_read_from_its_endpoint() -> None:
    async with httpx.AsyncClient() as client:
        reply = await client.post(URLS["raw"] + "/update_weight_version", json={"new_version": "7"})
        assert reply.status_code == 200
    async with vllm("raw", version_path="/weight_info") as engine:
        (sample,) = await engine.generate([ask([40, 41])])
    assert sample.policy_version == VersionSpan.at(7)
