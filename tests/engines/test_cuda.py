"""The engine on a GPU: captured graphs, both attention kernels, equal tokens and logprobs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.models import STYLES, generate_alone, prompts_of, small_model

from stepwell.config.engine import EngineConfig
from stepwell.core.protocols import Request, Sampled, SamplingParams
from stepwell.core.step import TokenState
from stepwell.engines.embedded import EmbeddedEngine
from stepwell.engines.weights import fingerprint_of

pytestmark = pytest.mark.gpu


def greedy(prompt: list[int], num_tokens: int, conversation: str | None = None) -> Request:
    return Request(TokenState(prompt), SamplingParams(max_tokens=num_tokens, temperature=0.0), conversation)


def ids(sample: Sampled) -> list[int]:
    return [int(token) for token in sample.action.action_ids]  # type: ignore[union-attr]


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("kernel", ["triton", "torch"])
@pytest.mark.parametrize("style", STYLES)
def test_greedy_tokens_equal_generate(style: str, kernel: str, graphs: bool) -> None:
    model = small_model(style).cuda()
    prompts = prompts_of([3, 17, 1, 9, 40, 90, 64, 65])
    config = EngineConfig(attention_kernel=kernel, cuda_graphs=graphs, max_batch_size=5, prefill_tokens=64)
    with EmbeddedEngine(model, config=config) as engine:
        answers = engine.generate_blocking([greedy(p, 4 + 3 * i) for i, p in enumerate(prompts)])
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        assert ids(answer) == generate_alone(model, prompt, 4 + 3 * i)


@pytest.mark.parametrize("forward", ["lean", "transformers"])
def test_turns_reuse_their_cache(forward: str) -> None:
    model = small_model("qwen3").cuda()
    histories = prompts_of([6, 11, 30], seed=1)
    with EmbeddedEngine(model, config=EngineConfig(forward=forward, max_batch_size=4)) as engine:
        for turn in range(3):
            answers = engine.generate_blocking([greedy(h, 6, str(i)) for i, h in enumerate(histories)])
            for i, answer in enumerate(answers):
                assert ids(answer) == generate_alone(model, histories[i], 6)
                assert (answer.num_cached > 0) == (turn > 0)
                histories[i] += [*ids(answer), 7, 8]


def test_siblings_copy_their_prompt() -> None:
    model = small_model("llama").cuda()
    prompt = prompts_of([50])[0]
    with EmbeddedEngine(model, config=EngineConfig(max_batch_size=8)) as engine:
        answers = engine.generate_blocking([greedy(prompt, 6) for _ in range(8)])
    assert sorted(a.num_cached for a in answers) == [0] + [49] * 7
    assert all(ids(a) == generate_alone(model, prompt, 6) for a in answers)


def test_seeds_draw_the_same_tokens_on_cpu_and_gpu() -> None:
    model = small_model("llama")
    requests = [
        Request(TokenState(p), SamplingParams(max_tokens=20, seed=i, temperature=t, top_p=q, ignore_end=True))
        for i, (p, t, q) in enumerate(
            zip(prompts_of([8] * 12), [0.7, 1.0, 1.3] * 4, [1.0, 0.9] * 6, strict=True)
        )
    ]
    found = []
    for device in ("cpu", "cuda"):
        with EmbeddedEngine(model.to(device)) as engine:
            found.append(engine.generate_blocking(requests))
    equal = [ids(a) == ids(b) for a, b in zip(*found, strict=True)]
    assert sum(equal) >= 11  # rounding may shift one draw, and everything after it
    for same, a, b in zip(equal, *found, strict=True):
        if same:
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_bfloat16_logprobs_are_near_those_of_a_float32_forward() -> None:
    model = small_model("llama", initializer_range=0.1)
    prompts = prompts_of([12, 40])
    params = SamplingParams(max_tokens=24, seed=1, ignore_end=True)
    with EmbeddedEngine(model.to("cuda", torch.bfloat16)) as engine:
        answers = engine.generate_blocking([Request(TokenState(p), params) for p in prompts])
    exact = model.float()
    for prompt, answer in zip(prompts, answers, strict=True):
        action = ids(answer)
        with torch.no_grad():
            logits = exact(torch.tensor([prompt + action]).cuda()).logits[0, len(prompt) - 1 : -1]
        scores = torch.log_softmax(logits, -1)[torch.arange(len(action)), torch.tensor(action)].cpu().numpy()
        assert np.abs(answer.logprobs - scores).max() < 0.15
        assert np.abs(answer.logprobs - scores).mean() < 0.03


def test_new_weights_reach_graphs_captured_before() -> None:
    old, new = small_model("qwen3").cuda(), small_model("qwen3", seed=1).cuda()
    prompt = prompts_of([14])[0]
    with EmbeddedEngine(old) as engine:
        assert ids(engine.generate_blocking([greedy(prompt, 10)])[0]) == generate_alone(old, prompt, 10)
        published = fingerprint_of({name: tensor.cpu() for name, tensor in new.state_dict().items()})
        engine.load_weights(1, new.state_dict(), fingerprint=published)
        assert engine.fingerprint() == published
        assert ids(engine.generate_blocking([greedy(prompt, 10)])[0]) == generate_alone(new, prompt, 10)


def test_float64_falls_back_to_plain_torch() -> None:
    model: Any = small_model("llama", torch.float64).cuda()
    prompt = prompts_of([20])[0]
    with EmbeddedEngine(model) as engine:
        assert not engine._core.runner.use_triton
        assert ids(engine.generate_blocking([greedy(prompt, 12)])[0]) == generate_alone(model, prompt, 12)
