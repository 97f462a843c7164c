"""Streaming from the embedded engine: the same tokens as `generate`, one by one, and ways to leave early."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.models import prompts_of, small_model
from tests.properties import examples

from stepwell.config.engine import EngineConfig
from stepwell.core.errors import EngineError, InputError
from stepwell.core.protocols import Request, Sampled, SamplingParams
from stepwell.core.step import FinishReason, TokenState
from stepwell.engines.embedded import EmbeddedEngine
from stepwell.engines.token_stream import NewTokens, SampledToken, Streamer, TokenStream, deliver_tokens


def seeded(prompt: list[int], seed: int, num_tokens: int = 20, **names: Any) -> Request:
    params = SamplingParams(max_tokens=num_tokens, temperature=0.8, seed=seed)
    return Request(TokenState(prompt), params, **names)


def endless(prompt: list[int], name: str = "endless") -> Request:
    params = SamplingParams(max_tokens=8000, temperature=0.0, ignore_end=True)
    return Request(TokenState(prompt), params, id=name)


def long_engine(**settings: Any) -> EmbeddedEngine:
    return EmbeddedEngine(
        small_model("llama", max_position_embeddings=8192), config=EngineConfig(**settings), copy=False
    )


async def read(engine: EmbeddedEngine, request: Request) -> tuple[list[SampledToken], Sampled]:
    """A whole stream, with the form every stream must have checked."""
    *tokens, last = [item async for item in engine.stream(request)]
    assert isinstance(last, Sampled) and all(isinstance(token, SampledToken) for token in tokens)
    assert [token.id for token in tokens] == last.action.action_ids.tolist()
    assert [token.logprob for token in tokens] == last.logprobs.tolist()
    return tokens, last


async def test_a_stream_is_bit_for_bit_what_generate_gives_for_the_same_seed() -> None:
    model = small_model("qwen3")
    for seed, prompt in enumerate(prompts_of([3, 9, 30])):
        with EmbeddedEngine(model) as engine:
            (whole,) = await engine.generate([seeded(prompt, seed)])
        with EmbeddedEngine(model) as engine:
            assert isinstance(engine, Streamer)
            tokens, last = await read(engine, seeded(prompt, seed))
        assert 1 < len(tokens) <= 20
        assert last.action == whole.action and last.sampling == whole.sampling
        assert last.logprobs.tobytes() == whole.logprobs.tobytes()


async def test_many_streams_and_whole_samples_share_a_batch_and_each_gets_its_own() -> None:
    model = small_model("llama", torch.float64)
    prompts = prompts_of([3, 8, 15, 4, 22, 9, 5, 6, 7, 12, 11, 10])
    config = EngineConfig(max_batch_size=5, num_slots=8, max_queue=6)
    with EmbeddedEngine(model, config=config) as engine:
        streams = [read(engine, seeded(p, i)) for i, p in enumerate(prompts)]
        wholes = [engine.generate([seeded(p, i)]) for i, p in enumerate(prompts)]
        streamed, generated = await asyncio.gather(asyncio.gather(*streams), asyncio.gather(*wholes))
        assert not engine._streams and not engine._requested_streams and not engine._jobs
    for (_, last), (whole,) in zip(streamed, generated, strict=True):
        assert last.action == whole.action
        np.testing.assert_allclose(last.logprobs, whole.logprobs, atol=1e-6)


async def test_tokens_come_while_the_request_still_runs() -> None:
    with long_engine() as engine:
        async with aclosing(engine.stream(endless([5, 6]))) as items:
            first = await anext(items)
            assert isinstance(first, SampledToken)
            assert "endless" in engine._jobs  # thousands of tokens are still to come


@pytest.mark.parametrize("how", ["close", "cancel the reader"])
async def test_leaving_a_stream_frees_its_row(how: str) -> None:
    with long_engine(max_batch_size=1) as engine:
        if how == "close":
            items = engine.stream(endless([5, 6]))
            await anext(items)
            await items.aclose()
        else:
            reader = asyncio.create_task(read(engine, endless([5, 6])))
            while engine._core.num_running == 0:
                await asyncio.sleep(0.001)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
        _, last = await asyncio.wait_for(read(engine, seeded([7, 8], 0, 5)), timeout=20)
        assert 1 <= len(last.logprobs) <= 5
        assert not engine._streams and not engine._jobs and not engine._core.is_busy


async def test_leaving_a_stream_that_waits_for_room_takes_it_out_of_the_queue() -> None:
    with long_engine(max_batch_size=1, max_queue=1) as engine:
        running = [asyncio.create_task(read(engine, endless([5, 6], f"r{i}"))) for i in range(2)]
        waiting = [asyncio.create_task(read(engine, endless([5, 6], f"w{i}"))) for i in range(3)]
        while engine._core.num_running == 0:
            await asyncio.sleep(0.001)
        for task in waiting + running:
            task.cancel()
        await asyncio.gather(*running, *waiting, return_exceptions=True)
        batcher = engine._get_batcher()
        assert batcher.queue.num_waiting == 0 and not batcher._unadmitted and not engine._requested_streams


async def test_a_request_cancelled_by_id_ends_its_stream_with_what_there_is() -> None:
    with long_engine() as engine:
        reader = asyncio.create_task(read(engine, endless([5, 6])))
        while engine._core.num_running == 0:
            await asyncio.sleep(0.001)
        assert await asyncio.to_thread(engine.cancel, "endless")
        tokens, last = await reader
        assert last.sampling.finish_reason is FinishReason.CANCELLED
        assert len(tokens) < 8000


async def test_an_engine_that_breaks_in_the_middle_raises_after_the_tokens_it_gave() -> None:
    with long_engine() as engine:
        got: list[SampledToken] = []
        head = engine.model.state_dict()["lm_head.weight"]
        with pytest.raises(EngineError, match="NaN logits"):
            async for item in engine.stream(endless([5, 6])):
                got.append(item)
                if len(got) == 3:
                    engine._post_command(lambda: head.fill_(float("nan")))
        assert 3 <= len(got) < 8000
        assert not engine._streams and not engine._jobs


async def test_closing_the_engine_raises_in_running_and_in_waiting_streams() -> None:
    engine = long_engine(max_batch_size=1, max_queue=1)
    readers = [asyncio.create_task(read(engine, endless([5, 6], f"s{i}"))) for i in range(6)]
    while engine._core.num_running == 0:
        await asyncio.sleep(0.001)
    await asyncio.to_thread(engine.close)
    ends = await asyncio.wait_for(asyncio.gather(*readers, return_exceptions=True), timeout=20)
    assert all(isinstance(end, EngineError) and "closed" in str(end) for end in ends)
    with pytest.raises(EngineError, match="closed"):
        await read(engine, seeded([5], 0))


async def test_what_generate_refuses_a_stream_refuses() -> None:
    with long_engine() as engine:
        with pytest.raises(InputError, match="prompt_ids contains 96"):
            await read(engine, seeded([96], 0))
        async with aclosing(engine.stream(endless([5, 6]))) as items:
            await anext(items)
            with pytest.raises(InputError, match="'endless' is already in flight"):
                await read(engine, endless([7, 8]))
            assert isinstance(await anext(items), SampledToken)


async def test_a_loop_that_is_gone_does_not_disturb_the_others() -> None:
    gone = asyncio.new_event_loop()
    here = TokenStream(asyncio.get_running_loop())
    lost = TokenStream(gone)
    gone.close()
    deliver_tokens([NewTokens(lost, [1], [-1.0]), NewTokens(here, [2, 3], [-0.5, -0.25])])
    answer: asyncio.Future[list[Sampled]] = asyncio.get_running_loop().create_future()
    async with aclosing(here.read_items(answer)) as items:
        assert [await anext(items), await anext(items)] == [(2, -0.5), (3, -0.25)]
    assert answer.cancelled()


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=6), st.integers(0, 5))
def test_however_tokens_are_portioned_the_reader_sees_them_in_order(
    portions: list[list[int]], pause: int
) -> None:
    async def run() -> list[int]:
        loop = asyncio.get_running_loop()
        outlet = TokenStream(loop)
        answer: asyncio.Future[list[Any]] = loop.create_future()

        async def feed() -> None:
            for i, portion in enumerate(portions):
                deliver_tokens([NewTokens(outlet, portion, [float(-x) for x in portion])])
                if i == pause:
                    await asyncio.sleep(0)
            loop.call_soon(answer.set_result, ["end"])

        feeding = asyncio.create_task(feed())
        *tokens, end = [item async for item in outlet.read_items(answer)]
        await feeding
        assert end == "end" and [token.logprob for token in tokens] == [-float(t.id) for t in tokens]
        return [token.id for token in tokens]

    assert asyncio.run(run()) == [x for portion in portions for x in portion]
