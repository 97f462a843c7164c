"""What every engine of a training run must do: the embedded one, vLLM's and SGLang's protocols, real vLLM."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.models import generate_alone
from tests.engines.served_engines import VLLM_URL, changed_weights, start_engine
from tests.engines.served_models import read_tiny

from stepwell.core.errors import WeightsError
from stepwell.core.protocols import Request, Sampled, SamplingParams
from stepwell.core.step import Step, TokenAction, TokenState
from stepwell.core.versions import VersionSpan
from stepwell.engines import fingerprint_of
from stepwell.engines.parity import check_parity
from stepwell.policies.causal_lm import CausalLMPolicy

REAL = pytest.param(
    "real vllm",
    marks=[
        pytest.mark.extra_vllm,
        pytest.mark.skipif(not VLLM_URL, reason="run scripts/test_extra_vllm.sh"),
    ],
)


@pytest.fixture(scope="module", params=["embedded", "vllm", "sglang", REAL])
def engine(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with start_engine(request.param, tmp_path_factory.mktemp("engine")) as running:
        yield running


def publish_next(engine: Any, size: float, seed: int) -> CausalLMPolicy:
    """New weights, and the trainer that has them."""
    policy = CausalLMPolicy(copy.deepcopy(read_tiny()[0]))
    policy.model.load_state_dict(changed_weights(policy.model, size, seed))
    engine.load_weights(engine.version + 1, policy.model.state_dict())
    return policy


def prompts(count: int, length: int = 40) -> list[list[int]]:
    draw = np.random.default_rng(length)
    return [draw.integers(3, 900, size=length).tolist() for _ in range(count)]


def ask(prompt: list[int], conversation: str | None = None, **params: Any) -> Request:
    chosen = SamplingParams(**{"max_tokens": 8, "seed": 1, **params})
    return Request(TokenState(prompt), chosen, conversation)


def steps_of(requests: list[Request], samples: list[Sampled]) -> list[Step]:
    return [sample.step(request.state) for request, sample in zip(requests, samples, strict=True)]


def ids_of(sample: Sampled) -> list[int]:
    assert isinstance(sample.action, TokenAction)
    return sample.action.action_ids.tolist()


def test_logprobs_are_those_of_the_trainer_at_every_temperature(engine: Any) -> None:
    policy = publish_next(engine, 0.05, seed=2)
    heats = (1.0, 0.7, 0.0, 1.3)
    requests = [ask(prompt, temperature=heats[i], seed=i) for i, prompt in enumerate(prompts(4))]
    samples = asyncio.run(engine.generate(requests))
    assert check_parity(policy, steps_of(requests, samples)).max_abs <= 1e-4
    assert {sample.policy_version for sample in samples} == {VersionSpan.at(engine.version)}
    assert engine.fingerprint() == fingerprint_of(policy.model.state_dict())
    (prompt,) = prompts(1)
    (greedy,) = asyncio.run(engine.generate([ask(prompt, temperature=0.0, ignore_end=True)]))
    assert ids_of(greedy) == generate_alone(policy.model, prompt, 8)


def test_a_later_turn_reuses_the_cache_and_new_weights_do_not(engine: Any) -> None:
    (history,) = prompts(1, 200)
    publish_next(engine, 0.05, seed=4)
    asyncio.run(engine.generate([ask(history, "a")]))
    (again,) = asyncio.run(engine.generate([ask([*history, 5, 6], "a")]))
    assert 100 < again.num_cached < len(history) + 2
    publish_next(engine, 0.05, seed=5)
    (fresh,) = asyncio.run(engine.generate([ask([*history, 5, 6, 7], "a")]))
    assert fresh.num_cached == 0
    asyncio.run(engine.generate([ask([*history, 5, 6, 7], "a")]))
    engine.forget()
    (empty,) = asyncio.run(engine.generate([ask([*history, 5, 6, 7], "a")]))
    assert empty.num_cached == 0


@pytest.mark.slow
async def test_requests_under_way_go_on_while_weights_change(engine: Any) -> None:
    before = engine.version
    long = [ask(prompt, max_tokens=120, ignore_end=True, seed=i) for i, prompt in enumerate(prompts(3))]
    under_way = asyncio.create_task(engine.generate(long))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(publish_next, engine, 0.05, 6)
    samples = await under_way
    assert [len(sample.logprobs) for sample in samples] == [120] * 3
    assert {sample.policy_version for sample in samples} == {VersionSpan(before, before + 1)}


async def test_a_cancelled_call_ends_and_others_go_on(engine: Any) -> None:
    task = asyncio.create_task(engine.generate([ask(prompts(1)[0], max_tokens=200, ignore_end=True)]))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (sample,) = await engine.generate([ask(prompts(1)[0])])
    assert 1 <= len(sample.logprobs) <= 8


def test_weights_of_another_model_and_older_ones_are_refused_and_the_old_ones_stay(engine: Any) -> None:
    policy = publish_next(engine, 0.05, seed=7)
    weights = policy.model.state_dict()
    version, before = engine.version, engine.fingerprint()
    with pytest.raises(WeightsError, match="versions only increase"):
        engine.load_weights(version - 1, weights)
    lacking = {name: value for name, value in weights.items() if "q_proj" not in name}
    with pytest.raises(WeightsError, match="names are missing"):
        engine.load_weights(version + 1, lacking)
    broken = {**weights, "model.norm.weight": weights["model.norm.weight"] * np.nan}
    with pytest.raises(WeightsError, match="NaN"):
        engine.load_weights(version + 1, broken)
    requests = [ask(prompt, seed=i) for i, prompt in enumerate(prompts(3))]
    samples = asyncio.run(engine.generate(requests))
    assert (engine.version, engine.fingerprint()) == (version, before)
    assert check_parity(policy, steps_of(requests, samples)).max_abs <= 1e-4


def test_a_folder_of_weights_is_loaded_like_a_state_dict(engine: Any, tmp_path: Path) -> None:
    model = copy.deepcopy(read_tiny()[0])
    model.load_state_dict(changed_weights(model, 0.05, seed=8))
    model.save_pretrained(tmp_path)
    engine.load_weights(engine.version + 1, tmp_path)
    assert engine.fingerprint() == fingerprint_of(model.state_dict())
