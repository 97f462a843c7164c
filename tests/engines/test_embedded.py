"""The engine on an event loop: many callers, cancellation, back-pressure, failure, repeatability."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from tests.engines.models import generate_alone, prompts_of, small_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, MambaConfig, MambaForCausalLM

from stepwell.config.engine import EngineConfig
from stepwell.core.errors import ConfigError, EngineError, InputError, ModelError
from stepwell.core.protocols import Request, Sampled, Sampler, SamplingParams
from stepwell.core.step import FinishReason, TokenState
from stepwell.engines.batcher import SWITCH_INTERVAL_S
from stepwell.engines.embedded import EmbeddedEngine


def greedy(prompt: list[int], num_tokens: int = 6, **names: Any) -> Request:
    return Request(TokenState(prompt), SamplingParams(max_tokens=num_tokens, temperature=0.0), **names)


def endless(prompt: list[int], name: str = "endless") -> Request:
    """A request that runs for seconds: nobody waits for its end, tests end it."""
    params = SamplingParams(max_tokens=8000, temperature=0.0, ignore_end=True)
    return Request(TokenState(prompt), params, id=name)


async def started(engine: EmbeddedEngine, *requests: Request) -> asyncio.Task[list[Sampled]]:
    """A task whose requests are being decoded."""
    task = asyncio.create_task(engine.generate(requests))
    while engine._core.num_running == 0:
        await asyncio.sleep(0.001)
    return task


def long_model(**changes: Any) -> Any:
    return small_model("llama", max_position_embeddings=8192, **changes)


async def test_many_tasks_at_once_each_get_their_own_answer() -> None:
    model = small_model("llama", torch.float64)
    prompts = prompts_of([3, 8, 15, 4, 22, 9, 5])
    with EmbeddedEngine(model, config=EngineConfig(max_batch_size=3, num_slots=8)) as engine:
        assert isinstance(engine, Sampler)
        answers = await asyncio.gather(*(engine.generate([greedy(p), greedy(p[::-1])]) for p in prompts))
    for prompt, (first, second) in zip(prompts, answers, strict=True):
        assert first.action.action_ids.tolist() == generate_alone(model, prompt, 6)
        assert second.action.action_ids.tolist() == generate_alone(model, prompt[::-1], 6)


async def test_other_threads_do_not_keep_the_lock_long_beside_an_engine_on_an_event_loop() -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        with EmbeddedEngine(small_model("llama")) as engine:
            await engine.generate([greedy([3, 4])])
            assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
        sys.setswitchinterval(SWITCH_INTERVAL_S / 10)
        with EmbeddedEngine(small_model("llama")) as engine:
            await engine.generate([greedy([3, 4])])
            assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S / 10)
    finally:
        sys.setswitchinterval(before)


async def test_no_requests_give_no_samples() -> None:
    with EmbeddedEngine(small_model("llama")) as engine:
        assert await engine.generate([]) == [] == engine.generate_blocking([])


async def test_one_call_at_a_time_repeats_bit_for_bit() -> None:
    model = small_model("qwen3")
    prompts = prompts_of([9, 4, 17, 17, 2, 30])

    async def rollout() -> list[tuple[list[int], bytes]]:
        found = []
        with EmbeddedEngine(model, config=EngineConfig(max_batch_size=4, num_slots=6, seed=7)) as engine:
            histories = [list(p) for p in prompts]
            for _ in range(3):
                requests = [
                    Request(TokenState(h), SamplingParams(max_tokens=6, temperature=0.9), f"talk {i}")
                    for i, h in enumerate(histories)
                ]
                for i, sample in enumerate(await engine.generate(requests)):
                    ids = sample.action.action_ids.tolist()
                    found.append((ids, sample.logprobs.tobytes()))
                    histories[i] += [*ids, 5]
        return found

    assert await rollout() == await rollout()


async def test_a_cancelled_task_takes_its_requests_out() -> None:
    model = long_model(dtype=torch.float64)
    a, b = prompts_of([6, 7])
    with EmbeddedEngine(model, config=EngineConfig(max_batch_size=1)) as engine:
        task = await started(engine, endless(a))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answer = await asyncio.wait_for(
            engine.generate([greedy(b)]), timeout=20
        )  # the only row is free again
        assert answer[0].action.action_ids.tolist() == generate_alone(model, b, 6)
        assert not engine._core.is_busy and not engine._jobs


async def test_cancelling_one_request_by_id_gives_its_caller_what_there_is() -> None:
    a, b = prompts_of([6, 7])
    with EmbeddedEngine(long_model()) as engine:
        task = await started(engine, endless(a), greedy(b))
        assert await asyncio.to_thread(engine.cancel, "endless")
        long, short = await task
        assert long.sampling.finish_reason is FinishReason.CANCELLED
        assert len(long.logprobs) == len(long.action.action_ids) < 8000
        assert len(short.action.action_ids) == 6
        assert not engine.cancel("endless")


async def test_back_pressure_holds_callers_and_loses_none() -> None:
    config = EngineConfig(max_batch_size=2, max_queue=3, num_slots=4)
    prompts = prompts_of([5] * 12)
    with EmbeddedEngine(small_model("llama", torch.float64), config=config) as engine:
        tasks = [asyncio.create_task(engine.generate([greedy(p)])) for p in prompts]
        await asyncio.sleep(0)
        batcher = engine._get_batcher()
        assert batcher.queue.num_waiting <= 3 and len(batcher._unadmitted) > 0
        answers = await asyncio.gather(*tasks)
        assert [len(a) for a in answers] == [1] * 12
        with pytest.raises(InputError, match="raise max_queue"):
            await engine.generate([greedy(p) for p in prompts[:4]])


async def test_a_user_order_decides_who_starts_first() -> None:
    finished: list[int] = []
    with EmbeddedEngine(
        small_model("llama"),
        config=EngineConfig(max_batch_size=1),
        order=lambda slot: -len(slot.items[0].state.prompt_ids),
    ) as engine:

        async def ask(prompt: list[int]) -> None:
            await engine.generate([greedy(prompt, 40)])
            finished.append(len(prompt))

        await asyncio.gather(*(ask(p) for p in prompts_of([3, 4, 5, 6, 7, 8])))
    assert finished == [3, 4, 8, 7, 6, 5]  # two went out before anyone else had come


async def test_nan_logits_fail_the_requests_with_a_reason_and_the_engine_lives_on() -> None:
    model = small_model("llama", torch.float64)
    with EmbeddedEngine(model) as engine:
        good = engine.model.state_dict()["lm_head.weight"].clone()
        engine.model.state_dict()["lm_head.weight"].fill_(float("nan"))
        with pytest.raises(EngineError, match="NaN logits"):
            await engine.generate([greedy([4, 5, 6])])
        engine.model.state_dict()["lm_head.weight"].copy_(good)
        answer = await engine.generate([greedy([4, 5, 6])])
        assert answer[0].action.action_ids.tolist() == generate_alone(model, [4, 5, 6], 6)


async def test_closing_fails_what_is_in_flight_and_refuses_more() -> None:
    engine = EmbeddedEngine(long_model())
    task = await started(engine, endless([5]))
    await asyncio.to_thread(engine.close)
    with pytest.raises(EngineError, match="closed"):
        await task
    with pytest.raises(EngineError, match="closed"):
        engine.generate_blocking([greedy([5])])


def test_an_engine_that_nobody_holds_is_freed_and_its_thread_ends() -> None:
    engine = EmbeddedEngine(small_model("llama"))
    engine.generate_blocking([greedy([5])])
    worker, held = engine._worker, weakref.ref(engine)
    assert worker is not None and worker.is_alive()
    del engine
    gc.collect()  # engine and model hold each other
    worker.join(30)
    assert not worker.is_alive() and held() is None


async def test_weights_can_change_while_requests_run() -> None:
    with EmbeddedEngine(long_model()) as engine:
        task = await started(engine, endless([5, 6]))
        await asyncio.to_thread(engine.load_weights, 1, small_model("llama", seed=1).state_dict())
        await asyncio.to_thread(engine.cancel, "endless")
        (sample,) = await task
        assert (sample.policy_version.first, sample.policy_version.last) == (0, 1)


async def test_an_id_already_in_flight_is_refused_with_its_whole_slot() -> None:
    with EmbeddedEngine(long_model()) as engine:
        first = await started(engine, endless([5, 6]))
        with pytest.raises(InputError, match="'endless' is already in flight"):
            await engine.generate([greedy([7, 8], id="y"), endless([6])])
        assert not first.done()
        assert len((await engine.generate([greedy([7, 8], id="y")]))[0].action.action_ids) == 6
        await asyncio.to_thread(engine.cancel, "endless")
        assert len((await first)[0].action.action_ids) > 0


async def test_two_event_loops_one_after_the_other_share_an_engine() -> None:
    model = small_model("llama")
    with EmbeddedEngine(model) as engine:
        first = await engine.generate([greedy([5, 6, 7])])
        second = await asyncio.to_thread(lambda: asyncio.run(engine.generate([greedy([5, 6, 7])])))
        assert first[0].action == second[0].action


def test_a_model_directory_opens_with_its_weights(tmp_path: Path) -> None:
    model = small_model("qwen3")
    model.save_pretrained(tmp_path)
    prompt = prompts_of([8])[0]
    with EmbeddedEngine.from_pretrained(tmp_path) as engine:
        assert engine.tokenizer is None
        answer = engine.generate_blocking([greedy(prompt)])[0]
        assert answer.action.action_ids.tolist() == generate_alone(model, prompt, 6)
    with pytest.raises(ModelError, match="neither a directory nor a built-in name"):
        EmbeddedEngine.from_pretrained(tmp_path / "nowhere")
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if "norm" not in k},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(ModelError, match=r"9 weights are missing.*norm"):
        EmbeddedEngine.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no weights at all")
    with pytest.raises(ModelError, match="cannot be opened"):
        EmbeddedEngine.from_pretrained(tmp_path)


def test_another_model_family_runs_through_its_own_code() -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=96, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    )
    model = GPT2LMHeadModel(config).double().eval()
    prompt = prompts_of([9])[0]
    with EmbeddedEngine(model) as engine:
        answer = engine.generate_blocking([greedy(prompt, 10)])[0]
    assert answer.action.action_ids.tolist() == generate_alone(model, prompt, 10)


def test_a_model_without_replaceable_attention_is_refused_with_the_reason() -> None:
    model = MambaForCausalLM(MambaConfig(vocab_size=96, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(ModelError, match="attention"):
        EmbeddedEngine(model, config=EngineConfig(max_length=32))


def test_a_model_that_attends_in_an_unknown_way_is_refused_by_the_self_check() -> None:
    model = small_model("llama")
    model.model.layers[0].mlp.act_fn = nn.Tanh()  # not what its config says
    with pytest.raises(ModelError, match="logits differ from this model"):
        EmbeddedEngine(model)


def test_settings_that_contradict_each_other_or_the_model_are_refused() -> None:
    with pytest.raises(ValidationError, match="num_slots"):
        EngineConfig(max_batch_size=8, num_slots=4)
    with pytest.raises(ValidationError, match="max_queue"):
        EngineConfig(max_batch_size=8, max_queue=4)
    with pytest.raises(ConfigError, match="max_length is 999, but the model's context is 128"):
        EmbeddedEngine(small_model("llama"), config=EngineConfig(max_length=999))
    with pytest.raises(ConfigError, match='forward="auto"'):
        EmbeddedEngine(small_model("gemma2"), config=EngineConfig(forward="lean"))
