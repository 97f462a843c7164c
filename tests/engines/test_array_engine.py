"""The engine of robot policies: samples, versions, parity."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.policies.vla.made import CHUNK, DIM, STEPS, policy, states

from stepwell.config import EngineConfig
from stepwell.core import EngineError, InputError, Request, SamplingParams, TokenState, WeightsError
from stepwell.engines import ArrayEngine, check_parity, fingerprint_of
from stepwell.rollout.robot_player import keep_executed

HEADS = ("token", "flow")


def requests(count: int, temperature: float = 1.0) -> list[Request]:
    return [
        Request(state, SamplingParams(temperature=temperature, seed=50 + i))
        for i, state in enumerate(states(count, image=True))
    ]


@pytest.mark.parametrize("head", HEADS)
def test_a_sample_does_not_depend_on_its_batch(head: str) -> None:
    engine = ArrayEngine(policy(head, image=True).model)
    together = engine.generate_blocking(requests(9))
    small = ArrayEngine(policy(head, image=True).model, EngineConfig(max_batch_size=2))
    for sampled, other in zip(together, small.generate_blocking(requests(9)), strict=True):
        np.testing.assert_allclose(sampled.action.chunk, other.action.chunk, rtol=0, atol=1e-5)
        np.testing.assert_allclose(sampled.logprobs, other.logprobs, rtol=0, atol=1e-4)
        assert sampled.sampling == other.sampling


@pytest.mark.parametrize("head", HEADS)
def test_the_trainer_gives_fresh_samples_the_engines_logprobs(head: str) -> None:
    made = policy(head, image=True)
    asked = requests(12)
    samples = ArrayEngine(made.model).generate_blocking(asked)
    steps = [
        keep_executed(s, 1 + i % CHUNK).step(r.state)
        for i, (s, r) in enumerate(zip(samples, asked, strict=True))
    ]
    report = check_parity(made, steps, 1e-4)
    units = sum(1 + i % CHUNK for i in range(12)) * DIM if head == "token" else 12 * STEPS
    assert report.num_tokens == units


@pytest.mark.parametrize("head", HEADS)
def test_seeds_decide_and_temperature_zero_ignores_them(head: str) -> None:
    engine = ArrayEngine(policy(head).model)
    (state,) = states(1)

    def chunk(seed: int, temperature: float) -> np.ndarray:
        request = Request(state, SamplingParams(temperature=temperature, seed=seed))
        return engine.generate_blocking([request])[0].action.chunk

    assert np.array_equal(chunk(1, 1.0), chunk(1, 1.0))
    assert not np.array_equal(chunk(1, 1.0), chunk(2, 1.0))
    if head == "token":  # a flow head's deterministic sampler still starts from the seed's noise
        assert np.array_equal(chunk(1, 0.0), chunk(2, 0.0))
    assert np.array_equal(chunk(1, 0.0), chunk(1, 0.0))
    assert abs(chunk(1, 1.0)).max() <= 1.0


def test_requests_without_a_seed_draw_theirs_from_the_engines_stream_and_record_it() -> None:
    made = policy("flow")
    first, again = (ArrayEngine(made.model, EngineConfig(seed=4)) for _ in range(2))
    asked = [Request(state) for state in states(3)]
    samples = first.generate_blocking(asked)
    for sampled, other in zip(samples, again.generate_blocking(asked), strict=True):
        assert np.array_equal(sampled.action.chunk, other.action.chunk)
    seed = samples[1].sampling.seed
    repeated = first.generate_blocking([Request(asked[1].state, SamplingParams(seed=seed))])[0]
    np.testing.assert_allclose(repeated.action.chunk, samples[1].action.chunk, rtol=0, atol=1e-5)


def test_weights_arrive_with_a_version_and_a_fingerprint_or_not_at_all() -> None:
    made, other = policy("token"), policy("token")
    with torch.no_grad():
        other.model.head.project.bias.add_(1.0)
    engine = ArrayEngine(made.model, version=3)
    before, published = engine.fingerprint(), fingerprint_of(other.model_weights())
    assert before == fingerprint_of(made.model_weights()) != published
    assert engine.generate_blocking(requests_plain(1))[0].policy_version.last == 3
    with pytest.raises(WeightsError, match="older"):
        engine.load_weights(2, other.model_weights())
    with pytest.raises(WeightsError, match="was published with fingerprint"):
        engine.load_weights(4, other.model_weights(), fingerprint=before)
    assert engine.fingerprint() == before and engine.version == 3
    engine.load_weights(4, other.model_weights(), fingerprint=published)
    assert engine.fingerprint() == published
    assert engine.generate_blocking(requests_plain(1))[0].policy_version.first == 4
    assert fingerprint_of(made.model_weights()) == before  # the engine has a copy


def requests_plain(count: int) -> list[Request]:
    return [Request(state, SamplingParams(seed=i)) for i, state in enumerate(states(count))]


async def test_weights_come_between_two_batches_of_callers_on_an_event_loop() -> None:
    engine = ArrayEngine(policy("flow").model)
    other = policy("flow")
    calls = [asyncio.create_task(engine.generate(requests_plain(4))) for _ in range(8)]
    await asyncio.to_thread(engine.load_weights, 1, other.model_weights())
    versions = [{s.policy_version.first for s in await call} for call in calls]
    assert all(len(found) == 1 for found in versions)
    assert {s.policy_version.first for s in await engine.generate(requests_plain(2))} == {1}


def test_an_engine_opens_a_saved_policy(tmp_path: Path) -> None:
    made = policy("token", critic="shared")
    made.save_pretrained(tmp_path / "p")
    engine = ArrayEngine.from_pretrained(tmp_path / "p", version=2)
    assert engine.fingerprint() == fingerprint_of(made.model_weights()) and engine.version == 2


def test_what_cannot_be_sampled_is_refused() -> None:
    made = policy("token")
    engine = ArrayEngine(made.model)
    with pytest.raises(InputError, match="token state"):
        engine.generate_blocking([Request(TokenState(np.array([1], np.int32)))])
    with torch.no_grad():
        engine.model.head.project.bias.fill_(float("nan"))
    with pytest.raises(EngineError, match="not finite"):
        engine.generate_blocking(requests_plain(1))
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.generate_blocking(requests_plain(1))
