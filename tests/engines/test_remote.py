"""The remote engine: exact ids and logprobs over real HTTP."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest
from tests.engines.completions_server import CONTEXT, Answer, CompletionsServer
from tests.engines.remote_engines import PROMPT, QUICK, ask, engine_for, read, scorer, server, tiny

from stepwell.core.errors import ConfigError, ContextLengthError, EngineError, InputError
from stepwell.core.protocols import Request, Sampled, Sampler
from stepwell.core.step import ArrayState, FinishReason, TokenState
from stepwell.engines.completions import choose_logprobs_mode, detect_logprobs_mode
from stepwell.engines.parity import check_parity
from stepwell.engines.remote import RemoteEngine
from stepwell.engines.token_stream import SampledToken, Streamer
from stepwell.policies.causal_lm import CausalLMPolicy

__all__ = ["scorer", "server", "tiny"]  # fixtures


def body_of(request: Request) -> dict[str, Any]:
    state, params = request.state, request.params
    assert isinstance(state, TokenState)
    off = {"stop": [], "stop_token_ids": [], "ignore_eos": True, "skip_special_tokens": True, "logprobs": 0}
    sampling = {"temperature": params.temperature, "top_p": params.top_p, "seed": params.seed}
    return {"prompt": state.prompt_ids.tolist(), "max_tokens": params.max_tokens, **sampling, **off}


@pytest.mark.parametrize(
    ("mode", "temperature", "top_p"),
    [
        ("raw", 1.0, 1.0),
        ("processed", 1.0, 1.0),
        ("raw", 0.0, 1.0),
        ("processed", 0.0, 0.5),
        ("raw", 1.0, 0.5),
        ("processed", 0.7, 1.0),
        ("processed", 1.6, 1.0),
    ],
)
async def test_logprobs_that_come_back_are_those_the_trainer_computes(
    server: CompletionsServer, scorer: CausalLMPolicy, mode: str, temperature: float, top_p: float
) -> None:
    server.mode = mode
    requests = [
        ask([9 + i, 5, 17], temperature=temperature, top_p=top_p, seed=i, ignore_end=True) for i in range(6)
    ]
    async with engine_for(server) as engine:
        assert isinstance(engine, Sampler) and isinstance(engine, Streamer)
        samples = await engine.generate(requests)
    steps = [sample.step(request.state) for sample, request in zip(samples, requests, strict=True)]
    report = check_parity(scorer, steps, 1e-4)
    assert report.num_tokens == 6 * 8
    assert {step.sampling.temperature for step in steps} == {temperature}


@pytest.mark.parametrize(
    ("mode", "temperature", "top_p", "needed"),
    [("raw", 0.7, 1.0, "processed"), ("processed", 1.0, 0.5, "raw")],
)
async def test_logprobs_of_another_distribution_are_refused_with_the_servers_option(
    server: CompletionsServer, mode: str, temperature: float, top_p: float, needed: str
) -> None:
    server.mode = mode
    async with engine_for(server) as engine:
        with pytest.raises(InputError, match=f"--logprobs-mode {needed}_logprobs"):
            await engine.generate([ask(temperature=temperature, top_p=top_p)])
        asked = len(server.seen)
        with pytest.raises(InputError, match=f"--logprobs-mode {needed}_logprobs"):
            await engine.generate([ask(temperature=temperature, top_p=top_p)])
        assert len(server.seen) == asked  # known by now


def test_settings_whose_logprobs_no_server_returns_are_refused() -> None:
    with pytest.raises(InputError, match="use temperature=1 or top_p=1"):
        choose_logprobs_mode(0.7, 0.9)
    with pytest.raises(InputError, match="use 0"):
        choose_logprobs_mode(0.001, 1.0)


def test_a_mode_that_cannot_be_told_must_be_set() -> None:
    flat = {"choices": [{"logprobs": {"top_logprobs": [{"a": -2.0, "b": -2.0}]}}]}
    with pytest.raises(EngineError, match="set logprobs_mode"):
        detect_logprobs_mode(flat, flat)
    with pytest.raises(EngineError, match="top_logprobs"):
        detect_logprobs_mode({"choices": [{}]}, flat)


async def test_a_stream_gives_what_generate_gives(server: CompletionsServer) -> None:
    async with engine_for(server) as engine:
        (whole,) = await engine.generate([ask()])
        tokens, last = await read(engine, ask())
    assert len(tokens) == 8
    assert last.action == whole.action and last.sampling == whole.sampling
    assert last.logprobs.tobytes() == whole.logprobs.tobytes()
    assert (whole.num_cached, last.num_cached) == (2, 2)


async def test_prompts_are_sent_as_ids_and_nothing_is_left_to_the_servers_defaults(
    server: CompletionsServer,
) -> None:
    async with engine_for(server) as engine:
        await engine.generate([ask(stop_ids=(7,), ignore_end=True, seed=2**63 + 5)])
    _, body, _ = server.seen[-1]
    assert body["prompt"] == PROMPT and body["add_special_tokens"] is False
    off = {"top_k": 0, "min_p": 0.0, "min_tokens": 0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert off.items() <= body.items() and body["repetition_penalty"] == 1.0
    assert (body["stop_token_ids"], body["ignore_eos"], body["seed"]) == ([7], True, 5)


async def test_requests_without_a_seed_draw_one_and_record_it(server: CompletionsServer) -> None:
    def seeds(samples: list[Sampled]) -> list[int | None]:
        return [sample.sampling.seed for sample in samples]

    async with engine_for(server) as engine, engine_for(server) as other:
        first = await engine.generate([ask(seed=None), ask(seed=None)])
        second = await other.generate([ask(seed=None), ask(seed=None)])
    assert len(set(seeds(first))) == 2 and None not in seeds(first)
    assert seeds(first) == seeds(second)
    assert [a.action for a in first] == [b.action for b in second]


async def test_actions_end_where_they_should_and_say_why(server: CompletionsServer) -> None:
    async with engine_for(server) as engine:
        (long,) = await engine.generate([ask(ignore_end=True)])
        ids = long.action.action_ids.tolist()
        text = server.tokenizer.decode(ids, skip_special_tokens=False)
        by_id, by_text = await engine.generate(
            [ask(ignore_end=True, stop_ids=(ids[2],)), ask(ignore_end=True, stop=(text[-3:],))]
        )
    assert long.sampling.finish_reason is FinishReason.LENGTH
    assert long.action.text == server.tokenizer.decode(ids, skip_special_tokens=True)
    assert by_id.action.action_ids.tolist() == ids[: ids.index(ids[2]) + 1]
    assert by_text.action.action_ids.tolist() == ids[: len(by_text.logprobs)]
    assert text[-3:] in server.tokenizer.decode(by_text.action.action_ids.tolist())
    assert {by_id.sampling.finish_reason, by_text.sampling.finish_reason} == {FinishReason.STOP}


async def test_the_context_cuts_an_action_and_refuses_a_full_prompt(server: CompletionsServer) -> None:
    engine = engine_for(server)
    assert await asyncio.to_thread(lambda: engine.max_length) == CONTEXT
    async with engine:
        (cut,) = await engine.generate([ask([5] * (CONTEXT - 3), max_tokens=50, ignore_end=True)])
        assert len(cut.logprobs) == 3 and cut.sampling.finish_reason is FinishReason.LENGTH
        with pytest.raises(ContextLengthError, match=f"the context holds {CONTEXT}"):
            await engine.generate([ask([5] * CONTEXT)])


async def test_what_can_never_be_served_is_refused_before_anything_is_sent(server: CompletionsServer) -> None:
    async with RemoteEngine(server.url, "tiny", QUICK) as engine:
        assert await engine.generate([]) == []
        with pytest.raises(InputError, match="give the engine one, or use stop_ids"):
            await engine.generate([ask(stop=("x",))])
        with pytest.raises(InputError, match="not from arrays"):
            await engine.generate([Request(ArrayState({"x": np.zeros(2)}))])
    assert not server.seen
    with pytest.raises(ConfigError, match="base_url must start with http"):
        RemoteEngine("127.0.0.1:8000", "tiny")


async def test_many_requests_at_once_come_back_in_order(server: CompletionsServer) -> None:
    requests = [ask([3 + i, 4, 5], seed=i, max_tokens=3) for i in range(48)]
    config = QUICK.model_copy(update={"max_connections": 8})
    async with engine_for(server, config) as engine:
        together = await engine.generate(requests)
        alone = [(await engine.generate([request]))[0] for request in requests[:6]]
    assert [a.action for a in alone] == [b.action for b in together[:6]]
    assert len({tuple(sample.action.action_ids.tolist()) for sample in together}) > 24


def test_two_event_loops_one_after_the_other_share_an_engine(server: CompletionsServer) -> None:
    engine = engine_for(server)
    first, second = (asyncio.run(engine.generate([ask()])) for _ in range(2))
    assert first[0].action == second[0].action


async def test_leaving_a_stream_hangs_up_on_the_server(server: CompletionsServer) -> None:
    many = server.stream({**body_of(ask()), "max_tokens": 1})[:1] * 200_000

    def flood(path: str, body: dict[str, Any]) -> Answer | None:
        return (200, many) if body.get("stream") else None

    server.answers = flood
    async with engine_for(server) as engine:
        async with aclosing(engine.stream(ask())) as items:
            assert isinstance(await anext(items), SampledToken)
        assert await asyncio.to_thread(server.hung_up.wait, 10)
